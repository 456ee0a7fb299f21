// Inodes without a link. They keep their records until nobody has them open, then all of those go at once.
#include <sys/stat.h>

#include <span>

#include "base/failpoint.h"
#include "meta/access.h"
#include "meta/commit_record.h"
#include "meta/look_ahead.h"
#include "meta/policy_records.h"
#include "meta/quota_records.h"

namespace cairnfs::meta {
namespace {

Failpoint orphan_removed("meta.orphan_removed", Failpoint::Kind::kKill);

constexpr size_t kOrphansPerPage = 1024;
constexpr size_t kBatchOperationsMax = 1024;  // so that one batch does not hold up other commits for long
constexpr size_t kBatchBytesMax = 256 * kKiB;
constexpr size_t kOwnKeysMax = 11;  // I, D, T, O, Y, S, VW, both that begin with A, and two with WU
// For a remote store: each inode takes five spans, and etcd takes 127 in one request.
constexpr size_t kFetchedAtOnce = 25;

struct Orphan {
  uint64_t inode_revision = 0;           // 0: the I record is gone already
  bool may_have_level = false;           // a directory, among other hosts
  bool may_have_policy = false;          // a directory
  bool may_count = false;                // for a quota
  std::vector<std::string> keys_beside;  // of its xattrs, its commit and marks
};

struct BatchLimits {
  size_t operations;
  size_t bytes;
};

BatchLimits LimitsOf(const kv::KvStore& store) {
  const kv::KvLimits limits = store.limits();
  return {std::min(limits.operations_per_transaction_max, kBatchOperationsMax),
          std::min(limits.transaction_bytes_max / 2, kBatchBytesMax)};
}

size_t DeleteBytes(const Orphan& orphan) {
  size_t bytes = (1 + kOwnKeysMax) * InodeKey(kRootInode).size();
  for (const std::string& key : orphan.keys_beside) bytes += key.size();
  return bytes;
}

Status AddKeys(const Context& context, kv::KvStore& store, const std::string& prefix, std::vector<std::string>& keys) {
  std::string begin = prefix;
  for (bool more = true; more;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(context, begin, kv::PrefixEnd(prefix), kOrphansPerPage));
    for (kv::KvEntry& entry : range.entries) keys.push_back(std::move(entry.key));
    more = range.more && !range.entries.empty();
    if (more) begin = keys.back() + '\0';
  }
  return {};
}

// nullopt: not an orphan. `among_hosts`: other hosts may have left marks, and set a level.
Result<std::optional<Orphan>> LoadOrphan(const Context& context, kv::KvStore& store, InodeId inode, bool among_hosts) {
  CAIRNFS_ASSIGN_OR_RETURN(auto mark, store.Get(context, OrphanKey(inode)));
  if (!mark) return std::optional<Orphan>();
  Orphan orphan;
  auto loaded = LoadInode(context, store, inode);
  if (loaded.ok()) {
    if (loaded->record.nlink > 0) return std::optional<Orphan>();
    orphan.inode_revision = loaded->revision;
    orphan.may_have_level = among_hosts && S_ISDIR(loaded->record.mode);
    orphan.may_count = loaded->record.quota.value != 0;
  } else if (loaded.error().code != ErrorCode::kNotFound) {
    return loaded.error();
  }
  CAIRNFS_RETURN_IF_ERROR(AddKeys(context, store, XattrPrefix(inode), orphan.keys_beside));
  orphan.may_have_policy = !loaded.ok() || S_ISDIR(loaded->record.mode);
  if (orphan.may_have_policy) {
    CAIRNFS_RETURN_IF_ERROR(AddKeys(context, store, CommitKey(inode), orphan.keys_beside));
  }
  if (among_hosts) CAIRNFS_RETURN_IF_ERROR(AddKeys(context, store, MarkPrefix(inode), orphan.keys_beside));
  return std::optional(std::move(orphan));
}

// Deletes keys beside the inode's own, in transactions of their own, until the rest fits into one with these. A crash
// in between leaves a whole orphan with fewer xattrs, which nobody can see any more.
Status ShrinkOrphan(const Context& context, kv::KvStore& store, const BatchLimits& limits, Orphan& orphan) {
  while (orphan.keys_beside.size() + kOwnKeysMax > limits.operations || DeleteBytes(orphan) > limits.bytes) {
    if (orphan.keys_beside.empty()) return {};
    kv::Transaction transaction;
    size_t bytes = 0;
    while (!orphan.keys_beside.empty() && transaction.writes.size() < limits.operations && bytes < limits.bytes / 2) {
      bytes += orphan.keys_beside.back().size();
      transaction.Delete(std::move(orphan.keys_beside.back()));
      orphan.keys_beside.pop_back();
    }
    CAIRNFS_RETURN_IF_ERROR(store.Commit(context, transaction));
  }
  return {};
}

// Fetches what LoadOrphan asks for, in one round trip.
void LookAtOrphans(const Context& context, LookAhead& ahead, std::span<const InodeId> inodes) {
  for (InodeId inode : inodes) {
    ahead.Want(OrphanKey(inode));
    ahead.Want(InodeKey(inode));
    for (const std::string& prefix : {XattrPrefix(inode), CommitKey(inode), MarkPrefix(inode)}) {
      ahead.WantRange(prefix, kv::PrefixEnd(prefix), kOrphansPerPage);
    }
  }
  ahead.Fetch(context);
}

// Deletes as many of the inodes from `first` on as fit into one transaction; returns the index of the next one.
// Compares the I records, so that it fails when a setxattr came in between.
Result<size_t> RemoveBatch(const Context& context, kv::KvStore& store, const std::vector<InodeId>& inodes, size_t first,
                           bool among_hosts) {
  const BatchLimits limits = LimitsOf(store);
  LookAhead ahead(store);
  const size_t end = among_hosts ? std::min(inodes.size(), first + kFetchedAtOnce) : inodes.size();
  if (among_hosts) LookAtOrphans(context, ahead, std::span(inodes).subspan(first, end - first));
  kv::Transaction transaction;
  size_t bytes = 0;
  size_t next = first;
  for (; next < end; next++) {
    const InodeId inode = inodes[next];
    CAIRNFS_ASSIGN_OR_RETURN(auto orphan, LoadOrphan(context, among_hosts ? ahead : store, inode, among_hosts));
    if (!orphan) continue;
    CAIRNFS_RETURN_IF_ERROR(ShrinkOrphan(context, store, limits, *orphan));
    const size_t operations = transaction.writes.size() + orphan->keys_beside.size() + kOwnKeysMax;
    bytes += DeleteBytes(*orphan);
    if (!transaction.writes.empty() && (operations > limits.operations || bytes > limits.bytes)) break;
    transaction.IfRevision(InodeKey(inode), orphan->inode_revision)
        .Delete(InodeKey(inode))
        .Delete(FileKey(inode))
        .Delete(DirectoryTimesKey(inode))
        .Delete(OrphanKey(inode));
    if (orphan->may_have_level) transaction.Delete(LevelKey(inode));
    if (orphan->may_have_policy) {
      DropPolicy(inode, transaction);
      transaction.Delete(AtomicKey(inode)).Delete(QuotaKey(inode));
    }
    if (orphan->may_count) transaction.Delete(UsageKey(inode));
    for (std::string& key : orphan->keys_beside) transaction.Delete(std::move(key));
  }
  if (!transaction.writes.empty()) {
    CAIRNFS_RETURN_IF_ERROR(store.Commit(context, transaction));
    orphan_removed.Pass();
  }
  return next;
}

}  // namespace

Status Namespace::RemoveOrphans(const Context& context, const std::vector<InodeId>& inodes) {
  for (size_t next = 0; next < inodes.size();) {
    CAIRNFS_ASSIGN_OR_RETURN(
        next, RetryOnConflict(context, "the removal of orphans", PaceOf(options_), [&](int) -> Result<size_t> {
          return RemoveBatch(context, store_, inodes, next, options_.remote);
        }));
  }
  return {};
}

}  // namespace cairnfs::meta
