// Saves: what the files of each directory have cost this host since the directory's last commit, in memory alone. The
// commit takes it over (commits.h).
#pragma once

#include <atomic>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "meta/commit_record.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// Of one directory. Any thread.
struct SaveTally {
  std::atomic<int64_t> first_write_ns{0};  // since 1970; 0: nothing was written
  std::atomic<uint64_t> written_bytes{0};
  std::atomic<uint64_t> write_ns{0}, wait_ns{0};
  const store::NewBytes new_bytes = std::make_shared<std::atomic<uint64_t>>(0);

  void NoteWrite(uint64_t bytes, Clock::duration took);
  void NoteWait(Clock::duration took);
};
using SaveTallyPtr = std::shared_ptr<SaveTally>;

// Any thread.
class Saves {
 public:
  // Beyond so many directories those are forgotten of which no file is open.
  static constexpr size_t kDirectoriesMax = 16'384;

  // null: `directory` is 0, which stands for one that is not known.
  SaveTallyPtr Of(InodeId directory);
  // In which something was written since their costs were taken.
  std::vector<InodeId> Written();
  // Adds to the part what they have cost, which counts for no other commit then. False: nothing.
  bool Take(const std::vector<InodeId>& directories, meta::CommitPart& part);
  // Adds to the part new bytes of what was taken, which became known since. None of a directory that was written to
  // since.
  void TakeLate(const std::vector<InodeId>& directories, meta::CommitPart& part);
  // Gives back what was taken and could not be kept.
  void GiveBack(InodeId directory, const meta::CommitPart& part);

 private:
  Mutex mutex_;
  std::unordered_map<InodeId, SaveTallyPtr> tallies_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
