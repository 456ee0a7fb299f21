#include "daemon/stop_deadline.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "control/convert.h"
#include "daemon/size_text.h"

namespace cairnfs::daemon {
namespace {

// For the list once the last sync is over.
constexpr std::chrono::seconds kListMax{2};
constexpr std::string_view kTimeIsUp = "the time of the stop was up";

// What was listed so far. The thread that lists it may outlive who waits.
struct Listing {
  Mutex mutex;
  CondVar changed;
  std::optional<fs::Unsaved> unsaved GUARDED_BY(mutex);
  bool is_done GUARDED_BY(mutex) = false;
};

// A line for each.
void LogFiles(const fs::Unsaved& unsaved) {
  for (const fs::UnsavedFile& file : unsaved.files) {
    spdlog::error("not durable: {} of '{}'", FormatSize(file.bytes), Printable(file.path));
  }
  const uint64_t more = unsaved.file_count - unsaved.files.size();
  if (more > 0) spdlog::error("not durable: {} more files", more);
}

}  // namespace

void StopDeadline::Set(Clock::time_point time) {
  MutexLock lock(mutex_);
  if (is_disarmed_ || gives_up_ || (time_ && *time_ <= time)) return;
  const auto now = Clock::Now();
  time_ = time;
  begins_at_ = time - fs::TimeToList(time - now);
  must_look_ = true;
  changed_.NotifyAll();
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](std::stop_token passed) { Run(Context(std::move(passed))); });
  }
}

StopOutcome StopDeadline::NoteSynced(const Status& synced) {
  bool has_deadline = false;
  {
    MutexLock lock(mutex_);
    has_deadline = time_.has_value();
  }
  StopOutcome outcome;
  if (!synced.ok() || has_deadline) outcome = List(Clock::Now() + kListMax);
  if (!synced.ok()) {
    outcome.reason = synced.error().message;
    if (outcome.is_durable()) outcome.unsaved.reset();
  } else if (!outcome.unsaved) {
    outcome.reason = "the last sync went well; whether bytes were lost before it could not be found out in time";
  } else if (outcome.unsaved->has_lost) {
    outcome.reason = "accepted bytes could not be stored or published, and are lost";
  } else if (outcome.unsaved->unclosed_count > 0) {
    outcome.reason = "files that are to appear whole were open still, and are lost";
  } else {
    outcome.unsaved = fs::Unsaved();
  }
  bool gives_up = false;
  {
    MutexLock lock(mutex_);
    gives_up = gives_up_;
    if (!gives_up) outcome_ = outcome;
  }
  if (gives_up) thread_ = {};
  return outcome;
}

void StopDeadline::Disarm() {
  {
    MutexLock lock(mutex_);
    is_disarmed_ = true;
  }
  if (thread_.joinable()) thread_ = {};
}

StopOutcome StopDeadline::List(Clock::time_point time) const {
  const auto listing = std::make_shared<Listing>();
  const Context until = Context().WithDeadline(time);
  const auto found_by = time - (time - Clock::Now()) / 5;
  auto list = [listing, until = until.WithDeadline(found_by), find = parts_.list] {
    find(until, [&](const fs::Unsaved& unsaved) {
      MutexLock lock(listing->mutex);
      listing->unsaved = unsaved;
    });
    MutexLock lock(listing->mutex);
    listing->is_done = true;
    listing->changed.NotifyAll();
  };
  std::thread(std::move(list)).detach();  // the process ends, whether it has come to its end or not
  MutexLock lock(listing->mutex);
  static_cast<void>(until.Wait(listing->mutex, listing->changed, [&] {
    listing->mutex.AssertHeld();
    return listing->is_done;
  }));
  return {.unsaved = listing->unsaved, .is_listing = !listing->is_done};
}

void StopDeadline::Run(const Context& disarmed) {
  MutexLock lock(mutex_);
  while (Clock::Now() < begins_at_) {
    must_look_ = false;
    const Context until = disarmed.WithDeadline(begins_at_);
    static_cast<void>(until.Wait(mutex_, changed_, [this]() REQUIRES_LOCK(mutex_) { return must_look_; }));
    if (disarmed.IsStopped()) return;
  }
  if (is_disarmed_) return;
  gives_up_ = true;
  const Clock::time_point time = *time_;
  const Clock::time_point listed_by = begins_at_ + (time - begins_at_) / 2;
  const auto noted = outcome_;
  lock.Unlock();
  const Context until = Context().WithDeadline(time);
  if (noted) return parts_.end(until, *noted);
  StopOutcome outcome = List(listed_by);
  outcome.reason = kTimeIsUp;
  parts_.give_up(until, outcome);
}

std::string DescribeUnsaved(const std::optional<fs::Unsaved>& unsaved) {
  if (!unsaved || unsaved->empty()) return "which files are not durable cannot be told";
  const std::string files = unsaved->file_count == 0
                                ? ""
                                : fmt::format("{} of {} file{}", FormatSize(unsaved->bytes), unsaved->file_count,
                                              unsaved->file_count == 1 ? "" : "s");
  const std::string names = unsaved->has_names ? "changes of names or attributes" : "";
  return fmt::format("not durable: {}{}{}", files, files.empty() || names.empty() ? "" : ", and ", names);
}

std::string DescribeEstimate(const control::StopEstimate& estimate) {
  if (estimate.bytes() == 0) return "no bytes wait for the disk";
  const std::string bytes = FormatSize(estimate.bytes()) + " are not durable";
  if (!estimate.has_seconds()) return bytes;
  return fmt::format("{}, about {} s at the {}/s of late", bytes, estimate.seconds(),
                     FormatSize(static_cast<uint64_t>(estimate.bytes_per_second())));
}

void LogEstimate(std::string_view what, const control::StopEstimate& estimate) {
  spdlog::info("{}; {}", what, DescribeEstimate(estimate));
}

std::string LogUnsaved(std::string_view reason, const std::optional<fs::Unsaved>& unsaved) {
  std::string text = fmt::format("{}; {}", reason, DescribeUnsaved(unsaved));
  spdlog::error("{}", text);
  if (unsaved) LogFiles(*unsaved);
  return text;
}

control::Unsaved MessageOf(const StopOutcome& outcome) {
  control::Unsaved message;
  message.set_reason(outcome.unsaved ? outcome.reason : outcome.reason + "; " + DescribeUnsaved(outcome.unsaved));
  if (outcome.unsaved) control::ToMessage(*outcome.unsaved, message);
  return message;
}

}  // namespace cairnfs::daemon
