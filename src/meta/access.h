// What the operations share: loading records with their revisions, retrying, and the order of a directory's times.
// For src/meta alone.
//
// How operations keep each other out (docs/formats/namespace.md has the whole argument):
//  - An operation that makes a name in a directory compares the revision of the directory's I record.
//  - One that removes a directory rewrites that record with nlink 0, and compares that there are no names.
//  - One that removes a name compares the name.
// So no name is made in a directory that is gone, and no T record put for it; and creates in one directory do not
// conflict.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <string>

#include "kv/retry.h"
#include "meta/namespace.h"

namespace cairnfs::meta {

inline constexpr size_t kSymlinkTargetBytesMax = 4095;

template <typename Record>
struct Versioned {
  Record record;
  uint64_t revision = 0;
};

// A name and the inode that it leads to.
struct Entry {
  Versioned<DentryRecord> dentry;
  Versioned<InodeRecord> inode;
  InodeId id() const { return dentry.record.inode; }
};

inline bool IsDirectory(const InodeRecord& record) { return S_ISDIR(record.mode); }
inline bool IsRegular(const InodeRecord& record) { return S_ISREG(record.mode); }
inline bool IsDirectory(const Entry& entry) { return IsDirectory(entry.inode.record); }

std::string Describe(InodeId inode);                          // "inode 12"
std::string Describe(InodeId parent, std::string_view name);  // "'name' in directory 12"

// kNameTooLong, or kInvalidArgument for a name that no entry can have.
Status ValidateName(std::string_view name);

Status ValidateXattrName(std::string_view name, const NamespaceOptions& options);  // kRange
Error NoXattr(InodeId inode, std::string_view name);                               // kNoData
// A file that gets a name falls under the quota of its directory, and counts for it. On a host alone only rounds write
// what a file has: they do so late, below what was written meanwhile, which hides it.
struct FileUnderQuota {
  InodeId file, quota;
};
Status MoveFileUnderQuota(const Context& context, kv::KvStore& store, const NamespaceOptions& options,
                          const FileUnderQuota& moved, InodeRecord& inode, kv::Transaction& transaction);
// kOtherQuota. A number whose quota is gone is none: a walk that was cut short may have left it.
Status CheckSameQuota(const Context& context, kv::KvStore& store, InodeId one, InodeId other);

Result<std::optional<Versioned<DentryRecord>>> FindDentry(const Context& context, kv::KvStore& store, InodeId parent,
                                                          std::string_view name);
Result<Versioned<InodeRecord>> LoadInode(const Context& context, kv::KvStore& store, InodeId inode);  // kNotFound
// kNotDirectory; kNotFound also when the directory was removed and only waits to be forgotten.
Result<Versioned<InodeRecord>> LoadLiveDirectory(const Context& context, kv::KvStore& store, InodeId inode);
// nullopt: no such name, whether or not the directory exists.
Result<std::optional<Entry>> FindEntry(const Context& context, kv::KvStore& store, InodeId parent,
                                       std::string_view name);
Result<Entry> LoadEntry(const Context& context, kv::KvStore& store, InodeId parent,
                        std::string_view name);  // kNotFound, kNotDirectory
// The inode's attributes, with those that its D or T record holds.
Result<Attr> LoadAttr(const Context& context, kv::KvStore& store, InodeId inode, const InodeRecord& record);
// The mark that an entry of the store is.
Result<Namespace::MarkedFile> DecodeMark(const kv::KvEntry& entry);
// LoadAttr for after the commit: what cannot be read any more no longer makes the operation fail.
Attr LoadAttrOrBasics(const Context& context, kv::KvStore& store, InodeId inode, const InodeRecord& record);
// The attributes that the record alone tells.
Attr AttrOf(InodeId inode, const InodeRecord& record);
Result<bool> IsEmptyDirectory(const Context& context, kv::KvStore& store, InodeId directory);

// V, the count of moves of directories between directories: compared and increased by each.
Result<Versioned<uint64_t>> LoadMoves(const Context& context, kv::KvStore& store);
// kInvalidArgument when `directory` is `below`, or a directory above it. kNotFound: a directory above `below` is
// removed or in the trash.
Status CheckNotAbove(const Context& context, kv::KvStore& store, InodeId directory, InodeId below);

// Adds what the change of an attribute of this directory means to policies.
Status AddPolicyEffect(const Context& context, kv::KvStore& store, InodeId directory, const InodeRecord& record,
                       const PolicyEffect& effect, kv::Transaction& transaction);
void AddDirectoryEmptyCompare(kv::Transaction& transaction, InodeId directory);
void PutDirectoryTimes(kv::Transaction& transaction, InodeId directory, Timestamp now);
// Takes one link of the inode away: writes its I record, and its O record when that was the last link.
void DropLink(kv::Transaction& transaction, InodeId inode, InodeRecord& record, Timestamp now);
// Takes the last link away and puts the inode into the trash. `removed.parent` is where it lay; its other fields are
// filled in. Of a directory that goes without what was in it the record of its commit ends.
void MoveToTrash(kv::Transaction& transaction, InodeId inode, InodeRecord& record, const TrashParams& params,
                 TrashRecord removed, Timestamp now);

// Locks the stripes of one or two directories while an operation takes the time and commits. So the times of a
// directory do not run backwards, although their records are put without compares. Held across nothing but Commit.
// Where the store is remote nothing is locked: a lock over a round trip would make one host's creates in a directory
// wait for each other, and other hosts' clocks differ anyway (Namespace::TimeFor does what it can).
class DirectoryTimesLock {
 public:
  DirectoryTimesLock(std::array<Mutex, kDirectoryTimesStripes>& stripes, const NamespaceOptions& options, InodeId first,
                     InodeId second) NO_THREAD_SAFETY_ANALYSIS;
  DirectoryTimesLock(std::array<Mutex, kDirectoryTimesStripes>& stripes, const NamespaceOptions& options,
                     InodeId directory)
      : DirectoryTimesLock(stripes, options, directory, directory) {}
  ~DirectoryTimesLock() NO_THREAD_SAFETY_ANALYSIS;
  DirectoryTimesLock(const DirectoryTimesLock&) = delete;

 private:
  Mutex* low_;   // null: nothing is held
  Mutex* high_;  // null when both stripes are one
};

inline constexpr int kAttemptsMax = 200;
// How long a conflict takes to pass: about as long as a transaction.
enum class Pace { kMicroseconds, kMilliseconds };
inline Pace PaceOf(const NamespaceOptions& options) {
  return options.remote ? Pace::kMilliseconds : Pace::kMicroseconds;
}
// The waits of one operation: none after the first few attempts, then up to a millisecond, at random; or up to a tenth
// of a second where each attempt takes milliseconds itself.
class ConflictWaits {
 public:
  explicit ConflictWaits(Pace pace) : pace_(pace) {}
  // False: the context expired.
  bool WaitAfter(const Context& context, int attempt);

 private:
  const Pace pace_;
  std::optional<kv::Retry> retry_;  // made when it is first needed: few operations meet a conflict
};

// Runs `attempt(n)` for n = 0, 1, ... until it gives something other than kConflict; kBusy after kAttemptsMax, and
// kUnavailable once the context has expired.
// Each conflict means that another transaction went through, so the whole always makes progress.
template <typename Attempt>
auto RetryOnConflict(const Context& context, std::string_view operation, Pace pace, Attempt attempt)
    -> decltype(attempt(0)) {
  ConflictWaits waits(pace);
  for (int n = 0; n < kAttemptsMax; n++) {
    auto result = attempt(n);
    if (result.ok() || result.error().code != ErrorCode::kConflict) return result;
    if (waits.WaitAfter(context, n)) continue;
    return MakeError(ErrorCode::kUnavailable, std::string(operation) +
                                                  " met conflicting changes for as long as its "
                                                  "caller waits");
  }
  return MakeError(ErrorCode::kBusy, std::string(operation) + " met a conflicting change " +
                                         std::to_string(kAttemptsMax) + " times in a row; try again");
}

}  // namespace cairnfs::meta
