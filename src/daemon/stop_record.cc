#include "daemon/stop_record.h"

#include <unistd.h>

#include <memory>
#include <thread>

#include "base/answer.h"
#include "base/log.h"
#include "daemon/exit_codes.h"

namespace cairnfs::daemon {

void StopRecord::NoteStopping() {
  MutexLock lock(mutex_);
  if (!is_over_) lock_.SetState("stopping");
}

void StopRecord::NoteLost(const StopOutcome& outcome) {
  const std::string text = LogUnsaved(outcome.reason, outcome.unsaved);
  spdlog::default_logger()->flush();
  MutexLock lock(mutex_);
  if (is_over_) return;
  is_over_ = is_lost_ = true;
  lock_.MarkFailed(text);
}

void StopRecord::NoteClean() {
  MutexLock lock(mutex_);
  if (is_lost_) return;
  is_over_ = true;
  lock_.MarkClean();
}

void StopRecord::EndProcess(const Context& until, const StopOutcome& outcome, const std::function<void()>& meanwhile) {
  const auto noted = std::make_shared<Answer<bool>>();
  const bool is_durable = outcome.is_durable();  // then calls still wait, and what was accepted is durable
  std::thread([this, noted, outcome, is_durable] {
    if (is_durable) {
      spdlog::warn("the time of the stop was up; everything is durable");
      spdlog::default_logger()->flush();
      NoteClean();
    } else {
      NoteLost(outcome);
    }
    noted->Set(true);
  }).detach();
  if (meanwhile) meanwhile();
  static_cast<void>(noted->Wait(until));
  _exit(is_durable ? kExitDone : kExitLost);
}

}  // namespace cairnfs::daemon
