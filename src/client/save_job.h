// One save: docs/gpu.md, "The way of a save".
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/crew.h"
#include "client/device_side.h"
#include "client/fingerprints.h"
#include "client/layout.h"
#include "client/output_file.h"
#include "client/reuse.h"
#include "client/ring.h"
#include "client/save_outcome.h"

namespace cairnfs::client {

// What a saver lends to the save that runs.
struct SaveParts {
  Ring& ring;
  const OrdinaryMemory& scratch;  // kHostSpanBytes for each writer
  std::map<int32_t, std::unique_ptr<DeviceSide>>& devices;
  const std::optional<Fingerprints>& old;
};

inline constexpr uint64_t kHostSpanBytes = 2 * kMiB;
inline constexpr uint64_t kDeviceSpanBytesMax = 4 * kMiB;

class SaveJob {
 public:
  struct Options {
    std::string path;
    std::optional<std::string> base;
    uint32_t mode;
    unsigned writers;
    bool wants_snapshot;
  };
  // The devices that the layout names have begun. `outcome` learns when the source is free and how the save ended.
  SaveJob(Layout layout, Options options, SaveParts parts, std::shared_ptr<SaveOutcome> outcome);

  // Returns when nothing of the save runs any more, and it is known what is left of it: the fingerprints of the file,
  // or, where the save failed or the file cannot be watched, none. REQUIRES: called once.
  struct Ending {
    bool is_saved;  // else what was known before is still right
    std::optional<Fingerprints> fingerprints;
  };
  Ending Run();

 private:
  class Arrival;

  // The steps.
  Status MoveBytes();
  Status StageHost();
  Status JudgeDevices();
  Status StageDevices(const std::vector<Span>& spans);
  Status MoveAgain();
  Status WaitForSource();
  void Finish();
  // Runs a step; kExhausted where it finds no memory.
  Status Caught(const std::function<Status()>& step) const;

  // Parts of them.
  // Of the device's blocks that move together: so that some are copied while others are written.
  uint64_t DeviceSpanBytes() const;
  void PostHost(const std::vector<Span>& spans);
  Status SaveHostSpan(const Span& span, unsigned thread);
  void Judge(Block& block, uint64_t number, const std::byte* data);
  Status WriteRuns(const Span& span, const std::vector<const std::byte*>& data);
  void PostLiterals(const Span& span);
  Status StageDeviceSpan(const Span& span);
  enum class Where { kHost, kDevice };
  void PostCopies(Where where);
  Fingerprints MakeFingerprints(const FileIdentity& file);

  Layout layout_;
  const Options options_;
  const SaveParts parts_;
  const std::shared_ptr<SaveOutcome> outcome_;

  std::unique_ptr<OutputFile> output_;
  Reuse reuse_;
  std::vector<Digest> host_digests_;
  std::vector<uint64_t> first_host_digest_;  // by tensor
  bool is_staged_ = false;                   // the host's blocks are in the ring

  FirstError error_;
  std::atomic<uint64_t> bytes_written_ = 0;
  cairnfs_save_result result_ = {};

  Pending host_, copies_, writes_;
  std::unique_ptr<Crew> crew_;
};

}  // namespace cairnfs::client
