// Saves round trips in operations on a store that is far away. For src/meta alone.
//
// LookAhead is a store in front of the store: it fetches several keys and ranges at once, at one revision, and answers
// the reads that follow from these. It gives each answer once, because a caller that asks again wants the state of now.
// Hints are what this host saw last: which inode a name led to, a directory's record. They only say what to fetch, and
// what to compare with. A transaction that relies on a wrong hint fails, and is tried again after a read.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "meta/access.h"

namespace cairnfs::meta {

class LookAhead final : public kv::KvStore {
 public:
  explicit LookAhead(kv::KvStore& store) : store_(store) {}

  void Want(std::string key);
  void WantRange(std::string begin, std::string end, size_t limit);
  // Everything that an operation may ask of an inode: I, D and T, and its marks if they are asked for.
  void WantInode(InodeId inode, Namespace::WithMarks marks);
  // One round trip for all that is wanted. What fails is left to the reads that follow.
  void Fetch(const Context& context);
  // The entry that was fetched under the key and not given yet; null: none, or the key does not exist.
  const kv::KvEntry* Peek(const std::string& key) const;

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override;
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    return store_.Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    return store_.Commit(context, transaction);
  }
  Status Sync(const Context& context) override { return store_.Sync(context); }
  kv::KvLimits limits() const override { return store_.limits(); }

 private:
  kv::KvStore& store_;
  std::vector<kv::KvSpan> wanted_;
  std::map<std::string, kv::KvRange, std::less<>> points_, ranges_;  // by (first) key
};

// Any thread.
class Hints {
 public:
  std::optional<InodeId> InodeOf(const std::string& dentry_key);
  void NoteName(const std::string& dentry_key, InodeId inode);
  // A name that leads to no directory, its inode, and the inode's attributes: for an operation that takes the name
  // away. Given once.
  struct SeenEntry {
    Entry entry;
    Attr attr;
  };
  std::optional<SeenEntry> TakeEntry(const std::string& dentry_key);
  bool IsFile(const std::string& dentry_key);                             // a name of what is no directory was noted
  void NoteEntry(const std::string& dentry_key, Entry entry, Attr attr);  // and the name
  std::optional<Versioned<InodeRecord>> DirectoryOf(InodeId inode);
  void NoteDirectory(InodeId inode, const Versioned<InodeRecord>& record);
  // Returns, and notes, the latest of `now` and the times noted before.
  Timestamp AdvanceTime(InodeId directory, Timestamp now);

 private:
  // Beyond this number all hints are forgotten. They come back as they are needed.
  static constexpr size_t kNamesMax = 100'000;
  static constexpr size_t kEntriesMax = 10'000;
  static constexpr size_t kDirectoriesMax = 20'000;
  Mutex mutex_;
  std::unordered_map<std::string, InodeId> names_ GUARDED_BY(mutex_);
  std::unordered_map<std::string, SeenEntry> entries_ GUARDED_BY(mutex_);
  std::unordered_map<InodeId, Versioned<InodeRecord>> directories_ GUARDED_BY(mutex_);
  std::unordered_map<InodeId, Timestamp> times_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::meta
