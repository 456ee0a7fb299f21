// The namespace: inodes, names and attributes as optimistic transactions on a KvStore.
//
// Each operation reads, checks, and commits with compares on what it relied on; on kConflict it starts again (a bounded
// number of times, then kBusy). Nothing is cached here, so two hosts may run it on one KvStore at once. One operation
// per file: src/meta/ops/. Names are any bytes but '/' and NUL, 1 to 255 of them, not "." or "..".
//
// On a store that is far away (Options::remote) an operation first reads, in one round trip, all that it is about to
// need. It guesses that from what it saw before (src/meta/look_ahead.h), and no guess is believed without a compare.
//
// Content of regular files is not handled here: fs publishes FileRecords itself (it alone knows what is durable). Where
// an operation returns Attr, size, mtime, ctime and allocated bytes of a regular file are those of the FileRecord last
// published; fs lays its newer state over them.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "kv/store.h"
#include "meta/commit_record.h"
#include "meta/records.h"
#include "meta/seals.h"
#include "meta/trash_record.h"

namespace cairnfs::meta {

// An UnpublishedMark and its key.
struct Mark {
  std::string key;
  std::string node;  // id, kNodeIdBytes
  UnpublishedMark record;
  uint64_t revision = 0;
};

struct Attr {
  InodeId inode;
  uint32_t mode = 0, uid = 0, gid = 0, nlink = 0;
  uint64_t rdev = 0;
  uint64_t size = 0;  // symlink: length of the target; directory: 4096
  uint64_t allocated_bytes = 0;
  Timestamp atime, mtime, ctime;
  InodeId quota;  // that it falls under; 0: none
  // On a remote store alone, of a regular file: the revision of its D record (0: there is none). Size and times above
  // are those of the D record.
  uint64_t content_revision = 0;
  // The same of its I record, which changes with each extended attribute too. 0: not told.
  uint64_t inode_revision = 0;
  std::vector<Mark> marks;            // if they were asked for
  SealState seal = SealState::kNone;  // directories
  bool in_trash = false;              // of what an operation has removed: it went to the trash, and is no orphan
  uint64_t generation = 0;            // fs sets it: Inode::generation
};

// Has what loses its last name go to the trash.
struct TrashParams {
  std::chrono::milliseconds keep{};
  uint32_t removed_by = 0;  // uid
  std::string name = {};    // to be restored to; empty: the one that it loses
  bool by_retention = false;
  bool whole = false;  // a directory goes with all that is below it
  // What there is of it, as far as known.
  struct Held {
    uint64_t files = 0, bytes = 0;
  } held = {};
};

// An entry of the trash, and its key.
struct TrashEntry {
  std::string key;
  TrashKeyParts parts;
  TrashRecord record;
  uint64_t revision = 0;
};

struct RestoreParams {
  TrashEntry entry;
  InodeId to_parent;
  std::string to_name;
  uint32_t uid = 0;  // for whom the name is made
  // Attributes that it gets by the same transaction: names and values.
  std::vector<std::pair<std::string, std::string>> attributes = {};
};

// A regular file as the store has it at one revision.
struct FileState {
  InodeRecord inode;
  uint64_t inode_revision = 0;
  std::optional<FileRecord> record;
  uint64_t record_revision = 0;  // 0: there is no D record
  std::vector<Mark> marks;       // if they were asked for
  bool has_capability = false;   // kCapabilityXattr
  uint64_t revision = 0;         // of the store, at which all this held
};

struct CreateParams {
  uint32_t mode = 0;  // type and permission bits; the kernel applied the umask
  uint32_t uid = 0,
           gid = 0;  // of the caller; a set-group-id parent overrides gid, and a new directory inherits the bit
  uint64_t rdev = 0;
  std::string symlink_target;  // S_IFLNK only, at most 4095 bytes (kNameTooLong)
  // A regular file is made without a name, as an orphan whose place is the directory: Rename gives it its name.
  bool without_name = false;
  struct Owner {
    uint32_t uid = 0, gid = 0;
  };
  std::optional<Owner> owner = {};  // of the file, whatever the directory says; default: the caller
  // Called for each attempt with the new inode's number: what it adds is part of the transaction.
  std::function<void(kv::Transaction&, InodeId)> also = {};
  // Asked whether what is made may fall under the quota that its directory falls under (0: none).
  std::function<Status(InodeId quota)> may_fall_under = {};
};

struct AttrChanges {
  std::optional<uint32_t> mode;  // permission bits only
  uint32_t mode_cleared = 0;     // permission bits that go, whatever the others are by then; not with `mode`
  std::optional<uint32_t> uid, gid;
  std::optional<Timestamp> atime, mtime;  // mtime: not for regular files (fs owns it)
  std::optional<Timestamp> ctime;         // default: now
};

enum class RenameMode { kReplace, kNoReplace, kExchange };
struct RenameParams {
  InodeId from_parent;
  std::string from_name;
  InodeId to_parent;
  std::string to_name;
  RenameMode mode = RenameMode::kReplace;
  // Instead of what the first name leads to: a file that was made without a name. The first name is the second one.
  // kNotFound: it has gone; kAlreadyExists: it has a name.
  std::optional<InodeId> unnamed = {};
  // With `unnamed`: asked about what the name leads to (nullopt: nothing) in the same transaction; an error refuses it.
  struct Target {
    InodeId inode;
    uint32_t uid = 0;
  };
  std::function<Status(const std::optional<Target>&)> may_take = {};
  // The inodes that the names are to lead to, from a caller that has waited for these inodes' bytes. kStale when a name
  // leads to another one. `expected_to` is for kExchange.
  std::optional<InodeId> expected_from = {}, expected_to = {};
  // Called for each attempt. It may add compares to the transaction; an error ends the rename.
  std::function<Status(kv::Transaction&)> guard = {};
  std::optional<uint32_t> makes_names_for = {};  // Transaction::makes_names_for, where the new name takes more room
  bool may_lengthen = false;                     // Transaction::may_lengthen
  // The record that the rename leaves of each directory that gets a new name, but for its time: of one that has a
  // record only where `was_written_below` says that it is to be replaced. That may read the store.
  std::optional<CommitRecord> commit = {};
  std::optional<TrashParams> trash = {};  // for what it replaces
  std::function<bool(InodeId directory)> was_written_below = {};
  bool wants_look = false;  // PolicyKey of the second parent is put also where that has no policy, of a directory
  bool wants_seal = false;  // what it moves is to be sealed, for fs
  std::optional<uint64_t> seals = {};  // the directory that it moves, which has this mark (MarkSealing)
  // Asked about what the first name leads to. Nothing that it reads of that inode's attributes changes before the
  // rename is made; an error refuses the rename.
  std::function<Status(InodeId moved)> may_move = {};
};
struct RenameResult {
  InodeId moved;
  uint32_t moved_type = 0;       // S_IFMT bits
  std::optional<Attr> replaced;  // the inode whose name went away; nlink as it is now
  std::optional<InodeId> exchanged;
  bool unchanged = false;          // both names were links to one file: nothing happened
  std::vector<InodeId> committed;  // directories of which it left a record
};

// What is known of a directory's commit.
struct Commit {
  CommitRecord record;
  CommitPart sum;         // of what the hosts know that have told
  uint64_t revision = 0;  // of the record: commits happened in the order of these
};

struct DirectoryEntry {
  std::string name;
  InodeId inode;
  uint32_t type;  // S_IFMT bits
};

struct NamespaceOptions {
  uint32_t links_max = 65000;
  size_t xattr_value_bytes_max = 64 * kKiB;
  size_t xattr_name_bytes_max = 255;
  uint64_t inode_batch = 65536;  // inode numbers reserved durably at a time
  // The store is reached over a network, and other hosts use it too. Each Commit is durable, and a round trip costs as
  // much as all else. Then inode numbers are reserved by a compare, and every inode's record names its directory.
  bool remote = false;
};

// What the change of a directory's attribute means to policies (policy_records.h), in the same transaction.
struct PolicyEffect {
  enum class Own { kNone, kHasOne, kHasNone } own = Own::kNone;  // the directory itself, from then on
  bool touches_above = false;  // the policy of the directory that it lies in has something to do
  bool ends_commit = false;    // its record of a commit goes
  bool only_keeps = false;     // a pin, a hold or a metric, which change nothing of what is sealed
};

inline constexpr size_t kDirectoryTimesStripes = 64;

class LookAhead;  // look_ahead.h
class Hints;
struct Entry;  // access.h

class Namespace {
 public:
  using Options = NamespaceOptions;
  // Puts keys durably before it returns: LocalKvStore::CommitDurable. For the inode number reservation; not called
  // where the store is remote.
  using DurablePut = std::function<Status(const std::vector<kv::KvWrite>&)>;

  // All of the store, the clock and `durable_put` must outlive the namespace. In the functions below a store that is
  // far away waits for its answer for no longer than `context` allows, and then the call fails with kUnavailable: what
  // it changes may have changed, or may change yet.
  Namespace(kv::KvStore& store, DurablePut durable_put, Options options = {});
  ~Namespace();

  // Makes an empty filesystem: header, root directory (mode 0755, owned by uid and gid). kAlreadyExists if there is a
  // header. The caller syncs.
  Status Format(const Context& context, const FilesystemHeader& header, uint32_t uid, uint32_t gid);
  // kNotFound: not formatted. kNotSupported: newer format.
  Result<FilesystemHeader> ReadHeader(const Context& context);

  // Marks of unpublished files cost a round trip where they are asked for and the name's inode is not known.
  enum class WithMarks { kNo, kYes };
  // kNotFound, kNotDirectory, kNameTooLong.
  Result<Attr> Lookup(const Context& context, InodeId parent, std::string_view name, WithMarks marks = WithMarks::kNo);
  Result<Attr> GetAttr(const Context& context, InodeId inode);  // kNotFound: no such inode
  // Regular files, directories, symlinks, devices, FIFOs, sockets. kAlreadyExists, kNotFound (the parent was removed).
  // `numbered` (may be empty) is called with the inode's number before anybody can find it; Create may fail after that.
  // It is called again when that number was taken, as after a backup was restored. The last call counts.
  Result<Attr> Create(const Context& context, InodeId parent, std::string_view name, const CreateParams& params,
                      const std::function<void(InodeId)>& numbered = {});
  // kPermission for a directory; kOtherQuota; kNotFound if it has no link left. `uid` here and in SetXattr: for whom it
  // is made (Transaction::makes_names_for).
  Result<Attr> Link(const Context& context, InodeId inode, InodeId new_parent, std::string_view new_name,
                    std::optional<uint32_t> uid = {});
  // The inode as it is afterwards. With nlink 0 it has become an orphan: it stays whole until RemoveOrphans.
  // With `trash` it goes there instead (Attr::in_trash).
  Result<Attr> Unlink(const Context& context, InodeId parent, std::string_view name,  // kIsDirectory
                      const std::optional<TrashParams>& trash = {});
  // kNotDirectory, kNotEmpty; becomes an orphan too, or goes to the trash. `check` is asked about the directory, as
  // RenameParams::may_move.
  Result<Attr> Rmdir(const Context& context, InodeId parent, std::string_view name,
                     const std::optional<TrashParams>& trash = {}, const std::function<Status(InodeId)>& check = {});
  // POSIX rename. kOtherQuota (from one quota into another), kNotFound, kAlreadyExists (kNoReplace), kIsDirectory,
  // kNotDirectory, kNotEmpty, kInvalidArgument (a directory into itself or below).
  Result<RenameResult> Rename(const Context& context, const RenameParams& params);
  Result<Attr> SetAttr(const Context& context, InodeId inode, const AttrChanges& changes);
  // As SetAttr of atime alone, without touching ctime; no error if it went away.
  void TouchAtime(const Context& context, InodeId inode, Timestamp atime);
  // Puts a directory or file under the quota of this directory, 0: under none; leaves others alone. Of a file the
  // record of its bytes is not touched (docs/decisions/quotas.md). kNotFound.
  Status SetQuota(const Context& context, InodeId inode, InodeId quota);
  // Whether there may be quotas, where the store is not remote: else what a rename would cost to compare them is saved.
  void SetHasQuotas(bool has_quotas) { has_quotas_ = has_quotas; }
  Result<std::string> ReadLink(const Context& context, InodeId inode);
  // Entries after `after` ("": from the start) in name order, at most `limit`. Without "." and "..".
  Result<std::vector<DirectoryEntry>> ReadDirectory(const Context& context, InodeId directory, std::string_view after,
                                                    size_t limit);
  // All of them, in the same order. `name` is valid while it is being visited.
  using EntryVisitor = std::function<void(std::string_view name, InodeId inode, uint32_t type)>;
  Status VisitDirectory(const Context& context, InodeId directory, const EntryVisitor& visit);
  Result<InodeId> ParentOf(const Context& context, InodeId directory);
  // The name by which `parent` leads to `child`. Looks through its first names, as entries are not indexed by inode.
  // kNotFound: it has none. kTooLarge: it is not among so many. kInterrupted.
  Result<std::string> NameIn(const Context& context, InodeId parent, InodeId child, size_t entries_max = 10'000);
  // nullopt: the directory got its name otherwise, or before there were records. kCorrupt.
  Result<std::optional<Commit>> ReadCommit(const Context& context, InodeId directory);
  // All there is to know of a file, in one read. kNotFound: no such inode.
  Result<FileState> ReadFile(const Context& context, InodeId inode, WithMarks marks = WithMarks::kNo);
  // Every mark that there is, at one revision; only where the store is remote.
  struct MarkedFile {
    InodeId inode;
    Mark mark;
  };
  Result<std::vector<MarkedFile>> ListMarks(const Context& context);
  // Which of the inodes may lie below `directory`: those that names below it lead to, and those of which that is not
  // known (more than one name). Inodes that are gone lie nowhere.
  Result<std::vector<InodeId>> FindBelow(const Context& context, InodeId directory, const std::vector<InodeId>& inodes);

  // For each inode the nearest of these directories that it is, or lies below; 0: none. nullopt: it has more than one
  // name, or its place is not known. Only where the store is remote.
  Result<std::vector<std::optional<InodeId>>> FindNearest(const Context& context, const std::set<InodeId>& directories,
                                                          const std::vector<InodeId>& inodes);

  enum class XattrMode { kSet, kCreate, kReplace };
  Result<std::string> GetXattr(const Context& context, InodeId inode, std::string_view name);  // kNoData
  // Asked about the value that would be replaced, in the same transaction; an error refuses that.
  using XattrCheck = std::function<Status(const std::optional<std::string>& before)>;
  // kAlreadyExists (kCreate), kNoData (kReplace), kValueTooLarge, kRange (name too long). Touches ctime.
  Status SetXattr(const Context& context, InodeId inode, std::string_view name, std::string_view value, XattrMode mode,
                  std::optional<uint32_t> uid = {}, const XattrCheck& check = {}, const PolicyEffect& effect = {});
  Result<std::vector<std::string>> ListXattrs(const Context& context, InodeId inode);
  Status RemoveXattr(const Context& context, InodeId inode, std::string_view name,  // kNoData
                     const PolicyEffect& effect = {});

  // To be called when a remote store may have gone back to an older state. Gives up the numbers that this host has
  // reserved and not used, and raises the store's record past all that this host ever reserved. So nobody gets a number
  // that this host may have given out.
  Status ForgetReservedInodes(const Context& context);

  // Inodes without a link, left by this process or one before it.
  Result<std::vector<InodeId>> ListOrphans(const Context& context);
  // Deletes orphans with their content and xattrs, a batch per transaction. Other inodes are left alone.
  Status RemoveOrphans(const Context& context, const std::vector<InodeId>& inodes);

  // Entries of the trash, the oldest first: those after the key `after` (empty: from the first), at most `limit` (0:
  // all); fewer only where there are no more. One that does not decode is passed over, so that the others can be
  // restored and emptied; `damaged` goes up by one for each, unless it is null.
  Result<std::vector<TrashEntry>> ListTrash(const Context& context, std::string_view after, size_t limit,
                                            size_t* damaged = nullptr);
  // The bytes that these files have allocated, by their records. Reads so many records at once.
  Result<uint64_t> SumAllocated(const Context& context, const std::vector<InodeId>& files, size_t records_per_read);
  // Those of the entries whose inode's record names the quota. Reads so many records at once.
  Result<std::vector<TrashEntry>> TrashUnder(const Context& context, const std::vector<TrashEntry>& entries,
                                             InodeId quota, size_t records_per_read);
  // Gives the entry's inode a name again. kNotFound: it is not in the trash any more, or the directory is removed.
  // kAlreadyExists: the name is taken. kInvalidArgument: into itself. It falls under the quota of its new directory,
  // and a file counts for it (where the store is not remote: once its caller has published it anew); what a directory
  // holds is left alone. kOtherQuota: a directory that is not empty and lay under another quota, or under none.
  Result<Attr> Restore(const Context& context, const RestoreParams& params);
  // Takes the entries out of the trash for good, in one transaction: nobody can restore them from then on. Files become
  // orphans; directories are doomed. Those that are there no more, or have a damaged inode, are passed over.
  // REQUIRES: kDoomedAtOnceMax of them at most.
  static constexpr size_t kDoomedAtOnceMax = 32;
  struct Doomed {
    std::vector<Attr> orphans;  // the inodes that became some
    uint64_t entries = 0, bytes = 0;
  };
  Result<Doomed> Doom(const Context& context, std::span<const TrashEntry> entries);
  Result<std::vector<InodeId>> ListDoomed(const Context& context, size_t limit);
  // Removes some of what lies right in a doomed directory: what is no directory becomes an orphan, directories are
  // doomed themselves. One that is empty becomes an orphan. What lost its last name, as Unlink tells.
  struct Cleared {
    std::vector<Attr> removed;
    bool is_done = false;  // the directory is doomed no more
  };
  Result<Cleared> ClearDoomed(const Context& context, InodeId directory);

  // Of a directory; kNone of all else.
  Result<SealState> SealOf(const Context& context, InodeId inode);
  // To kNone, kAtCommit (of one that is being sealed by a rename it is so) or kCommits. kSealed: it is sealed, and not
  // to be kNone; or it lies below a sealed directory. kNotDirectory; kNotFound: it, or a directory above it, is
  // removed.
  Status SetSeal(const Context& context, InodeId directory, SealState to);
  // From now on nothing below can be changed, but it is not known yet whether anybody writes there. Of one that is
  // sealed already nothing is changed (Marked::before). Errors as of SetSeal; after one nothing is marked.
  enum class SealFor { kItself, kCommit };
  struct Marked {
    SealState before = SealState::kNone;
    uint64_t mark = 0;  // another one each time
  };
  Result<Marked> MarkSealing(const Context& context, InodeId directory, SealFor what);
  // Makes it sealed, or what it was before. kBusy: the mark is another by now.
  enum class SealEnd { kSeal, kReopen };
  Status EndSealing(const Context& context, InodeId directory, const Marked& marked, SealEnd end);
  // Of all that are being sealed since a time before `begun_before`, as hosts that died have left them: makes them what
  // they were before. Without a time of all, where no host is about to seal anything.
  Status EndAllSealing(const Context& context, std::optional<Timestamp> begun_before = {});
  // kSealed: the inode is sealed, or below a directory that is; as this process saw the seals last (ForgetSeals). Takes
  // long where it does not KnowSealsOf it: all names are looked at, once for all such files.
  Status CheckUnsealed(const Context& context, InodeId inode);
  bool KnowsSealsOf(const Context& context, InodeId inode);
  // Of those directories the ones that are sealed, or are being sealed.
  Result<std::vector<InodeId>> SealedDirectories(const Context& context);
  // A directory below this one, or itself, that is sealed, or is being sealed; nullopt: there is none.
  Result<std::optional<InodeId>> FindSealedBelow(const Context& context, InodeId directory);
  // kSealed: there is one.
  Status CheckNoneSealedBelow(const Context& context, InodeId directory);
  // The name of a directory.
  struct DirectoryName {
    InodeId parent;
    std::string name;
  };
  Result<DirectoryName> NameOf(const Context& context, InodeId directory);
  // Those that have a name below the directory, or are to get one there. Where a record does not tell, all names are
  // looked at.
  Result<std::vector<InodeId>> FindNamedBelow(const Context& context, InodeId directory,
                                              const std::vector<InodeId>& inodes);
  // What was seen of the seals may be old: they are read anew.
  void ForgetSeals() { seals_.Forget(); }

  // The path of a directory entry for messages: "a/b/c" below the root by walking up from `parent`; best effort.
  std::string PathOf(const Context& context, InodeId parent, std::string_view name);
  // The path of an inode, by the directory that its record names; "#" and its number where it names none.
  std::string PathOfInode(const Context& context, InodeId inode);

 private:
  // For one attempt of an operation that changes these inodes, or names in these directories. kSealed: one of them is
  // below a seal. Otherwise the revision that the transaction is to compare the key `s` with.
  Result<uint64_t> CheckUnsealed(const Context& context, int attempt, std::initializer_list<InodeId> inodes);
  // Of the first attempt: as they were seen last, which the transaction's compare finds out.
  Result<Seals> SealsNow(const Context& context, int attempt);
  Status CheckBelowNone(const Context& context, const Seals& seals, InodeId directory);
  Status CheckInodeBelowNone(const Context& context, const Seals& seals, InodeId inode);
  Result<std::shared_ptr<const SealsSeen::Inodes>> LinkedBelowSeals(const Context& context, const Seals& seals);
  Status CheckLinkedBelowNone(const Context& context, Seals seals, InodeId inode);
  Status CheckNoneSealedAbove(const Context& context, InodeId parent);
  using SealChange = std::function<Result<bool>(InodeRecord& record, const Seals& seals)>;
  enum class Above { kUnsealed, kAny };  // what the directories above have to be
  Status ChangeSeal(const Context& context, InodeId directory, Above above, const SealChange& change);
  Result<InodeId> AllocateInode(const Context& context);
  // To be called when another host has used the number `taken`: then the numbers that were reserved with it are not
  // this host's either.
  void GiveUpRangeOf(InodeId taken);
  struct NextInode {
    uint64_t number = 0;
    uint64_t revision = 0;  // of its record
  };
  Result<NextInode> ReadNextInode(const Context& context);
  struct NumberRange {
    uint64_t first = 0, end = 0;
  };
  Result<NumberRange> ReserveInodes(const Context& context, uint64_t reserved_end);
  // False: the context expired first.
  bool AwaitReserving(const Context& context) REQUIRES_LOCK(allocation_mutex_);
  // Takes over the numbers that `ask` reserves. `ask` is given the end of those reserved before. One call at a time.
  Status WhileReserving(const Context& context, const std::function<Result<NumberRange>(uint64_t reserved_end)>& ask)
      REQUIRES_LOCK(allocation_mutex_);
  // The store to read from in one attempt of an operation on these names or this inode. Where the store is remote, it
  // is one that has fetched what these lead to. `ahead` must live as long.
  struct Name {
    InodeId parent;
    std::string_view name;
  };
  kv::KvStore& LookAt(const Context& context, LookAhead& ahead, std::initializer_list<Name> names,
                      WithMarks marks = WithMarks::kNo);
  kv::KvStore& LookAt(const Context& context, LookAhead& ahead, InodeId inode);
  struct Removal {
    InodeId parent;
    std::string_view name;
    Entry& entry;
    uint64_t seals_revision = 0;  // to be compared
  };
  // Whether it went to the trash.
  Result<bool> CommitRemoval(const Context& context, const Removal& removal, const std::optional<TrashParams>& trash);
  // The time of now, or the latest that this host has seen of the directory, whichever is later.
  Timestamp TimeFor(InodeId directory);

  kv::KvStore& store_;
  std::atomic<bool> has_quotas_{false};
  const DurablePut durable_put_;
  const Options options_;
  const std::unique_ptr<Hints> hints_;  // null unless remote
  SealsSeen seals_;
  // Lock order: stripes by index. Held while an operation takes the time and commits: access.h, DirectoryTimesLock.
  std::array<Mutex, kDirectoryTimesStripes> directory_times_stripes_;
  Mutex allocation_mutex_;
  CondVar reserving_ended_;
  bool is_reserving_ GUARDED_BY(allocation_mutex_) = false;
  uint64_t next_inode_ GUARDED_BY(allocation_mutex_) = 0;
  uint64_t reserved_begin_ GUARDED_BY(allocation_mutex_) = 0;
  uint64_t reserved_end_ GUARDED_BY(allocation_mutex_) = 0;  // never goes back, though the store may
};

}  // namespace cairnfs::meta
