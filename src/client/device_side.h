// What a saver keeps on one device, and what a save does there before bytes move: snapshot, fingerprints, comparison.
// One thread at a time.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "client/device.h"
#include "client/fingerprints.h"
#include "client/layout.h"

namespace cairnfs::client {

class DeviceSide {
 public:
  DeviceSide(Devices& devices, Device& device, int32_t number) : devices_(devices), device_(device), number_(number) {}
  ~DeviceSide();  // REQUIRES: no save runs.
  DeviceSide(const DeviceSide&) = delete;

  struct Options {
    StreamHandle stream;      // the caller's
    const Fingerprints* old;  // null: nothing to compare with
    bool wants_snapshot;
    bool needs_snapshot;  // no room for the one that is wanted is kRange
    uint32_t copies_in_flight;
  };
  // Puts on the stream what a save of the device's tensors in `layout` needs, and returns. With a snapshot, the blocks
  // of the layout point to it afterwards. kRange, kFailed: the stream is idle again.
  Status Begin(Layout& layout, const Options& options);
  bool made_snapshot() const { return made_snapshot_; }
  uint64_t bytes_over_bus() const { return bytes_over_bus_; }

  // Wait: until the snapshot is made; until digests and bits are there.
  Status WaitForSnapshot();
  Status WaitForJudgement();
  // After WaitForJudgement: whether the block, the `index`-th of tensor `tensor` of the layout, is other than before.
  bool IsChanged(uint32_t tensor, uint64_t index) const;

  // Copies `bytes` from the device to the ring on one of its streams, by turns, once the tensors may be read.
  StreamHandle NextCopyStream();
  Status CopyToHost(std::byte* to, const std::byte* from, uint64_t bytes, StreamHandle stream);
  // Until all copies are done.
  Status WaitForCopies();
  Device& device() { return device_; }

  // The digests of this save become the old ones; where they begin, for tensor `tensor` of the layout.
  void Commit();
  uint64_t FirstDigest(uint32_t tensor) const;
  // Waits until nothing of a save uses the device.
  void Finish();

 private:
  struct Buffer {  // of the device
    void* memory = nullptr;
    uint64_t bytes = 0;
  };
  struct Pinned {
    void* memory = nullptr;
    uint64_t bytes = 0;
  };
  Status Grow(Buffer& buffer, uint64_t bytes);
  Status Grow(Pinned& pinned, uint64_t bytes);
  Status MakeStreams(uint32_t copies_in_flight);
  void MakeTable(const Layout& layout, const Fingerprints* old);
  Status Reserve();
  uint32_t SlabBlocks() const { return std::min(block_count_, kSlabBlocksMax); }
  Status Snapshot(Layout& layout, const Options& options);
  Status Enqueue(Layout& layout, const Options& options);
  Status Fingerprint(StreamHandle stream);
  void DeleteEvents();

  Devices& devices_;
  Device& device_;
  const int32_t number_;
  std::vector<StreamHandle> streams_;  // for copies; the first one also works on snapshots
  Buffer old_digests_, digests_, tile_values_, table_, bits_, snapshot_;
  Pinned host_table_, host_bits_;

  // Of the save that runs.
  std::vector<FingerprintTensor> tensors_;
  std::vector<uint32_t> numbers_;         // entry i is tensor numbers_[i] of the layout
  std::vector<uint32_t> first_block_of_;  // by tensor of the layout; UINT32_MAX: of another device
  uint32_t block_count_ = 0;
  bool compares_ = false;
  bool made_snapshot_ = false;
  uint64_t bytes_over_bus_ = 0;
  size_t next_stream_ = 0;
  std::optional<StreamHandle> last_stream_;  // on which the judgement is put; none: nothing runs
  EventHandle readable_ = nullptr;           // the tensors, or their snapshot, may be read
  EventHandle judged_ = nullptr;
};

}  // namespace cairnfs::client
