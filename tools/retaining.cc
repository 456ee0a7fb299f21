#include "retaining.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "checkpoints.h"
#include "keeping.h"
#include "removal.h"
#include "retention/abandoned.h"
#include "retention/judge.h"
#include "temporaries.h"
#include "whole_checkpoint.h"

namespace cairnfs::tools {
namespace {

using nlohmann::ordered_json;
using retention::Policy;

constexpr std::chrono::seconds kJudgementLasts{2};
constexpr int kJudgingShare = 4;  // removing gets so many times what judging takes
constexpr const char* kNameIsTooLong = "its name is too long to get it back: more than 111 bytes";
constexpr std::chrono::seconds kSettled{3600};  // after the last change right in it

Timestamp TimeOf(double seconds) {
  constexpr double kSecondsMax = 1e12;
  const double whole = std::floor(std::clamp(seconds, -kSecondsMax, kSecondsMax));
  return {.seconds = static_cast<int64_t>(whole),
          .nanoseconds = static_cast<uint32_t>(std::clamp(seconds - whole, 0.0, 0.999999999) * 1e9)};
}

// What is known of one, beside what the judge is told.
struct Found {
  uint64_t inode = 0;
  bool may_be_open = false;
  retention::Checkpoint checkpoint;
};

struct Listing {
  std::vector<Found> found;
  std::vector<std::string> notes;
};

// A commit is durable once its rename was answered, also while something else is being written.
bool IsDurable(const Checkpoint& checkpoint) {
  const auto durability = ReadAttribute(checkpoint.path, CAIRNFS_XATTR_DURABILITY);
  if (!durability.ok() || !*durability || **durability == CAIRNFS_DURABILITY_LOST) return false;
  if (**durability != CAIRNFS_DURABILITY_PENDING) return true;
  const auto seconds = checkpoint.commit ? checkpoint.commit->find("durable_seconds") : ordered_json::const_iterator();
  return checkpoint.commit && seconds != checkpoint.commit->end() && seconds->is_number();
}

// What was not committed may be being written: beside those that were it is not taken for durable, else once nothing
// was made or removed right in it for long.
void DoubtUncommitted(std::vector<Found>& found) {
  const auto is_committed = [](const Found& one) { return one.checkpoint.committed; };
  const bool has_commits = std::any_of(found.begin(), found.end(), is_committed);
  const int64_t settled = Clock::WallTime().seconds - kSettled.count();
  for (Found& one : found) {
    if (one.checkpoint.committed) continue;
    if (has_commits || one.checkpoint.time.seconds > settled) one.checkpoint.durable = false;
  }
}

// Those that cannot be loaded keep nothing else from staying: the newest that is taken for durable is whole. The judge
// does not count those that are open.
void DoubtNewest(const StepPattern& pattern, Listing& listing) {
  const auto age_of = [&](const Found& one) {
    const auto step = pattern.StepOf(one.checkpoint.name);
    return std::pair(step.ok() ? *step : std::nullopt, one.checkpoint.time);
  };
  std::vector<Found*> newest_first;
  for (Found& one : listing.found) newest_first.push_back(&one);
  std::sort(newest_first.begin(), newest_first.end(),
            [&](const Found* left, const Found* right) { return age_of(*left) > age_of(*right); });
  for (Found* one : newest_first) {
    if (!one->checkpoint.durable || one->checkpoint.open) continue;
    const auto why = WhyNotWhole("./" + one->checkpoint.name, Depth::kFormats);
    if (!why) return;
    one->checkpoint.durable = false;
    listing.notes.push_back(fmt::format("{} is not taken for durable: {}", one->checkpoint.name, *why));
  }
}

Result<Listing> ListForJudge(const Policy& policy, std::optional<uid_t> only_of, std::string& silent) {
  CAIRNFS_ASSIGN_OR_RETURN(const StepPattern pattern, StepPattern::Parse(policy.match));
  CAIRNFS_ASSIGN_OR_RETURN(CheckpointList list, ListCheckpoints(".", pattern));
  Listing listing;
  listing.notes = std::move(list.skipped);
  for (const Checkpoint& one : list.checkpoints) {
    struct stat info = {};
    if (lstat(one.path.c_str(), &info) != 0) continue;  // it went away
    Metrics metrics = ReadMetrics(one.path, policy);
    listing.notes.insert(listing.notes.end(), metrics.notes.begin(), metrics.notes.end());
    retention::Checkpoint checkpoint;
    checkpoint.name = one.name;
    checkpoint.committed = one.commit.has_value();
    checkpoint.durable = IsDurable(one);
    checkpoint.time = TimeOf(one.time);
    checkpoint.metrics = std::move(metrics.values);
    checkpoint.unknown = std::move(metrics.unknown);
    if (only_of && info.st_uid != *only_of) checkpoint.unknown = "the owner of the policy does not own it";
    const auto own_policy = ReadAttribute(one.path, CAIRNFS_XATTR_RETAIN);
    if (!own_policy.ok() || *own_policy) checkpoint.unknown = "it may be a run with a policy of its own";
    if (!CanGetNameBack(one.name)) checkpoint.unknown = kNameIsTooLong;
    retention::Protection protection = ReadProtectionAndOpen("./" + one.name, OwnOpens::kMaybe, &silent);
    const bool may_be_open = protection.open || !protection.unknown.empty();
    if (protection.unknown.empty()) protection.unknown = checkpoint.unknown;
    static_cast<retention::Protection&>(checkpoint) = std::move(protection);
    listing.found.push_back({info.st_ino, may_be_open, std::move(checkpoint)});
  }
  DoubtUncommitted(listing.found);
  DoubtNewest(pattern, listing);
  return listing;
}

void NoteEnd(Timestamp end, Timestamp now, Fates& fates) {
  if (end > now && (!fates.next || end < *fates.next)) fates.next = end;
}

// When one that stays may go though nothing is committed.
void NoteWhatMayChange(const Policy& policy, const retention::Checkpoint& one, bool may_be_open, Timestamp now,
                       Fates& fates) {
  if (one.held_until) NoteEnd(*one.held_until, now, fates);
  if (policy.keep_for) NoteEnd(retention::EndOfWait(one.time, *policy.keep_for), now, fates);
  if (!one.committed) NoteEnd(retention::EndOfWait(one.time, kSettled), now, fates);
  const bool becomes_durable = one.committed && !one.durable;
  fates.stays_for_now = fates.stays_for_now || may_be_open || becomes_durable;
}

// What went or changed meanwhile may have one stay that was to go.
void KeepWhatStaysBy(const Fates& anew, Fates& fates) {
  for (Fate& line : fates.lines) {
    if (!line.goes || line.removed) continue;
    const auto now = std::find_if(anew.lines.begin(), anew.lines.end(), [&](const Fate& other) {
      return other.inode == line.inode && other.name == line.name;
    });
    if (now != anew.lines.end() && now->goes) continue;
    line.goes = false;
    line.reason = now != anew.lines.end() ? now->reason : "somebody has renamed or removed it";
  }
}

// No checkpoint goes with something in it that does not.
void KeepSealedInside(Fate& fate) {
  const auto sealed = ReadAttribute("./" + fate.name, CAIRNFS_XATTR_SEALED_INSIDE);
  if (sealed.ok() && !*sealed) return;
  fate.goes = false;
  fate.reason = sealed.ok() ? fmt::format("'{}' in it is sealed", **sealed)
                            : "whether something in it is sealed cannot be told: " + sealed.error().message;
}

// Adds those that a rule is about; their names.
Result<std::set<std::string>> JudgeTemporaries(const Policy& policy, std::optional<uid_t> only_of, Timestamp now,
                                               std::string& silent, Fates& fates) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto rules, retention::AbandonedRules::Of(policy));
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, ListTemporaries(rules, only_of, now, silent));
  std::set<std::string> names;
  for (const FoundTemporary& one : found) {
    const std::string& name = one.temporary.name;
    const auto time = rules.TimeFor(name);
    retention::Verdict verdict = rules.Judge(one.temporary, now);
    if (!verdict.goes) {
      NoteEnd(retention::EndOfWait(one.temporary.written, *time), now, fates);
      if (one.temporary.held_until) NoteEnd(*one.temporary.held_until, now, fates);
      fates.stays_for_now = fates.stays_for_now || one.may_be_open;
    }
    fates.lines.push_back({.name = name,
                           .inode = one.inode,
                           .goes = verdict.goes,
                           .reason = std::move(verdict.reason),
                           .unwritten_for = time});
    Fate& fate = fates.lines.back();
    if (fate.goes && !CanGetNameBack(name)) {
      fate.goes = false;
      fate.reason = kNameIsTooLong;
    }
    if (fate.goes) KeepSealedInside(fate);
    names.insert(name);
  }
  return names;
}

// What cannot be listed cannot be removed either, which is told then.
void NoteKeptInside(const std::vector<retention::Glob>& globs, Fate& fate) {
  const auto kept = CountKeptInside(fate.name, globs);
  fate.kept_inside = kept.ok() ? *kept : 0;
  if (fate.kept_inside == 0) return;
  const char* entries = fate.kept_inside == 1 ? "entry in it stays" : "entries in it stay";
  fate.reason += fmt::format("; {} {} (keep-inside)", fate.kept_inside, entries);
}

}  // namespace

Result<Fates> JudgeAll(const Policy& policy, std::optional<uid_t> only_of) {
  std::string silent;
  CAIRNFS_ASSIGN_OR_RETURN(Listing listing, ListForJudge(policy, only_of, silent));
  std::vector<retention::Checkpoint> checkpoints;
  for (const Found& one : listing.found) checkpoints.push_back(one.checkpoint);
  const Timestamp now = Clock::WallTime();
  CAIRNFS_ASSIGN_OR_RETURN(const auto globs, retention::ParseGlobs(policy.keep_inside));
  CAIRNFS_ASSIGN_OR_RETURN(retention::Judgement judgement, retention::Judge(policy, checkpoints, now));
  Fates fates;
  CAIRNFS_ASSIGN_OR_RETURN(const auto temporaries, JudgeTemporaries(policy, only_of, now, silent, fates));
  fates.notes = std::move(listing.notes);
  fates.notes.insert(fates.notes.end(), judgement.notes.begin(), judgement.notes.end());
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    retention::Verdict& verdict = judgement.verdicts[i];
    if (!verdict.goes && temporaries.contains(checkpoints[i].name)) continue;
    if (verdict.step && !verdict.goes) {
      NoteWhatMayChange(policy, checkpoints[i], listing.found[i].may_be_open, now, fates);
    }
    fates.lines.push_back({.name = checkpoints[i].name,
                           .step = verdict.step,
                           .inode = listing.found[i].inode,
                           .goes = verdict.goes,
                           .reason = std::move(verdict.reason)});
    if (fates.lines.back().goes) KeepSealedInside(fates.lines.back());
    if (fates.lines.back().goes) NoteKeptInside(globs, fates.lines.back());
  }
  std::sort(fates.lines.begin(), fates.lines.end(), [](const Fate& left, const Fate& right) {
    return std::pair(left.step, left.name) > std::pair(right.step, right.name);
  });
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<LeftOver> left, FindLeft(only_of));
  for (const LeftOver& one : left) {
    fates.notes.push_back(one.Sentence());
    fates.stays_for_now = fates.stays_for_now || one.next != LeftOver::Next::kIsTold;
  }
  return fates;
}

static Result<Removal::Outcome> RemoveOne(const Policy& policy, const Fate& line) {
  if (!line.unwritten_for) return Removal(OwnOpens::kMaybe, policy.keep_inside).Remove(line.name, line.inode);
  const auto was_written = [&](const std::string& name) -> std::string {
    WalkLimits limits{.enough = Clock::WallTime()};
    limits.enough.seconds -= line.unwritten_for->count();
    const auto written = LastWritten(name, limits);
    if (!written.ok()) return written.error().message;
    return *written > limits.enough ? "something was written below it meanwhile" : "";
  };
  return Removal(OwnOpens::kMaybe, {}).Remove(line.name, line.inode, was_written);
}

Status RemoveAll(const Policy& policy, Fates& fates, const Removing& removing) {
  Status first;
  auto stale_at = Clock::Now() + kJudgementLasts;
  // The oldest first: who is killed meanwhile has removed what is needed least. Temporary ones last, as it may take
  // long to look at them.
  std::vector<Fate*> in_order;
  for (const bool are_temporary : {false, true}) {
    for (auto line = fates.lines.rbegin(); line != fates.lines.rend(); ++line) {
      if (line->unwritten_for.has_value() == are_temporary) in_order.push_back(&*line);
    }
  }
  for (Fate* line : in_order) {
    if (!line->goes) continue;
    if (!removing.is_wanted()) {
      fates.stays_for_now = true;
      break;
    }
    if (const auto begun = Clock::Now(); begun >= stale_at) {
      CAIRNFS_ASSIGN_OR_RETURN(const Fates anew, removing.judge());
      KeepWhatStaysBy(anew, fates);
      const auto now = Clock::Now();
      stale_at = now + std::max<Clock::duration>(kJudgementLasts, kJudgingShare * (now - begun));
      if (!line->goes) continue;
    }
    const auto outcome = RemoveOne(policy, *line);
    if (!outcome.ok()) {
      line->reason = outcome.error().message;
      if (first.ok()) first = MakeError(outcome.error().code, Printable(line->reason));  // it names files of others
    } else {
      line->removed = line->goes = outcome->removed;
      if (!outcome->removed) line->reason = outcome->why_not;
      fates.stays_for_now = fates.stays_for_now || !outcome->removed;
    }
    removing.tell(*line);
  }
  return first;
}

}  // namespace cairnfs::tools
