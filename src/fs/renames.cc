// Renames on a host alone: of a file in order after its bytes, of a directory once all below it is durable.
#include <sys/stat.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/failpoint.h"
#include "base/log.h"
#include "fs/lost_files.h"
#include "fs/name_changes.h"

namespace cairnfs::fs {
namespace {

Failpoint rename_data_durable("fs.rename_data_durable", Failpoint::Kind::kKill);
Failpoint rename_committed("fs.rename_committed", Failpoint::Kind::kKill);

}  // namespace

// The answer to a rename that was made and should be durable now. One that is not fails, and the kernel then keeps the
// names as they were: so do we. Where the old target is gone the rename stays, and the answer is kInterrupted, upon
// which the kernel looks both names up again: it would else take the new file for the one under the old name, and who
// tries again would truncate it. Who was killed meanwhile has no use for an answer, and the kernel shall know the new
// names.
Status LocalNameChanges::Finish(const meta::RenameParams& params, bool replaced, const Status& durable) {
  if (durable.ok() || durable.error().code == ErrorCode::kInterrupted) return {};
  const auto stays = [&] {
    return MakeError(ErrorCode::kInterrupted, "the rename is made and not durable: " + durable.error().message);
  };
  if (replaced) {
    spdlog::error("rename of '{}' to '{}' is made and not durable: {}", params.from_name, params.to_name,
                  durable.error().message);
    return stays();
  }
  if (params.unnamed) return stays();
  meta::RenameParams back{params.to_parent, params.to_name, params.from_parent, params.from_name,
                          params.mode == meta::RenameMode::kExchange ? params.mode : meta::RenameMode::kNoReplace};
  if (params.seals && params.expected_from) {
    meta::Namespace& names = at().parts.names;
    static_cast<void>(names.SetSeal({}, *params.expected_from, meta::SealState::kNone).ok());
    // The rename that is made instead seals it.
    if (!params.wants_seal)
      static_cast<void>(names.SetSeal({}, *params.expected_from, meta::SealState::kAtCommit).ok());
  }
  if (auto undone = Commit({}, back); !undone.ok()) {
    spdlog::error("rename of '{}' to '{}' is not durable and could not be undone: {}", params.from_name, params.to_name,
                  undone.error().message);
    return stays();
  }
  return durable;
}

void LocalNameChanges::Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  auto rename = [this, params, caller, done = std::move(done)](const Status& admitted) {
    if (!admitted.ok()) return done(admitted);
    RenameAdmitted(params, caller, done);
  };
  at().room.WhenAdmitted(ChangeOf(params), caller.uid, std::move(rename));
}

void LocalNameChanges::RenameAdmitted(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  auto source = LookUpSource({}, params);
  if (!source.ok()) return done(source.error());
  bool directory = S_ISDIR(source->mode);
  Files files{source->inode};
  if (!directory && params.mode == meta::RenameMode::kExchange) {
    auto target = at().parts.names.Lookup({}, params.to_parent, params.to_name);
    if (!target.ok()) return done(target.error());
    directory = S_ISDIR(target->mode);
    files.push_back(target->inode);
  }
  if (SealsInstead(params, *source, caller, done)) return;
  if (directory) return RenameDirectory(params, caller, std::move(done));
  if (at().options.durable_file_rename) return RenameFileDurably(params, files, caller, std::move(done));
  RenameFile(params, files, caller, std::move(done));
}

// A file that is not whole must not take the place of a good one, of which a crash would leave nothing: it gets no new
// name for as long as that is so.
Status LocalNameChanges::PrepareForNewNames(const Files& files) {
  for (InodeId id : files) {
    CAIRNFS_RETURN_IF_ERROR(PrepareForNewName(id));
    InodePtr inode = at().table.Find(id);
    if (!inode) continue;
    MutexLock lock(inode->mutex);
    const auto why = inode->content ? inode->content->WhyNotWhole() : std::nullopt;
    if (!why) continue;
    at().error_names.Note(id);
    return why->WithContext("inode " + std::to_string(id.value));
  }
  return {};
}

bool LocalNameChanges::MayFindNoRoom(const Files& files) {
  if (!at().room.MayBeShort()) return false;
  return std::any_of(files.begin(), files.end(), [&](InodeId id) {
    InodePtr inode = at().table.Find(id);
    if (!inode) return false;
    MutexLock lock(inode->mutex);
    return inode->content && inode->content->changed;
  });
}

void LocalNameChanges::RenameFile(const meta::RenameParams& params, const Files& files, const Caller& caller,
                                  Done<void> done) {
  if (!MayFindNoRoom(files)) return RenameWhenAdmitted(params, files, std::move(done));
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  // A round ends once it is known how their bytes fared. How those of others did is no reason to refuse this rename,
  // and not for this caller to be told; one that failed may not have come to these.
  auto rename = [this, params, files, done = std::move(done)](const Status& round) {
    if (!round.ok() && (round.error().code == ErrorCode::kInterrupted || MayFindNoRoom(files))) return done(round);
    RenameWhenAdmitted(params, files, done);
  };
  at().rounds.Request(at().waits.Within(caller.context, std::move(rename)), SyncRounds::Scope::kNames);
}

void LocalNameChanges::RenameWhenAdmitted(const meta::RenameParams& params, const Files& files, Done<void> done) {
  at().rounds.WhenAdmitted(NameChange::kAlters, [this, params, files, done = std::move(done)](Status admitted) {
    if (admitted.ok()) admitted = PrepareForNewNames(files);  // it may have waited for a round
    if (!admitted.ok()) return done(admitted);
    auto renamed = Commit({}, params);
    done(renamed.ok() ? Status() : Status(renamed.error()));
  });
}

std::vector<meta::RefusalCause> LocalNameChanges::CausesOf(const meta::RenameParams& params) {
  std::vector<meta::RefusalCause> causes;
  if (auto lost = at().lost.FindMoved({}, params); lost.ok()) causes = *std::move(lost);
  const auto failed = at().rounds.FailedFiles();
  std::set<InodeId> inodes;
  for (const auto& [inode, why] : failed) inodes.insert(inode);
  const auto moved = FindMoved({}, at().parts.names, params, inodes);
  if (!moved.ok()) return causes;
  for (const auto& [inode, path] : *moved) causes.push_back({.file = path, .why = failed.at(inode).message});
  return causes;
}

std::string LocalNameChanges::NoteRefused(const meta::RenameParams& params, const Caller& caller,
                                          std::vector<meta::RefusalCause> causes) {
  meta::RefusedCommit refused{.at = Clock::WallTime(), .uid = caller.uid, .causes = std::move(causes)};
  if (const auto source = at().parts.names.Lookup({}, params.from_parent, params.from_name); source.ok()) {
    refused.source = source->inode;
  }
  refused.directory = at().parts.names.PathOf({}, params.from_parent, params.from_name);
  std::string said = refused.JoinCauses();
  at().commits.refusals().Note(std::move(refused));
  return said;
}

Status LocalNameChanges::CheckNoneLost(const meta::RenameParams& params, const Caller& caller) {
  CAIRNFS_ASSIGN_OR_RETURN(auto lost, at().lost.FindMoved({}, params));
  if (lost.empty()) return {};
  return MakeError(ErrorCode::kIo, NoteRefused(params, caller, std::move(lost)));
}

void LocalNameChanges::Refuse(const meta::RenameParams& params, const Caller& caller, const Error& why) {
  if (why.code == ErrorCode::kInterrupted) return;
  std::vector<meta::RefusalCause> causes{{.why = why.message}};
  std::ranges::move(CausesOf(params), std::back_inserter(causes));
  NoteRefused(params, caller, std::move(causes));
}

// In the order of a directory's rename: what fails before the new name is shown leaves everything as it was.
void LocalNameChanges::RenameFileDurably(const meta::RenameParams& params, const Files& files, const Caller& caller,
                                         Done<void> done) {
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  auto commit = [this, params, files, caller, done = std::move(done)](Status durable) {
    if (durable.ok()) durable = PrepareForNewNames(files);  // what was written meanwhile
    if (!durable.ok()) return done(durable);
    auto renamed = Commit({}, params);
    if (!renamed.ok()) return done(renamed.error());
    auto finish = [this, params, replaced = renamed->replaced.has_value(), done](const Status& named) {
      done(Finish(params, replaced, named));
    };
    at().rounds.Request(at().waits.Within(caller.context, std::move(finish)), SyncRounds::Scope::kNames);
  };
  at().rounds.Request(at().waits.Within(caller.context, std::move(commit)));
}

// Waits until everything written before is durable, shows the new name, and makes that durable too.
void LocalNameChanges::RenameDirectory(meta::RenameParams params, const Caller& caller, Done<void> done) {
  at().commits.AddTo(params, caller);
  auto commit = [this, params, caller, begun = Clock::Now(), done = std::move(done)](Status durable) mutable {
    if (durable.ok()) {
      rename_data_durable.Pass();
      durable = CheckNoneLost(params, caller);
    } else {
      Refuse(params, caller, durable.error());
    }
    if (!durable.ok()) return done(durable);
    auto renamed = Commit({}, params);
    if (!renamed.ok()) return done(renamed.error());
    rename_committed.Pass();
    // Only the name has to become durable yet: what has no space meanwhile is others', and no reason to deny what has
    // happened.
    auto finish = [this, params, caller, begun, result = *renamed, done = std::move(done)](const Status& named) {
      const Status finished = Finish(params, result.replaced.has_value(), named);
      if (finished.ok()) {
        at().commits.NoteCommitted(
            result.committed,
            {.uid = caller.uid, .took = Clock::Now() - begun, .waited_for_it = !at().tickets.IsRenaming(result.moved)});
        at().fills_ahead.NoteCommitted(params.to_parent, result.committed);
      } else {
        // kInterrupted: it stays.
        if (finished.error().code != ErrorCode::kInterrupted) at().commits.Withdraw(result.committed);
        Refuse(params, caller, finished.error());
      }
      done(finished);
    };
    Sync(caller, SyncRounds::Scope::kNames, std::move(finish));
  };
  Sync(caller, SyncRounds::Scope::kCommit, std::move(commit));
}

}  // namespace cairnfs::fs
