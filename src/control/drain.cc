#include "control/drain.h"

#include "control/convert.h"

namespace cairnfs::control {

Status RunDrain(const DrainCall& call, const std::function<void(const DrainStep&)>& tell) {
  const Context until = call.wanted.WithTimeout(call.deadline);
  DrainStep step;
  *step.mutable_estimate() = call.estimate;
  if (call.log.estimate) call.log.estimate("a drain has begun", call.estimate);
  tell(step);
  const auto drained =
      call.maintenance.Drain(call.wanted.WithDeadline(until.deadline() - fs::TimeToList(call.deadline)));
  if (call.wanted.IsStopped()) {
    return MakeError(ErrorCode::kUnavailable, "the daemon is stopping, and makes durable what it can");
  }
  if (!drained.ok()) {
    fs::Unsaved left;
    call.maintenance.ListUnsaved(until, [&](const fs::Unsaved& unsaved) {
      left = unsaved;
      step.Clear();
      step.mutable_unsaved()->set_reason(drained.error().message);
      ToMessage(unsaved, *step.mutable_unsaved());
      tell(step);
    });
    // The last of it may have become durable meanwhile.
    if (!left.empty() || left.has_lost || !call.maintenance.Drain(until).ok()) {
      if (call.log.unsaved) call.log.unsaved("a drain is over: " + drained.error().message, left);
      return {};
    }
  }
  step.Clear();
  step.set_durable(true);
  tell(step);
  return {};
}

}  // namespace cairnfs::control
