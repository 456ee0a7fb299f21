#include "fs/quota_walk.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr ptrdiff_t kWalkedAtOnce = 512;
constexpr size_t kWalkedKeysPerRead = 100;
constexpr size_t kLinkedMax = 1'000'000;  // files with several names that are kept in mind

// What is gone meanwhile needs nothing.
Status UnlessGone(Status status) {
  if (status.ok()) return status;
  const ErrorCode code = status.error().code;
  const bool is_gone = code == ErrorCode::kNotFound || code == ErrorCode::kStale || code == ErrorCode::kNotDirectory;
  return is_gone ? Status() : status;
}

// Of one file, and the same when it is tried again.
bool IsOfContent(const Error& error) { return error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kIo; }

}  // namespace

Result<std::vector<QuotaWalk::Child>> QuotaWalk::List(const Context& context, InodeId directory) {
  const std::string prefix = meta::DentryPrefix(directory);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, at_.parts.kv.Range(context, prefix, kv::PrefixEnd(prefix), 0));
  std::vector<Child> children;
  for (const kv::KvEntry& entry : range.entries) {
    const auto dentry = meta::DentryRecord::Decode(entry.value);
    if (!dentry.ok()) return dentry.error().WithContext("directory " + std::to_string(directory.value));
    if (dentry->type != S_IFREG && dentry->type != S_IFDIR) continue;
    children.push_back({entry.key.substr(prefix.size()), dentry->inode, dentry->type});
  }
  return children;
}

Status QuotaWalk::Visit(const Context& context, InodeId directory, std::vector<InodeId>& directories,
                        const std::function<Status(const std::vector<Child>& files)>& visit) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Child> children, List(context, directory));
  std::vector<Child> files;
  for (auto child = children.begin(); child != children.end();) {
    const auto end = child + std::min(kWalkedAtOnce, children.end() - child);
    files.clear();
    for (; child != end; ++child) {
      if (child->type == S_IFDIR) directories.push_back(child->inode);
      if (child->type == S_IFREG) files.push_back(*child);
      count_++;
    }
    CAIRNFS_RETURN_IF_ERROR(visit(files));
    CAIRNFS_RETURN_IF_ERROR(go_on_(count_));
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "the caller is gone");
  }
  return {};
}

Status QuotaWalk::AddFiles(const Context& context, const std::vector<Child>& files, Sums& sums) {
  std::vector<std::string> keys;
  for (const Child& file : files) {
    keys.push_back(meta::InodeKey(file.inode));
    keys.push_back(meta::FileKey(file.inode));
  }
  bool counts = true;  // of a file with several names its bytes count once
  return kv::ReadKeys(
      context, at_.parts.kv, keys, kWalkedKeysPerRead, [&](size_t index, const kv::KvEntry* entry) -> Status {
        const Child& file = files[index / 2];
        if (index % 2 == 0) {
          counts = entry != nullptr;
          if (!counts) return {};
          CAIRNFS_ASSIGN_OR_RETURN(const meta::InodeRecord record, meta::InodeRecord::Decode(entry->value));
          if (record.nlink <= 1) return {};
          Link& link = sums.links[file.inode];
          counts = link.found++ == 0;
          link.all = record.nlink;
          link.name = file.name;
          if (sums.links.size() <= kLinkedMax) return {};
          return MakeError(ErrorCode::kTooLarge,
                           "more than " + std::to_string(kLinkedMax) + " files below the directory have several names");
        }
        if (entry == nullptr || !counts) return {};
        const auto record = meta::FileRecord::Decode(entry->value);
        if (!record.ok()) return record.error().WithContext("inode " + std::to_string(file.inode.value));
        sums.survey.used.logical += record->allocated_bytes;
        sums.survey.used.unique += record->unique_bytes;
        return {};
      });
}

Result<QuotaWalk::Survey> QuotaWalk::Look(const Context& context, InodeId directory) {
  Sums sums;
  std::vector<InodeId> directories{directory};
  while (!directories.empty()) {
    const InodeId next = directories.back();
    directories.pop_back();
    CAIRNFS_RETURN_IF_ERROR(Visit(context, next, directories,
                                  [&](const std::vector<Child>& files) { return AddFiles(context, files, sums); }));
  }
  for (const auto& [inode, link] : sums.links) {
    if (link.found < link.all) sums.survey.linked_from_outside = link.name;
  }
  return sums.survey;
}

Status QuotaWalk::SetRecord(const Context& context, InodeId inode, InodeId quota) {
  SyncRounds::Operation operation(at_.rounds);
  return UnlessGone(at_.parts.names.SetQuota(context, inode, quota));
}

void QuotaWalk::MoveContent(const Services& at, const Context& context, InodeId id, InodeId quota, Done<void> done) {
  InodePtr inode = at.table.Hold(id);
  auto apply = [quota](Content& content) -> Status {
    content.quota = quota;
    content.quota_is_set = true;  // also of a file without a record: another host may be about to publish one
    content.must_publish = true;
    return {};
  };
  Caller caller;
  caller.context = context;
  FileChange change{.inode = inode, .apply = std::move(apply), .publishes = true, .caller = std::move(caller)};
  at.sharing.Change(std::move(change), [&table = at.table, inode, done = std::move(done)](const Status& status) {
    table.Unhold(inode);
    done(UnlessGone(status));
  });
}

// Names are compared by the records of inodes, and bytes count by those of contents. So a file that is only half moved
// may be counted for none, and is never in two places.
Status QuotaWalk::MoveFiles(const Context& context, const std::vector<Child>& files, InodeId quota) {
  struct Waiting {
    Mutex mutex;
    CondVar changed;
    size_t count GUARDED_BY(mutex) = 0;
    Status status GUARDED_BY(mutex);
    Unread unread GUARDED_BY(mutex);
  };
  auto waiting = std::make_shared<Waiting>();
  Status status;
  for (const Child& file : files) {
    if (quota.value != 0) status = SetRecord(context, file.inode, quota);
    if (!status.ok()) break;  // those before it are under way still
    {
      MutexLock lock(waiting->mutex);
      waiting->count++;
    }
    MoveContent(at_, context, file.inode, quota, [waiting, inode = file.inode](const Status& moved) {
      MutexLock lock(waiting->mutex);
      waiting->count--;
      waiting->changed.NotifyAll();
      if (moved.ok()) return;
      const Error why = moved.error().WithContext("inode " + std::to_string(inode.value));
      if (!IsOfContent(why)) {
        if (waiting->status.ok()) waiting->status = why;
      } else if (waiting->unread.count++ == 0) {
        waiting->unread.first = why;
      }
    });
  }
  {
    MutexLock lock(waiting->mutex);
    while (waiting->count > 0) waiting->changed.Wait(waiting->mutex);
    if (status.ok()) status = waiting->status;
    unread_.count += waiting->unread.count;
    if (!unread_.first) unread_.first = waiting->unread.first;
  }
  CAIRNFS_RETURN_IF_ERROR(status);
  CAIRNFS_RETURN_IF_ERROR(files.empty() ? Status() : at_.rounds.RequestAndWait());
  for (const Child& file : files) {
    if (quota.value == 0) CAIRNFS_RETURN_IF_ERROR(SetRecord(context, file.inode, quota));
  }
  return {};
}

Status QuotaWalk::Move(const Context& context, InodeId directory, InodeId quota) {
  std::vector<InodeId> directories{directory};
  while (!directories.empty()) {
    const InodeId next = directories.back();
    directories.pop_back();
    if (next != directory && at_.quotas.usage().StandingOf(next)) {
      if (quota.value == 0) continue;
      return InvalidArgument("'" + at_.parts.names.PathOfInode(context, next) +
                             "', which has a quota of its own, was moved below it meanwhile: take one of the two off");
    }
    CAIRNFS_RETURN_IF_ERROR(SetRecord(context, next, quota));
    CAIRNFS_RETURN_IF_ERROR(Visit(context, next, directories,
                                  [&](const std::vector<Child>& files) { return MoveFiles(context, files, quota); }));
  }
  return TellUnread(directory, quota);
}

Status QuotaWalk::TellUnread(InodeId directory, InodeId quota) const {
  if (unread_.count == 0) return {};
  const std::string count = std::to_string(unread_.count);
  if (quota.value != 0) {
    return unread_.first->WithContext(count + " files cannot be read and do not count: remove them, and set it again");
  }
  spdlog::warn("{} files below inode {}, which has a quota no more, cannot be read; the first: {}", count,
               directory.value, unread_.first->message);
  return {};
}

}  // namespace cairnfs::fs
