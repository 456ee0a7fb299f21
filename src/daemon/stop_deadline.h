// StopDeadline: the time by which a stop has to end, as on a machine that is about to be taken away. When it comes,
// what is not durable is listed and the process ends, as by a kill: what sync points covered is there at the next
// start. So it is up to the end of the process: once the last sync is over its outcome is told, and nothing is listed
// any more.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "control.pb.h"
#include "fs/unsaved.h"

namespace cairnfs::daemon {

// What a stop has left.
struct StopOutcome {
  std::string reason = {};
  std::optional<fs::Unsaved> unsaved = fs::Unsaved();  // nullopt: that cannot be told
  // The listing, which uses the filesystem, has not come to its end: nothing may be taken down any more.
  bool is_listing = false;
  bool is_durable() const { return unsaved && unsaved->empty(); }
};

class StopDeadline {
 public:
  struct Parts {
    // As fs::ListUnsaved. Called on a thread of its own, which a stuck disk may hold up for ever; what it uses lives as
    // long as that.
    std::function<void(const Context&, const std::function<void(const fs::Unsaved&)>&)> list;
    // Tells what is lost, until the time of the context, and ends the process.
    std::function<void(const Context&, const StopOutcome&)> give_up;
    // The same once NoteSynced has returned that outcome: whoever is to be told is told already, or is being.
    std::function<void(const Context&, const StopOutcome&)> end;
  };
  explicit StopDeadline(Parts parts) : parts_(std::move(parts)) {}
  ~StopDeadline() { Disarm(); }
  StopDeadline(const StopDeadline&) = delete;

  // The stop is to end by then; of several times the first counts. Any thread.
  void Set(Clock::time_point time);
  // The last sync of the stop is over. Lists what is not durable, for a moment at most, where it failed or there is a
  // deadline: a sync is fine, too, where it was told before of bytes that are lost. When the time comes from now on the
  // process ends with that outcome. Where it has come already, does not return before the process ends.
  StopOutcome NoteSynced(const Status& synced);
  // Last: the process is about to end by itself. Where the time has come it does not return before the process ends.
  // NoteSynced and it: not on the thread that calls Parts.
  void Disarm();

 private:
  void Run(const Context& disarmed);
  // Until `time`, or for as long as it takes where that is sooner.
  StopOutcome List(Clock::time_point time) const;

  const Parts parts_;
  Mutex mutex_;
  CondVar changed_;
  std::optional<Clock::time_point> time_ GUARDED_BY(mutex_);
  Clock::time_point begins_at_ GUARDED_BY(mutex_);  // to list what is lost, so that it is told by then
  bool must_look_ GUARDED_BY(mutex_) = false;
  bool is_disarmed_ GUARDED_BY(mutex_) = false;
  std::optional<StopOutcome> outcome_ GUARDED_BY(mutex_);  // of NoteSynced
  bool gives_up_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;
};

// For people: how much is not durable; and how much is yet to become so, in about which time.
std::string DescribeUnsaved(const std::optional<fs::Unsaved>& unsaved);
std::string DescribeEstimate(const control::StopEstimate& estimate);
// To the log: of a stop, or a drain, what there is to do, and what is left, with a line for each file. Returns the
// first line.
void LogEstimate(std::string_view what, const control::StopEstimate& estimate);
std::string LogUnsaved(std::string_view reason, const std::optional<fs::Unsaved>& unsaved);
control::Unsaved MessageOf(const StopOutcome& outcome);

}  // namespace cairnfs::daemon
