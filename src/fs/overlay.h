// Overlay: the bytes of one file that are accepted and not stored yet, laid over its stored extents.
//
// An ordered set of ranges that do not overlap. Each is either a *run* (bytes that wait to be cut; it grows at its end)
// or a *view* of a chunk in flight (bytes that were cut and are being hashed and stored). Overwriting trims both.
// Not thread-safe: the inode's lock guards it.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "chunking/chunker.h"
#include "chunking/digest.h"
#include "fs/range_set.h"
#include "io/buffer_pool.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// A chunk that was cut and is on its way to the store.
struct FlyingChunk {
  uint64_t id = 0;      // increasing per inode: the order in which results are applied
  uint64_t offset = 0;  // in the file, of the chunk's first byte
  uint64_t size = 0;
  chunking::Owner owner;            // of the file when it was carved
  uint64_t stored_before = 0;       // so many of its first bytes lie in an earlier provisional chunk
  bool provisional = false;         // the tail of a run that may still grow: the run keeps its bytes
  RangeSet filled_holes{SIZE_MAX};  // of the file: its bytes there are zeros of a small hole, not this host's own
  // Others may have written over what was stored before: applied without it. Guarded by the inode's lock.
  bool skips_stored = false;
  std::vector<io::Slice> slices;
  std::vector<uint32_t> anchors;  // as CutFinder found them
  // The user among whose earlier saves its bytes are looked for; nullopt: nobody knows who wrote them.
  std::optional<uint32_t> writer;
  store::NewBytes new_bytes;          // counts those of it that were stored nowhere; null: nobody counts
  std::atomic<bool> is_taken{false};  // a thread stores it, or has: others that find it in the queue leave it
};

struct Run {
  uint64_t id = 0;
  uint64_t version = 0;  // changes whenever bytes other than at the end change
  uint64_t length = 0;
  std::deque<io::Slice> pieces;
  uint64_t scanned = 0;  // bytes from the run's start that the finder has seen
  uint64_t stored = 0;   // bytes from the run's start that a provisional chunk holds or will hold
  chunking::CutFinder finder;

  explicit Run(const chunking::ChunkParams& params) : finder(params) {}
};

struct View {
  std::shared_ptr<FlyingChunk> chunk;
  uint64_t chunk_offset = 0;
  uint64_t length = 0;
};

class Overlay {
 public:
  explicit Overlay(const chunking::ChunkParams& params) : params_(params) {}

  // Where the run begins that ends at `offset`, if there is one: a write there makes it longer.
  std::optional<uint64_t> StartOfRunTo(uint64_t offset) const;
  // Lays `data` over [offset, offset + data.size), growing the run that ends there if there is one; but what takes the
  // place of a run's bytes does not grow one that is stored.
  void Write(uint64_t offset, const io::Slice& data);
  // Drops what lies in [offset, offset + length).
  void Remove(uint64_t offset, uint64_t length);

  // Calls `bytes` for each part of the range that is here and `gap` for each that is not, in order.
  void Visit(uint64_t offset, uint64_t length, const std::function<void(uint64_t offset, const io::Slice&)>& bytes,
             const std::function<void(uint64_t offset, uint64_t length)>& gap) const;

  // Takes the first `size` bytes of the run at `start` out as a chunk that is from now on in flight, and leaves a view
  // of it in their place. The run goes on after them. REQUIRES: a run starts at `start` and is at least that long.
  std::shared_ptr<FlyingChunk> Carve(uint64_t start, uint64_t size, uint64_t id);
  // A chunk of the bytes of the run at `start` from `from` on, which stay in the run too. REQUIRES: `from` lies in the
  // run, and all before it is stored.
  std::shared_ptr<FlyingChunk> CarveProvisional(uint64_t start, uint64_t from, uint64_t id);
  // Drops the views of `chunk`: its bytes are stored now.
  void DropViews(const FlyingChunk& chunk);
  // Drops the first `size` bytes of the run at `start`; what was scanned and stored of the rest stays so. REQUIRES: a
  // run starts at `start` and is longer.
  void DropRunFront(uint64_t start, uint64_t size);
  // Drops runs of which every byte is stored provisionally.
  void DropStoredRuns();

  // The runs by start offset; the caller may look at them and change `scanned` and `finder`.
  std::map<uint64_t, Run>& runs() { return runs_; }
  const std::map<uint64_t, Run>& runs() const { return runs_; }
  bool empty() const { return runs_.empty() && views_.empty(); }
  // Bytes in runs: accepted and not cut.
  uint64_t run_bytes() const { return run_bytes_; }
  // True when some byte of a run is not stored, or a chunk is in flight.
  bool HasUnstored() const;
  // The ranges [begin, end) of bytes that are not stored.
  void ForEachUnstored(const std::function<void(uint64_t begin, uint64_t end)>& visit) const;
  // Whether `offset` is covered here.
  std::optional<uint64_t> FindData(uint64_t offset) const;  // first covered byte >= offset
  uint64_t FindGap(uint64_t offset) const;                  // first uncovered byte >= offset

 private:
  void RemoveFromRuns(uint64_t begin, uint64_t end);
  void RemoveFromViews(uint64_t begin, uint64_t end);
  // The run goes on without its first `size` bytes, of which there are more. Leaves `run_bytes_` to the caller.
  void MoveStart(std::map<uint64_t, Run>::iterator run, uint64_t size);
  void JoinNext(std::map<uint64_t, Run>::iterator run);

  const chunking::ChunkParams params_;
  std::map<uint64_t, Run> runs_;
  std::map<uint64_t, View> views_;
  uint64_t run_bytes_ = 0;
  uint64_t next_run_id_ = 1;
};

}  // namespace cairnfs::fs
