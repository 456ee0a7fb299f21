// Inodes without a link. They keep their records until nobody has them open, then all of those go at once.
#include <span>

#include "base/failpoint.h"
#include "meta/access.h"
#include "meta/look_ahead.h"

namespace cairnfs::meta {
namespace {

Failpoint orphan_removed("meta.orphan_removed", Failpoint::Kind::kKill);

constexpr size_t kPageEntries = 1024;
constexpr size_t kBatchOperationsMax = 1024;  // so that one batch does not hold up other commits for long
constexpr size_t kBatchBytesMax = 256 * kKiB;
constexpr size_t kOwnKeys = 4;  // I, D, T, O
// Where a round trip costs as much as all else: four spans each, and etcd takes 127 in one request.
constexpr size_t kFetchedAtOnce = 31;

struct Orphan {
  uint64_t inode_revision = 0;          // 0: the I record is gone already
  std::vector<std::string> xattr_keys;  // and those of pending records
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
  size_t bytes = (1 + kOwnKeys) * InodeKey(kRootInode).size();
  for (const std::string& key : orphan.xattr_keys) bytes += key.size();
  return bytes;
}

Status AddKeys(kv::KvStore& store, const std::string& prefix, std::vector<std::string>& keys) {
  std::string begin = prefix;
  for (bool more = true; more;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto range, store.Range(begin, kv::PrefixEnd(prefix), kPageEntries));
    for (kv::KvEntry& entry : range.entries) keys.push_back(std::move(entry.key));
    more = range.more && !range.entries.empty();
    if (more) begin = keys.back() + '\0';
  }
  return {};
}

// nullopt: not an orphan. `with_pending`: others may have left pending records.
Result<std::optional<Orphan>> LoadOrphan(kv::KvStore& store, InodeId inode, bool with_pending) {
  CAIRNFS_ASSIGN_OR_RETURN(auto mark, store.Get(OrphanKey(inode)));
  if (!mark) return std::optional<Orphan>();
  Orphan orphan;
  auto loaded = LoadInode(store, inode);
  if (loaded.ok()) {
    if (loaded->record.nlink > 0) return std::optional<Orphan>();
    orphan.inode_revision = loaded->revision;
  } else if (loaded.error().code != ErrorCode::kNotFound) {
    return loaded.error();
  }
  CAIRNFS_RETURN_IF_ERROR(AddKeys(store, XattrPrefix(inode), orphan.xattr_keys));
  if (with_pending) CAIRNFS_RETURN_IF_ERROR(AddKeys(store, PendingPrefix(inode), orphan.xattr_keys));
  return std::optional(std::move(orphan));
}

// Deletes xattrs in transactions of their own until what is left fits one together with the inode's own keys. A crash
// in between leaves a whole orphan with fewer xattrs, which nobody can see any more.
Status ShrinkOrphan(kv::KvStore& store, const BatchLimits& limits, Orphan& orphan) {
  while (orphan.xattr_keys.size() + kOwnKeys > limits.operations || DeleteBytes(orphan) > limits.bytes) {
    if (orphan.xattr_keys.empty()) return {};
    kv::Transaction transaction;
    size_t bytes = 0;
    while (!orphan.xattr_keys.empty() && transaction.writes.size() < limits.operations && bytes < limits.bytes / 2) {
      bytes += orphan.xattr_keys.back().size();
      transaction.Delete(std::move(orphan.xattr_keys.back()));
      orphan.xattr_keys.pop_back();
    }
    CAIRNFS_RETURN_IF_ERROR(store.Commit(transaction));
  }
  return {};
}

// What LoadOrphan asks for, in one round trip.
void LookAtOrphans(LookAhead& ahead, std::span<const InodeId> inodes) {
  for (InodeId inode : inodes) {
    ahead.Want(OrphanKey(inode));
    ahead.Want(InodeKey(inode));
    for (const std::string& prefix : {XattrPrefix(inode), PendingPrefix(inode)}) {
      ahead.WantRange(prefix, kv::PrefixEnd(prefix), kPageEntries);
    }
  }
  ahead.Fetch();
}

// Deletes as many of the inodes from `first` on as fit one transaction; returns the index of the next one.
// The compare of the I record keeps out a setxattr that came between.
Result<size_t> RemoveBatch(kv::KvStore& store, const std::vector<InodeId>& inodes, size_t first, bool with_pending) {
  const BatchLimits limits = LimitsOf(store);
  LookAhead ahead(store);
  const size_t end = with_pending ? std::min(inodes.size(), first + kFetchedAtOnce) : inodes.size();
  if (with_pending) LookAtOrphans(ahead, std::span(inodes).subspan(first, end - first));
  kv::Transaction transaction;
  size_t bytes = 0;
  size_t next = first;
  for (; next < end; next++) {
    const InodeId inode = inodes[next];
    CAIRNFS_ASSIGN_OR_RETURN(auto orphan, LoadOrphan(with_pending ? ahead : store, inode, with_pending));
    if (!orphan) continue;
    CAIRNFS_RETURN_IF_ERROR(ShrinkOrphan(store, limits, *orphan));
    const size_t operations = transaction.writes.size() + orphan->xattr_keys.size() + kOwnKeys;
    bytes += DeleteBytes(*orphan);
    if (!transaction.writes.empty() && (operations > limits.operations || bytes > limits.bytes)) break;
    transaction.IfRevision(InodeKey(inode), orphan->inode_revision)
        .Delete(InodeKey(inode))
        .Delete(FileKey(inode))
        .Delete(DirectoryTimesKey(inode))
        .Delete(OrphanKey(inode));
    for (std::string& key : orphan->xattr_keys) transaction.Delete(std::move(key));
  }
  if (!transaction.writes.empty()) {
    CAIRNFS_RETURN_IF_ERROR(store.Commit(transaction));
    orphan_removed.Pass();
  }
  return next;
}

}  // namespace

Status Namespace::RemoveOrphans(const std::vector<InodeId>& inodes) {
  for (size_t next = 0; next < inodes.size();) {
    CAIRNFS_ASSIGN_OR_RETURN(next,
                             RetryOnConflict("the removal of orphans", PaceOf(options_), [&](int) -> Result<size_t> {
                               return RemoveBatch(store_, inodes, next, options_.remote);
                             }));
  }
  return {};
}

}  // namespace cairnfs::meta
