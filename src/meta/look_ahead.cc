#include "meta/look_ahead.h"

namespace cairnfs::meta {

void LookAhead::Want(std::string key) { wanted_.push_back({std::move(key), "", 0}); }

void LookAhead::WantRange(std::string begin, std::string end, size_t limit) {
  wanted_.push_back({std::move(begin), std::move(end), limit});
}

void LookAhead::WantInode(InodeId inode, Namespace::WithMarks marks) {
  Want(InodeKey(inode));
  Want(FileKey(inode));
  Want(DirectoryTimesKey(inode));
  if (marks == Namespace::WithMarks::kYes) WantRange(MarkPrefix(inode), kv::PrefixEnd(MarkPrefix(inode)), 0);
}

void LookAhead::Fetch(const Context& context) {
  if (wanted_.empty()) return;
  auto snapshot = store_.Read(context, wanted_);
  if (snapshot.ok()) {
    for (size_t i = 0; i < wanted_.size() && i < snapshot->ranges.size(); i++) {
      auto& table = wanted_[i].end.empty() ? points_ : ranges_;
      table[wanted_[i].begin] = std::move(snapshot->ranges[i]);
    }
  }
  wanted_.clear();
}

const kv::KvEntry* LookAhead::Peek(const std::string& key) const {
  auto found = points_.find(key);
  return found == points_.end() || found->second.entries.empty() ? nullptr : &found->second.entries.front();
}

Result<std::optional<kv::KvEntry>> LookAhead::Get(const Context& context, std::string_view key) {
  auto found = points_.find(key);
  if (found == points_.end()) return store_.Get(context, key);
  std::optional<kv::KvEntry> entry;
  if (!found->second.entries.empty()) entry = std::move(found->second.entries.front());
  points_.erase(found);
  return entry;
}

Result<kv::KvRange> LookAhead::Range(const Context& context, std::string_view begin, std::string_view end,
                                     size_t limit) {
  auto found = ranges_.find(begin);
  if (found == ranges_.end()) return store_.Range(context, begin, end, limit);
  kv::KvRange range = std::move(found->second);
  ranges_.erase(found);
  return range;
}

std::optional<InodeId> Hints::InodeOf(const std::string& dentry_key) {
  MutexLock lock(mutex_);
  auto found = names_.find(dentry_key);
  if (found == names_.end()) return std::nullopt;
  return found->second;
}

void Hints::NoteName(const std::string& dentry_key, InodeId inode) {
  MutexLock lock(mutex_);
  if (names_.size() >= kNamesMax) names_.clear();
  names_[dentry_key] = inode;
  entries_.erase(dentry_key);
}

std::optional<Hints::SeenEntry> Hints::TakeEntry(const std::string& dentry_key) {
  MutexLock lock(mutex_);
  auto found = entries_.find(dentry_key);
  if (found == entries_.end()) return std::nullopt;
  SeenEntry seen = std::move(found->second);
  entries_.erase(found);
  return seen;
}

bool Hints::IsFile(const std::string& dentry_key) {
  MutexLock lock(mutex_);
  return entries_.contains(dentry_key);
}

void Hints::NoteEntry(const std::string& dentry_key, Entry entry, Attr attr) {
  NoteName(dentry_key, entry.id());
  MutexLock lock(mutex_);
  if (entries_.size() >= kEntriesMax) entries_.clear();
  entries_.insert_or_assign(dentry_key, SeenEntry{std::move(entry), std::move(attr)});
}

std::optional<Versioned<InodeRecord>> Hints::DirectoryOf(InodeId inode) {
  MutexLock lock(mutex_);
  auto found = directories_.find(inode);
  if (found == directories_.end()) return std::nullopt;
  return found->second;
}

void Hints::NoteDirectory(InodeId inode, const Versioned<InodeRecord>& record) {
  MutexLock lock(mutex_);
  if (directories_.size() >= kDirectoriesMax) directories_.clear();
  Versioned<InodeRecord>& known = directories_[inode];
  if (record.revision >= known.revision) known = record;
}

Timestamp Hints::AdvanceTime(InodeId directory, Timestamp now) {
  MutexLock lock(mutex_);
  if (times_.size() >= kDirectoriesMax) times_.clear();
  Timestamp& last = times_[directory];
  last = std::max(last, now);
  return last;
}

}  // namespace cairnfs::meta
