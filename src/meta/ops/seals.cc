// Seals of directories, and whether something is below one.
#include "meta/seals.h"

#include <map>
#include <set>

#include "base/clock.h"
#include "base/coding.h"
#include "meta/access.h"

namespace cairnfs::meta {
namespace {

constexpr int kSealLevelsMax = 100'000;
constexpr size_t kSealRecordsPerRead = 1000;
constexpr size_t kLinkedMax = 4'000'000;  // files below seals whose records do not tell where they are
constexpr int kLinkedLooksMax = 3;

Error Sealed(InodeId directory) {
  return MakeError(ErrorCode::kSealed, "directory " + std::to_string(directory.value) +
                                           " is sealed: its owner and root can end that (cairnfs unseal)");
}

Error ChangedMeanwhile() { return MakeError(ErrorCode::kBusy, "its seal was changed meanwhile; try again"); }

Result<Seals> ReadSeals(const Context& context, kv::KvStore& store) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, store.Get(context, SealsKey()));
  if (!entry) return Seals{};
  Decoder decoder(entry->value);
  const uint64_t count = decoder.U64();
  if (!decoder.Finished()) return MakeError(ErrorCode::kCorrupt, "the count of seals does not decode");
  return Seals{entry->revision, count};
}

// Every entry of one kind of record.
Status VisitAll(const Context& context, kv::KvStore& store, const std::string& prefix,
                const std::function<Status(const kv::KvEntry&)>& visit) {
  const std::string end = kv::PrefixEnd(prefix);
  for (std::string begin = prefix;;) {
    if (context.Expired()) return MakeError(ErrorCode::kInterrupted, "nobody waits for a look at all names");
    CAIRNFS_ASSIGN_OR_RETURN(const auto range, store.Range(context, begin, end, kSealRecordsPerRead));
    for (const kv::KvEntry& entry : range.entries) CAIRNFS_RETURN_IF_ERROR(visit(entry));
    if (!range.more || range.entries.empty()) return {};
    begin = range.entries.back().key + '\0';
  }
}

// Of a file the directory in which it lies; nullopt: its record does not tell. One without a name is perhaps to get one
// there.
std::optional<InodeId> KnownPlace(const InodeRecord& record) {
  if (record.nlink <= 1 && record.parent.value != 0) return record.parent;
  return std::nullopt;
}

}  // namespace

std::string SealsKey() { return "s"; }
std::string SealedKey(InodeId directory) { return Encoder().Text(SealsKey()).BigEndianU64(directory.value).Take(); }

std::optional<Seals> SealsSeen::last() {
  MutexLock lock(mutex_);
  return last_;
}

uint64_t SealsSeen::forgotten() {
  MutexLock lock(mutex_);
  return forgotten_;
}

void SealsSeen::Note(const Seals& seals, uint64_t forgotten) {
  MutexLock lock(mutex_);
  if (forgotten != forgotten_ || (last_ && last_->revision >= seals.revision)) return;
  last_ = seals;
  below_none_.clear();
  linked_.reset();
}

void SealsSeen::Forget() {
  MutexLock lock(mutex_);
  forgotten_++;
  last_.reset();
  below_none_.clear();
  linked_.reset();
}

bool SealsSeen::IsBelowNone(const Seals& seals, InodeId inode) {
  MutexLock lock(mutex_);
  return IsLast(seals) && below_none_.contains(inode);
}

void SealsSeen::NoteBelowNone(const Seals& seals, const std::vector<InodeId>& inodes) {
  MutexLock lock(mutex_);
  if (!IsLast(seals)) return;
  if (below_none_.size() + inodes.size() > kInodesMax) below_none_.clear();
  below_none_.insert(inodes.begin(), inodes.end());
}

std::shared_ptr<const SealsSeen::Inodes> SealsSeen::linked(const Seals& seals) {
  MutexLock lock(mutex_);
  return IsLast(seals) ? linked_ : nullptr;
}

void SealsSeen::NoteLinked(const Seals& seals, std::shared_ptr<const Inodes> inodes) {
  MutexLock lock(mutex_);
  if (IsLast(seals)) linked_ = std::move(inodes);
}

Result<Seals> Namespace::SealsNow(const Context& context, int attempt) {
  const auto seen = seals_.last();
  if (attempt == 0 && seen) return *seen;
  const uint64_t forgotten = seals_.forgotten();
  CAIRNFS_ASSIGN_OR_RETURN(const Seals seals, ReadSeals(context, store_));
  seals_.Note(seals, forgotten);
  return seals;
}

// Each level of the walk may be read at another time: what is below a seal stays so whatever moves meanwhile.
Status Namespace::CheckBelowNone(const Context& context, const Seals& seals, InodeId directory) {
  std::vector<InodeId> walked;
  InodeId current = directory;
  for (int level = 0; level < kSealLevelsMax; level++) {
    if (seals_.IsBelowNone(seals, current)) break;
    CAIRNFS_ASSIGN_OR_RETURN(const auto loaded, LoadInode(context, store_, current));
    if (Blocks(loaded.record.seal)) return Sealed(current);
    walked.push_back(current);
    if (current == kRootInode || loaded.record.nlink == 0) break;
    current = loaded.record.parent;
  }
  seals_.NoteBelowNone(seals, walked);
  return {};
}

// One look tells it of all of them. A file that gets a second name after it is below no seal: Link has looked.
Result<std::shared_ptr<const SealsSeen::Inodes>> Namespace::LinkedBelowSeals(const Context& context,
                                                                             const Seals& seals) {
  if (auto known = seals_.linked(seals)) return known;
  auto linked = std::make_shared<SealsSeen::Inodes>();
  std::vector<InodeId> files;  // below seals, of which it is not known yet whether their records tell where they are
  const auto sort_out = [&]() -> Status {
    std::vector<std::string> keys;
    for (const InodeId file : files) keys.push_back(InodeKey(file));
    CAIRNFS_RETURN_IF_ERROR(
        kv::ReadKeys(context, store_, keys, kSealRecordsPerRead, [&](size_t i, const kv::KvEntry* entry) -> Status {
          if (entry == nullptr) return {};
          CAIRNFS_ASSIGN_OR_RETURN(const InodeRecord record, InodeRecord::Decode(entry->value));
          if (!KnownPlace(record)) linked->insert(files[i]);
          return {};
        }));
    files.clear();
    if (linked->size() <= kLinkedMax) return {};
    return MakeError(ErrorCode::kUnavailable, "too many files below sealed directories have several names");
  };
  std::optional<InodeId> looked_at;
  bool is_sealed = false;
  CAIRNFS_RETURN_IF_ERROR(VisitAll(context, store_, "E", [&](const kv::KvEntry& entry) -> Status {
    const auto place = ParentOfDentryKey(entry.key);
    if (!place) return {};
    if (place != looked_at) {
      const Status free = CheckBelowNone(context, seals, *place);
      is_sealed = !free.ok() && free.error().code == ErrorCode::kSealed;
      const bool is_gone = !free.ok() && free.error().code == ErrorCode::kNotFound;
      if (!free.ok() && !is_sealed && !is_gone) return free;
      looked_at = place;
    }
    if (!is_sealed) return {};
    CAIRNFS_ASSIGN_OR_RETURN(const DentryRecord dentry, DentryRecord::Decode(entry.value));
    if (dentry.type != S_IFDIR) files.push_back(dentry.inode);
    return files.size() < kSealRecordsPerRead ? Status() : sort_out();
  }));
  CAIRNFS_RETURN_IF_ERROR(sort_out());
  seals_.NoteLinked(seals, linked);
  return std::shared_ptr<const SealsSeen::Inodes>(linked);
}

// Another host may have ended the seal since it was looked for: before a refusal they are read anew.
Status Namespace::CheckLinkedBelowNone(const Context& context, Seals seals, InodeId inode) {
  for (int look = 0; look < kLinkedLooksMax; look++) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto linked, LinkedBelowSeals(context, seals));
    if (!linked->contains(inode)) return {};
    CAIRNFS_ASSIGN_OR_RETURN(const Seals now, SealsNow(context, 1));
    if (now.count == 0) return {};
    if (now.revision == seals.revision) break;
    seals = now;
  }
  return MakeError(ErrorCode::kSealed,
                   "it has a name below a sealed directory, whose owner and root can end that (cairnfs unseal)");
}

Status Namespace::CheckInodeBelowNone(const Context& context, const Seals& seals, InodeId inode) {
  if (seals.count == 0 || seals_.IsBelowNone(seals, inode)) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const auto loaded, LoadInode(context, store_, inode));
  if (IsDirectory(loaded.record)) return CheckBelowNone(context, seals, inode);
  if (loaded.record.nlink == 0) return {};  // no name leads to it
  if (const auto place = KnownPlace(loaded.record)) {
    CAIRNFS_RETURN_IF_ERROR(CheckBelowNone(context, seals, *place));
  } else {
    CAIRNFS_RETURN_IF_ERROR(CheckLinkedBelowNone(context, seals, inode));
  }
  seals_.NoteBelowNone(seals, {inode});
  return {};
}

bool Namespace::KnowsSealsOf(const Context& context, InodeId inode) {
  const auto seals = SealsNow(context, 0);
  if (!seals.ok() || seals->count == 0 || seals_.IsBelowNone(*seals, inode)) return true;
  const auto loaded = LoadInode(context, store_, inode);
  const bool is_told = !loaded.ok() || IsDirectory(loaded->record) || loaded->record.nlink == 0;
  if (is_told || KnownPlace(loaded->record)) return true;
  const auto linked = seals_.linked(*seals);
  return linked && !linked->contains(inode);  // before a refusal it may be looked for once more
}

Result<uint64_t> Namespace::CheckUnsealed(const Context& context, int attempt, std::initializer_list<InodeId> inodes) {
  CAIRNFS_ASSIGN_OR_RETURN(const Seals seals, SealsNow(context, attempt));
  for (const InodeId inode : inodes) CAIRNFS_RETURN_IF_ERROR(CheckInodeBelowNone(context, seals, inode));
  return seals.revision;
}

Status Namespace::CheckUnsealed(const Context& context, InodeId inode) {
  const auto unsealed = CheckUnsealed(context, 0, {inode});
  return unsealed.ok() ? Status() : Status(unsealed.error());
}

Result<std::vector<InodeId>> Namespace::FindNamedBelow(const Context& context, InodeId directory,
                                                       const std::vector<InodeId>& inodes) {
  std::vector<std::string> keys;
  for (const InodeId inode : inodes) keys.push_back(InodeKey(inode));
  std::multimap<InodeId, InodeId> places;  // of each, by where it lies
  std::set<InodeId> untold;
  CAIRNFS_RETURN_IF_ERROR(
      kv::ReadKeys(context, store_, keys, kSealRecordsPerRead, [&](size_t i, const kv::KvEntry* entry) -> Status {
        if (entry == nullptr) return {};
        CAIRNFS_ASSIGN_OR_RETURN(const InodeRecord record, InodeRecord::Decode(entry->value));
        const auto place = KnownPlace(record);
        if (place) places.emplace(*place, inodes[i]);
        if (!place && record.nlink > 0) untold.insert(inodes[i]);
        return {};
      }));
  if (!untold.empty()) {
    CAIRNFS_RETURN_IF_ERROR(VisitAll(context, store_, "E", [&](const kv::KvEntry& entry) -> Status {
      CAIRNFS_ASSIGN_OR_RETURN(const DentryRecord dentry, DentryRecord::Decode(entry.value));
      const auto place = ParentOfDentryKey(entry.key);
      if (place && untold.contains(dentry.inode)) places.emplace(*place, dentry.inode);
      return {};
    }));
  }
  std::vector<InodeId> distinct;
  for (auto place = places.begin(); place != places.end(); place = places.upper_bound(place->first)) {
    distinct.push_back(place->first);
  }
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> below, FindBelow(context, directory, distinct));
  std::set<InodeId> found;
  for (const InodeId place : below) {
    const auto [first, last] = places.equal_range(place);
    for (auto at = first; at != last; ++at) found.insert(at->second);
  }
  return std::vector<InodeId>(found.begin(), found.end());
}

Result<std::vector<InodeId>> Namespace::SealedDirectories(const Context& context) {
  std::vector<InodeId> sealed;
  CAIRNFS_RETURN_IF_ERROR(VisitAll(context, store_, SealsKey(), [&](const kv::KvEntry& entry) -> Status {
    if (const auto inode = InodeOfKey(entry.key, SealsKey())) sealed.push_back(*inode);
    return {};
  }));
  return sealed;
}

Status Namespace::EndAllSealing(const Context& context, std::optional<Timestamp> begun_before) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> sealed, SealedDirectories(context));
  std::vector<std::string> keys;
  for (const InodeId directory : sealed) keys.push_back(InodeKey(directory));
  std::vector<std::pair<InodeId, Marked>> left;
  const auto visit = [&](size_t i, const kv::KvEntry* entry) -> Status {
    const auto record = entry == nullptr ? Result<InodeRecord>(InodeRecord()) : InodeRecord::Decode(entry->value);
    if (!record.ok() || !IsSealing(record->seal)) return {};  // of one that is damaged `check` tells
    // The mark was the last change of it: what blocks has no other.
    if (!begun_before || record->ctime < *begun_before)
      left.emplace_back(sealed[i], Marked{record->seal, record->seal_mark});
    return {};
  };
  CAIRNFS_RETURN_IF_ERROR(kv::ReadKeys(context, store_, keys, kSealRecordsPerRead, visit));
  for (const auto& [directory, marked] : left) {
    const Status ended = EndSealing(context, directory, marked, SealEnd::kReopen);
    if (!ended.ok() && ended.error().code != ErrorCode::kBusy) return ended;  // kBusy: somebody else has
  }
  return {};
}

Result<std::optional<InodeId>> Namespace::FindSealedBelow(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> sealed, SealedDirectories(context));
  CAIRNFS_ASSIGN_OR_RETURN(const auto below, FindBelow(context, directory, sealed));
  return below.empty() ? std::nullopt : std::optional(below.front());
}

Status Namespace::CheckNoneSealedBelow(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<InodeId> sealed, FindSealedBelow(context, directory));
  if (!sealed) return {};
  return MakeError(ErrorCode::kSealed, "'" + PathOfInode(context, *sealed) + "' in it is sealed");
}

Result<Namespace::DirectoryName> Namespace::NameOf(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const InodeId parent, ParentOf(context, directory));
  std::string after;
  for (bool is_last = false; !is_last;) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto entries, ReadDirectory(context, parent, after, kSealRecordsPerRead));
    is_last = entries.size() < kSealRecordsPerRead;
    for (const DirectoryEntry& entry : entries) {
      if (entry.inode == directory) return DirectoryName{parent, entry.name};
    }
    if (!is_last) after = entries.back().name;
  }
  return MakeError(ErrorCode::kNotFound, Describe(directory) + " has no name any more");
}

Result<SealState> Namespace::SealOf(const Context& context, InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto loaded, LoadInode(context, store_, inode));
  return loaded.record.seal;
}

// kNotFound: one of them is removed.
Status Namespace::CheckNoneSealedAbove(const Context& context, InodeId parent) {
  for (InodeId above = parent; above != kRootInode;) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto loaded, LoadLiveDirectory(context, store_, above));
    if (Blocks(loaded.record.seal)) return Sealed(above);
    above = loaded.record.parent;
  }
  return {};
}

// `change` puts the new state into the record; false: nothing is to be changed.
Status Namespace::ChangeSeal(const Context& context, InodeId directory, Above above, const SealChange& change) {
  return RetryOnConflict(context, "seal", PaceOf(options_), [&](int) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(const Seals seals, SealsNow(context, 1));
    CAIRNFS_ASSIGN_OR_RETURN(auto loaded, LoadLiveDirectory(context, store_, directory));
    InodeRecord& record = loaded.record;
    const bool was_sealed = Blocks(record.seal);
    CAIRNFS_ASSIGN_OR_RETURN(const bool changes, change(record, seals));
    if (!changes) return {};
    const bool is_sealed = Blocks(record.seal);
    // One in the trash is sealed no more.
    const Status may = above == Above::kUnsealed ? CheckNoneSealedAbove(context, record.parent) : Status();
    const bool ends_in_trash = !may.ok() && may.error().code == ErrorCode::kNotFound && !is_sealed;
    if (!may.ok() && !ends_in_trash) return may;
    const uint64_t forgotten = seals_.forgotten();
    const uint64_t count = seals.count + (is_sealed ? 1 : 0) - (was_sealed ? 1 : 0);
    kv::Transaction transaction;
    transaction.IfRevision(InodeKey(directory), loaded.revision).IfRevision(SealsKey(), seals.revision);
    // Also where the count stays: a look that had begun under another mark is over.
    if (was_sealed || is_sealed) transaction.Put(SealsKey(), Encoder().U64(count).Take());
    if (is_sealed && !was_sealed) transaction.Put(SealedKey(directory), "");
    if (was_sealed && !is_sealed) transaction.Delete(SealedKey(directory));
    record.ctime = Clock::WallTime();
    transaction.Put(InodeKey(directory), record.Encode());
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, store_.Commit(context, transaction));
    if (was_sealed || is_sealed) seals_.Note({revision, count}, forgotten);
    return {};
  });
}

Status Namespace::SetSeal(const Context& context, InodeId directory, SealState to) {
  return ChangeSeal(context, directory, Above::kUnsealed, [&](InodeRecord& record, const Seals&) -> Result<bool> {
    const bool is_so = record.seal == SealState::kCommitting && to == SealState::kAtCommit;
    const bool changes = record.seal != to && !is_so;
    if (changes && to != SealState::kNone && Blocks(record.seal)) return Sealed(directory);
    record.seal = to;
    record.seal_mark = 0;
    return changes;
  });
}

Result<Namespace::Marked> Namespace::MarkSealing(const Context& context, InodeId directory, SealFor what) {
  Marked marked;
  InodeId parent;
  Status status =
      ChangeSeal(context, directory, Above::kUnsealed, [&](InodeRecord& record, const Seals& seals) -> Result<bool> {
        marked.before = record.seal;
        marked.mark = seals.revision + 1;  // another one than each before, as each mark rewrites `s`
        if (record.seal == SealState::kSealed) return false;
        const bool is_of_commits = record.seal == SealState::kCommits || record.seal == SealState::kSealingCommits;
        record.seal = what == SealFor::kCommit ? SealState::kCommitting
                      : is_of_commits          ? SealState::kSealingCommits
                                               : SealState::kSealing;
        record.seal_mark = marked.mark;
        parent = record.parent;
        return true;
      });
  // One that took a directory above away before the mark did not find it; one that does after it will.
  if (status.ok() && marked.before != SealState::kSealed) status = CheckNoneSealedAbove(context, parent);
  if (status.ok()) return marked;
  // It may have been made all the same, for a caller who is gone, or a store that did not answer.
  if (marked.mark != 0 && marked.before != SealState::kSealed) {
    static_cast<void>(EndSealing({}, directory, marked, SealEnd::kReopen).ok());
  }
  return status.error();
}

Status Namespace::EndSealing(const Context& context, InodeId directory, const Marked& marked, SealEnd end) {
  // The mark goes whatever came meanwhile.
  const Above above = end == SealEnd::kReopen ? Above::kAny : Above::kUnsealed;
  return ChangeSeal(context, directory, above, [&](InodeRecord& record, const Seals&) -> Result<bool> {
    if (!IsSealing(record.seal) || record.seal_mark != marked.mark) return ChangedMeanwhile();
    SealState before = marked.before;
    if (before == SealState::kSealing) before = SealState::kNone;  // what a host that died has left
    if (before == SealState::kCommitting) before = SealState::kAtCommit;
    if (before == SealState::kSealingCommits) before = SealState::kCommits;
    record.seal = end == SealEnd::kSeal ? SealState::kSealed : before;
    record.seal_mark = 0;
    return true;
  });
}

}  // namespace cairnfs::meta
