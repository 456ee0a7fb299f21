// Named points at which a test can make the process die or misbehave.
//
// A failpoint does nothing unless the environment variable CAIRNFS_FAILPOINTS armed it at start, in the form
//   name=kill[@N][,name=skip[@N]]...
// kill[@N]: SIGKILL to the own process at the N-th passing (default 1). skip[@N]: FailpointSkips returns true from the
// N-th passing on; used to leave out a sync and so to plant a bug. Every name is registered by a static Failpoint, so
// that `cairnfsd --list-failpoints` can print them all. Cost when nothing is armed: one relaxed load.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace cairnfs {

class Failpoint {
 public:
  // `name` must be a literal: room.step, for example "store.segment_sync". `skippable` marks those that guard a sync.
  enum class Kind { kKill, kSkippable };
  Failpoint(const char* name, Kind kind);
  Failpoint(const Failpoint&) = delete;

  // Dies here when armed with kill.
  void Pass() {
    if (any_armed.load(std::memory_order_relaxed)) PassSlow();
  }
  // Dies here when armed with kill; true when armed with skip: the caller then leaves out what it guards.
  bool PassOrSkip() { return any_armed.load(std::memory_order_relaxed) && PassSlow(); }

  const char* name() const { return name_; }
  Kind kind() const { return kind_; }

  static std::vector<const Failpoint*> All();  // sorted by name
  // Arms from `spec` (the form above). kInvalidArgument names what is wrong and lists the names that exist.
  static Status Arm(std::string_view spec);

 private:
  enum class Action { kNone, kKill, kSkip };
  bool PassSlow();
  static std::atomic<bool> any_armed;

  const char* name_;
  Kind kind_;
  std::atomic<Action> action_{Action::kNone};
  std::atomic<int64_t> passings_left_{0};
};

}  // namespace cairnfs
