// Seals: directories below which nothing can be changed (docs/decisions/seal.md).
//
// What is below a sealed directory stays so while the set of seals is the same: nothing is moved into, out of or below
// one. So a transaction that compares the key `s`, which each change of that set rewrites, needs no other compare, and
// what was found to be below none is remembered until then.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/thread_annotations.h"
#include "base/types.h"

namespace cairnfs::meta {

// Of a directory, in its inode record.
enum class SealState : uint8_t {
  kNone = 0,
  kAtCommit = 1,  // its next rename seals it
  kCommits = 2,   // each directory that is renamed into it is sealed by that
  kSealing = 3,   // as kSealed, while a host looks whether anybody has a file below open for writing
  kSealed = 4,
  kCommitting = 5,      // as kSealing, by a rename that seals it
  kSealingCommits = 6,  // as kSealing, of one that was kCommits
};
inline constexpr SealState kSealStateMax = SealState::kSealingCommits;
// Whether nothing below can be changed.
constexpr bool Blocks(SealState state) { return state >= SealState::kSealing; }
constexpr bool IsSealing(SealState state) { return Blocks(state) && state != SealState::kSealed; }

std::string SealsKey();                    // s: how many directories are sealed
std::string SealedKey(InodeId directory);  // s and a directory: it is sealed

struct Seals {
  uint64_t revision = 0;  // of that key
  uint64_t count = 0;
};

// What this process saw last of the seals. Any thread.
class SealsSeen {
 public:
  using Inodes = std::unordered_set<InodeId>;
  std::optional<Seals> last();
  uint64_t forgotten();  // how often Forget was called
  // What was read after that. Older than what is known, or read before a Forget, it counts for nothing.
  void Note(const Seals& seals, uint64_t forgotten);
  void Forget();
  bool IsBelowNone(const Seals& seals, InodeId inode);
  void NoteBelowNone(const Seals& seals, const std::vector<InodeId>& inodes);
  // Of the files whose record does not tell where their names are, those below a seal. null: they were not looked for.
  std::shared_ptr<const Inodes> linked(const Seals& seals);
  void NoteLinked(const Seals& seals, std::shared_ptr<const Inodes> inodes);

 private:
  static constexpr size_t kInodesMax = 100'000;  // beyond that all are forgotten
  bool IsLast(const Seals& seals) REQUIRES_LOCK(mutex_) { return last_ && last_->revision == seals.revision; }
  Mutex mutex_;
  uint64_t forgotten_ GUARDED_BY(mutex_) = 0;
  std::optional<Seals> last_ GUARDED_BY(mutex_);
  Inodes below_none_ GUARDED_BY(mutex_);  // this and the next while `last_` is the same
  std::shared_ptr<const Inodes> linked_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::meta
