// QuotaUsage: all quotas, and what is published of what counts for them, as this host has heard of it. Fed with the
// keys that quota_records.h describes; knows no store.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "kv/store.h"
#include "meta/quota_records.h"

namespace cairnfs::fs {

// Any thread.
class QuotaUsage {
 public:
  struct Quota {
    meta::QuotaRecord record;
    uint64_t record_revision = 0;
    meta::QuotaBytes used;                                    // by what is published
    std::map<std::string, meta::QuotaBytes> shares;           // of hosts, by their node's id
    uint64_t revision = 0;                                    // of the store, as of which this holds
    meta::QuotaBytes SharesBut(std::string_view node) const;  // the sum of the others'
  };

  // Of that, what each write is compared with.
  struct Standing {
    meta::QuotaBytes limit, used;
    uint64_t record_revision = 0;
    bool Fits(const meta::QuotaBytes& bytes) const;  // beside what is published; no bytes always do
  };

  // A key has this value since that revision of the store; nullopt: none. Older news of a key that is there are
  // dropped: so whoever reads the keys first, and then tells of all changes since, in their order, has it right in the
  // end. What does not decode counts as gone: a check tells of it.
  void Note(std::string_view key, const std::optional<std::string_view>& value, uint64_t revision);
  // This host has removed the file: it counts no more, though the news of that come later.
  void NoteGone(InodeId inode);
  // All news up to that revision were told.
  void NoteRevision(uint64_t revision);
  // Takes over all that `fresh` knows, in place of what is known here, as of that revision.
  void Exchange(QuotaUsage& fresh, uint64_t revision);

  bool any() const;
  std::optional<Quota> Find(InodeId quota) const;
  std::optional<Standing> StandingOf(InodeId quota) const;  // nullopt: there is no such quota
  std::vector<std::pair<InodeId, Quota>> All() const;
  meta::QuotaBytes Of(InodeId quota, InodeId inode) const;  // what is published of a file
  uint64_t revision() const;
  // Waits until news of that revision were told. False: the context expired first.
  bool AwaitRevision(const Context& context, uint64_t revision) const;

 private:
  struct File {
    InodeId quota;
    meta::QuotaBytes bytes;
    uint64_t revision = 0;
  };
  struct Sums {
    Quota quota;
    std::map<std::string, uint64_t> share_revisions;
    bool exists = false;  // else files count for one that is gone, or not heard of yet
  };
  struct Table {
    size_t count = 0;  // of quotas that exist
    std::map<InodeId, Sums> quotas;
    std::unordered_map<InodeId, File> files;  // all that count for one
  };
  void NoteFile(InodeId inode, const std::optional<std::string_view>& value, uint64_t revision) REQUIRES_LOCK(mutex_);
  void NoteQuota(InodeId directory, const std::optional<std::string_view>& value, uint64_t revision)
      REQUIRES_LOCK(mutex_);
  void NoteShare(const meta::QuotaShareKeyParts& key, const std::optional<std::string_view>& value, uint64_t revision)
      REQUIRES_LOCK(mutex_);
  const Sums* FindSums(InodeId quota) const REQUIRES_LOCK(mutex_);  // null: there is no such quota
  void Drop(InodeId quota) REQUIRES_LOCK(mutex_);                   // what is kept of it, if that says nothing
  Quota Now(const Sums& sums) const REQUIRES_LOCK(mutex_);

  mutable Mutex mutex_;  // after those of stores
  mutable CondVar told_;
  uint64_t revision_ GUARDED_BY(mutex_) = 0;
  Table table_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
