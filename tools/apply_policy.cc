#include "apply_policy.h"

#include <unistd.h>

#include <algorithm>

#include "act_for_user.h"
#include "daemon/exit_codes.h"
#include "output.h"
#include "removal.h"
#include "retaining.h"
#include "retention/report.h"
#include "run_directory.h"

namespace cairnfs::tools {
namespace {

using retention::Report;

void TellLine(const std::string& line) { Print(line + "\n"); }

void TellFate(const Fate& fate) {
  if (fate.removed) TellLine(retention::RemovedLine({fate.name, fate.reason}));
  if (fate.goes && !fate.removed) TellLine(retention::FailedLine({fate.name, fate.reason}));
}

// In a directory without a policy only removals that were cut short are gone on with, and only its owner's: nobody has
// said that root is to touch those of others.
Status EndLeft(const RunDirectory& run, Report& end) {
  const Status taken_up = TakeUpLeft(run.owner(), end.notes);
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<LeftOver> left, FindLeft(run.owner()));
  const bool goes_on =
      std::any_of(left.begin(), left.end(), [](const LeftOver& one) { return one.next != LeftOver::Next::kIsTold; });
  end.has_policy = goes_on;  // or nobody would look again
  end.stays_for_now = goes_on && taken_up.ok();
  for (const LeftOver& one : left) {
    if (!goes_on) end.notes.push_back(one.Sentence());  // the last time that anybody looks
  }
  return taken_up;
}

Status Apply(const ApplyPolicyCommand& command, Report& end) {
  CAIRNFS_ASSIGN_OR_RETURN(const RunDirectory run,
                           RunDirectory::EnterBelow(command.mount_point, command.path, command.inode));
  if (run.owner() != command.owner) return MakeError(ErrorCode::kStale, "it has another owner by now");
  CAIRNFS_ASSIGN_OR_RETURN(const auto policy, run.ReadPolicy());
  if (!policy) return EndLeft(run, end);
  const Status taken_up = TakeUpLeft(LeftIn(run.owner()), end.notes);
  CAIRNFS_ASSIGN_OR_RETURN(Fates fates, JudgeAll(*policy, run.OnlyOf()));
  // A policy that is changed or taken away meanwhile does not go on.
  const auto is_wanted = [&] {
    const auto still = run.ReadPolicy();
    return still.ok() && *still == policy;
  };
  const Status removed =
      RemoveAll(*policy, fates,
                {.judge = [&] { return JudgeAll(*policy, run.OnlyOf()); }, .is_wanted = is_wanted, .tell = TellFate});
  end.stays_for_now = fates.stays_for_now;
  end.notes.insert(end.notes.end(), fates.notes.begin(), fates.notes.end());
  if (fates.next) end.next = fates.next->seconds;
  for (const Fate& fate : fates.lines) end.stay_count += fate.removed ? 0 : 1;
  return taken_up.ok() ? removed : taken_up;
}

}  // namespace

int RunApplyPolicy(const ApplyPolicyCommand& command) {
  const pid_t daemon = getppid();
  LimitItself();
  Report end;
  Status done = BecomeUser({.uid = command.owner});
  if (done.ok()) done = EndWithDaemon(daemon);
  if (done.ok()) done = Apply(command, end);
  if (!done.ok()) end.error = done.error().message;
  TellLine(retention::EndLine(end));
  return done.ok() ? daemon::kExitDone : daemon::ExitCodeOf(done.error());
}

}  // namespace cairnfs::tools
