// Renames: of a file in order after its bytes, of a directory once all below it is durable.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

Failpoint rename_data_durable("fs.rename_data_durable", Failpoint::Kind::kKill);
Failpoint rename_committed("fs.rename_committed", Failpoint::Kind::kKill);

// More than others write to the disk between two looks at its room, 100 ms.
constexpr uint64_t kPlentyBytes = 256 * kMiB;
// So long after bytes found no room the meter is not relied on.
constexpr std::chrono::seconds kNoRoomHolds{10};

}  // namespace

Result<bool> FileSystem::Impl::CommitRename(const meta::RenameParams& params) {
  SyncRounds::Operation operation(*rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::RenameResult result, parts.names.Rename(params));
  if (result.replaced) NoteRemoved(*result.replaced);
  return result.replaced.has_value();
}

// The answer to a rename that was made and should be durable now. One that is not fails, and the kernel then keeps the
// names as they were: so do we. Where the old target is gone the rename stays, and the answer is kInterrupted, upon
// which the kernel looks both names up again: it would else take the new file for the one under the old name, and who
// tries again would truncate it. Who was killed meanwhile has no use for an answer, and the kernel shall know the new
// names.
Status FileSystem::Impl::FinishRename(const meta::RenameParams& params, bool replaced, const Status& durable) {
  if (durable.ok() || durable.error().code == ErrorCode::kInterrupted) return {};
  const auto stays = [&] {
    return MakeError(ErrorCode::kInterrupted, "the rename is made and not durable: " + durable.error().message);
  };
  if (replaced) {
    spdlog::error("rename of '{}' to '{}' is made and not durable: {}", params.from_name, params.to_name,
                  durable.error().message);
    return stays();
  }
  meta::RenameParams back{params.to_parent, params.to_name, params.from_parent, params.from_name,
                          params.mode == meta::RenameMode::kExchange ? params.mode : meta::RenameMode::kNoReplace};
  if (auto undone = CommitRename(back); !undone.ok()) {
    spdlog::error("rename of '{}' to '{}' is not durable and could not be undone: {}", params.from_name, params.to_name,
                  undone.error().message);
    return stays();
  }
  return durable;
}

void FileSystem::Rename(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  if (impl_->host != nullptr) return impl_->RenameShared(params, caller, std::move(done));
  auto source = impl_->parts.names.Lookup(params.from_parent, params.from_name);
  if (!source.ok()) return done(source.error());
  bool directory = (source->mode & S_IFMT) == S_IFDIR;
  std::vector<InodeId> files{source->inode};
  if (!directory && params.mode == meta::RenameMode::kExchange) {
    auto target = impl_->parts.names.Lookup(params.to_parent, params.to_name);
    if (!target.ok()) return done(target.error());
    directory = (target->mode & S_IFMT) == S_IFDIR;
    files.push_back(target->inode);
  }
  if (directory) return impl_->RenameDirectory(params, caller, std::move(done));
  if (impl_->options.durable_file_rename) return impl_->RenameFileDurably(params, files, caller, std::move(done));
  impl_->RenameFile(params, files, caller, std::move(done));
}

Status FileSystem::Impl::PrepareForNewNames(std::span<const InodeId> files) {
  for (InodeId id : files) CAIRNFS_RETURN_IF_ERROR(PrepareForNewName(id));
  return {};
}

// Whatever round takes the new name of a file takes every byte written before it. The error of a write that failed and
// that nobody was told is told now; so is that of the disk, which will take neither the bytes nor the name.
Status FileSystem::Impl::PrepareForNewName(InodeId id) {
  if (auto failure = rounds->DiskFailure()) return *failure;
  InodePtr inode = table.Find(id);
  if (!inode) return {};
  MutexLock lock(inode->mutex);
  if (inode->error && !inode->error_told) {
    inode->error_told = true;
    return *inode->error;
  }
  if (!inode->content) return {};
  // One that is not whole must not take the place of a good file, of which a crash would leave nothing: it gets no new
  // name for as long as that is so. Among other hosts the round that a rename waits for tells (CheckPublished).
  if (host == nullptr) {
    if (auto why = inode->content->WhyNotWhole()) {
      error_names->Note(id);
      return why->WithContext("inode " + std::to_string(id.value));
    }
  }
  inode->content->must_publish = true;
  return {};
}

// Whether bytes of the files, or their recipes, that are still on their way to the disk may find no room there: what
// was reserved for them is an estimate, and the disk has other users.
bool FileSystem::Impl::MayFindNoRoom(std::span<const InodeId> files) {
  const bool was_short = Clock::Now() - no_room_at.load() < kNoRoomHolds;
  if (!was_short && parts.local_chunks.AvailableBytes() >= kPlentyBytes) return false;
  return std::any_of(files.begin(), files.end(), [&](InodeId id) {
    InodePtr inode = table.Find(id);
    if (!inode) return false;
    MutexLock lock(inode->mutex);
    return inode->content && inode->content->changed;
  });
}

void FileSystem::Impl::RenameFile(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                  const Caller& caller, Done<void> done) {
  if (!MayFindNoRoom(files)) return RenameWhenAdmitted(params, files, std::move(done));
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  // A round ends once it is known how their bytes fared. How those of others did is no reason to refuse this rename,
  // and not for this caller to be told; one that failed may not have come to these.
  auto rename = [this, params, files, done = std::move(done)](const Status& round) {
    if (!round.ok() && (round.error().code == ErrorCode::kInterrupted || MayFindNoRoom(files))) return done(round);
    RenameWhenAdmitted(params, files, done);
  };
  rounds->Request(UnlessKilled(caller, std::move(rename)), SyncRounds::Scope::kNames);
}

void FileSystem::Impl::RenameWhenAdmitted(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                          Done<void> done) {
  rounds->WhenAdmitted(NameChange::kAlters, [this, params, files, done = std::move(done)](Status admitted) {
    if (admitted.ok()) admitted = PrepareForNewNames(files);  // it may have waited for a round
    if (!admitted.ok()) return done(admitted);
    auto renamed = CommitRename(params);
    done(renamed.ok() ? Status() : Status(renamed.error()));
  });
}

// In the order of a directory's rename: what fails before the new name is shown leaves everything as it was.
void FileSystem::Impl::RenameFileDurably(const meta::RenameParams& params, const std::vector<InodeId>& files,
                                         const Caller& caller, Done<void> done) {
  if (Status ready = PrepareForNewNames(files); !ready.ok()) return done(ready);
  auto commit = [this, params, files, caller, done = std::move(done)](Status durable) {
    if (durable.ok()) durable = PrepareForNewNames(files);  // what was written meanwhile
    if (!durable.ok()) return done(durable);
    auto renamed = CommitRename(params);
    if (!renamed.ok()) return done(renamed.error());
    auto finish = [this, params, replaced = *renamed, done](const Status& named) {
      done(FinishRename(params, replaced, named));
    };
    rounds->Request(UnlessKilled(caller, std::move(finish)), SyncRounds::Scope::kNames);
  };
  rounds->Request(UnlessKilled(caller, std::move(commit)));
}

void FileSystem::Impl::NoteLost(const InodePtr& inode) {
  if (inode->unlinked) return;
  MutexLock lock(lost_mutex);
  // Held for as long as it has lost bytes: they are remembered nowhere else.
  if (lost_inodes.insert(inode->id).second) table.Hold(inode->id);
}

void FileSystem::Impl::ForgetLostInode(InodeId id) {
  {
    MutexLock lock(lost_mutex);
    if (lost_inodes.erase(id) == 0) return;  // somebody else did
  }
  if (InodePtr inode = table.Find(id)) table.Unhold(inode);
}

std::set<InodeId> FileSystem::Impl::LostInodes() {
  std::set<InodeId> known;
  {
    MutexLock lock(lost_mutex);
    known = lost_inodes;
  }
  for (InodeId id : std::set<InodeId>(known)) {
    InodePtr inode = table.Find(id);
    bool forgotten = false;
    if (inode) {
      MutexLock lock(inode->mutex);
      if (inode->content && !inode->content->lost.empty() && !inode->unlinked) continue;
      MutexLock list(lost_mutex);
      forgotten = lost_inodes.erase(id) > 0;  // if not, somebody else did
    }
    known.erase(id);
    if (forgotten) table.Unhold(inode);
  }
  return known;
}

Result<std::map<InodeId, std::string>> FileSystem::Impl::FindNames(InodeId directory, std::set<InodeId> inodes) {
  constexpr size_t kEntriesPerRead = 1024;
  std::map<InodeId, std::string> found;
  std::vector<std::pair<InodeId, std::string>> todo{{directory, ""}};
  while (!todo.empty() && !inodes.empty()) {
    auto [inode, path] = std::move(todo.back());
    todo.pop_back();
    std::string after;
    for (;;) {
      CAIRNFS_ASSIGN_OR_RETURN(auto entries, parts.names.ReadDirectory(inode, after, kEntriesPerRead));
      if (entries.empty()) break;
      for (const meta::DirectoryEntry& entry : entries) {
        if (inodes.erase(entry.inode) > 0) found.emplace(entry.inode, path + entry.name);
        if (entry.type == S_IFDIR) todo.emplace_back(entry.inode, path + entry.name + "/");
      }
      after = entries.back().name;
    }
  }
  return found;
}

Status FileSystem::Impl::CheckNothingLost(const meta::RenameParams& params) {
  std::set<InodeId> lost = LostInodes();
  if (lost.empty()) return {};
  auto check = [&](InodeId parent, const std::string& name) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.Lookup(parent, name));
    std::optional<std::string> path;
    if (lost.contains(attr.inode)) path = name;
    if ((attr.mode & S_IFMT) == S_IFDIR) {
      CAIRNFS_ASSIGN_OR_RETURN(auto below, FindNames(attr.inode, lost));
      if (!below.empty()) path = name + "/" + below.begin()->second;
    }
    if (!path) return {};
    return MakeError(ErrorCode::kIo,
                     "bytes of '" + *path + "' could not be stored and are lost: write the file again or remove it");
  };
  CAIRNFS_RETURN_IF_ERROR(check(params.from_parent, params.from_name));
  if (params.mode != meta::RenameMode::kExchange) return {};
  return check(params.to_parent, params.to_name);
}

// Waits until everything written before is durable, shows the new name, and makes that durable too.
void FileSystem::Impl::RenameDirectory(const meta::RenameParams& params, const Caller& caller, Done<void> done) {
  auto commit = [this, params, caller, done = std::move(done)](Status durable) mutable {
    if (durable.ok()) {
      rename_data_durable.Pass();
      durable = CheckNothingLost(params);
    }
    if (!durable.ok()) {
      spdlog::error("rename of '{}' to '{}' refused: {}", params.from_name, params.to_name, durable.error().message);
      return done(durable);
    }
    auto renamed = CommitRename(params);
    if (!renamed.ok()) return done(renamed.error());
    rename_committed.Pass();
    // Only the name is still owed: what has no space meanwhile is others', and no reason to deny what has happened.
    auto finish = [this, params, replaced = *renamed, done = std::move(done)](const Status& named) {
      done(FinishRename(params, replaced, named));
    };
    RequestUnlessCancelled(caller, std::move(finish), SyncRounds::Scope::kNames);
  };
  RequestUnlessCancelled(caller, std::move(commit));
}

}  // namespace cairnfs::fs
