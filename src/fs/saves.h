// Saves: what the files of each directory have cost this host since the directory's last commit, in memory alone. The
// commit takes it over (commits.h).
//
// What was written and not taken stands in a tree of its directories and those above them, as this host last saw their
// names. So to find what was written below a directory takes no longer for all that was written elsewhere.
#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "meta/commit_record.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

class Saves;

// Of one directory. Any thread.
struct SaveTally : std::enable_shared_from_this<SaveTally> {
  SaveTally(Saves& saves_of_it, InodeId its_directory, uint32_t its_uid)
      : saves(saves_of_it), directory(its_directory), uid(its_uid) {}

  Saves& saves;
  const InodeId directory;
  const uint32_t uid;                      // who opened a file in it first
  std::atomic<int64_t> first_write_ns{0};  // since 1970; 0: nothing was written
  std::atomic<uint64_t> written_bytes{0};
  std::atomic<uint64_t> write_ns{0}, wait_ns{0};
  const std::shared_ptr<std::atomic<uint64_t>> new_bytes = std::make_shared<std::atomic<uint64_t>>(0);

  void NoteWrite(uint64_t bytes, Clock::duration took);
  void NoteWait(Clock::duration took);
};
using SaveTallyPtr = std::shared_ptr<SaveTally>;

// Any thread.
class Saves {
 public:
  // Beyond so many directories, those above what was written included, what was written first is forgotten of the user
  // who has most.
  static constexpr size_t kPlacesMax = 16'384;
  // What was written more levels deeper than a directory does not count for that.
  static constexpr size_t kLevelsMax = 64;

  // Gives the directory in which this host last saw the name of one; 0: not known. Called with a lock held: is to be
  // quick.
  using ParentOf = std::function<InodeId(InodeId directory)>;
  explicit Saves(ParentOf parent_of = [](InodeId) { return InodeId{}; }) : parent_of_(std::move(parent_of)) {}

  // For what `uid` writes into files of `directory`. null: that is 0, which stands for one that is not known.
  SaveTallyPtr Of(InodeId directory, uint32_t uid);
  // ParentOf gives another one for it now.
  void NoteMoved(InodeId directory);
  // Whether something was written in or below it, and not taken.
  bool IsWrittenBelow(InodeId directory) const;
  // The directories of all that was written and not taken.
  std::vector<InodeId> Written() const;

  // What was written in and below a directory; it counts for no other commit then.
  struct Taken {
    meta::CommitPart part;
    std::vector<SaveTallyPtr> tallies;  // empty: nothing was written
  };
  Taken TakeBelow(InodeId directory);
  // New bytes of what was taken, which became known since. None of a directory that was written to since.
  static uint64_t TakeLate(const std::vector<SaveTallyPtr>& taken);
  // Gives back what was taken and could not be kept.
  void GiveBack(InodeId directory, uint32_t uid, const meta::CommitPart& part);

 private:
  friend struct SaveTally;
  // In the tree: a directory in or below which something was written and not taken.
  struct Place {
    uint32_t uid = 0;            // for whom it was made
    InodeId parent = {};         // which has a place too; 0: it has none
    std::set<InodeId> children;  // of those that have a place
    SaveTallyPtr written;        // null: only below it
    std::list<InodeId>::iterator turn;
  };
  struct User {
    size_t place_count = 0;
    std::list<InodeId> written;  // by this user, the first written first
  };

  void NoteWritten(const SaveTallyPtr& tally);
  Place& Make(InodeId directory, uint32_t uid) REQUIRES_LOCK(mutex_);
  // Has the places lead up as ParentOf says. REQUIRES: it has a place.
  void Lead(InodeId directory) REQUIRES_LOCK(mutex_);
  void SetParent(InodeId directory, InodeId parent, uint32_t uid) REQUIRES_LOCK(mutex_);
  // Drops the place, and those above it, while nothing was written there or below.
  void Prune(InodeId directory) REQUIRES_LOCK(mutex_);
  // REQUIRES: something was written in it.
  SaveTallyPtr TakeOut(InodeId directory) REQUIRES_LOCK(mutex_);
  void ForgetOldest() REQUIRES_LOCK(mutex_);

  const ParentOf parent_of_;
  mutable Mutex mutex_;
  std::unordered_map<InodeId, SaveTallyPtr> tallies_ GUARDED_BY(mutex_);  // some of which nobody uses any more
  size_t swept_at_ GUARDED_BY(mutex_) = 0;                                // how many were left
  std::unordered_map<InodeId, Place> places_ GUARDED_BY(mutex_);
  std::map<uint32_t, User> users_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
