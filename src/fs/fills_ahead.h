// FillsAhead: fills what was just committed into memory, so that the kernel reads it itself from the first open on
// (FUSE passthrough). It lies in the pool then, and who evaluates or converts it comes soon. Where a file of the last
// commit into the same directory was opened for reading, that is: who saves and does not read pays nothing.
//
// The newest commit comes first. Only files are filled that this host wrote, and only while the pool has memory to
// spare: their chunks are in it, or are few. One at a time, on the thread of the fills.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <stop_token>
#include <vector>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "fs/backing_files.h"
#include "fs/inode.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// Any thread.
class FillsAhead {
 public:
  struct Parts {  // all outlive it
    BackingFiles& backing_files;
    io::BufferPool& pool;
    meta::Namespace& names;
    InodeTable& table;
  };
  // What is more is left to who reads it: of the oldest commit first.
  static constexpr size_t kDirectoriesMax = 64, kFilesMax = 4096;
  static constexpr size_t kLinesMax = 64;  // directories of which the last commit is known

  explicit FillsAhead(const Parts& parts) : at_(parts) {}
  FillsAhead(const FillsAhead&) = delete;

  // These have got the names by which they are known, in `parent`. Does not wait.
  void NoteCommitted(InodeId parent, const std::vector<InodeId>& directories);
  // A file was opened for reading alone.
  void NoteRead(InodeId directory);
  // Begins no more. What runs has ended after BackingFiles::End. REQUIRES of the destructor: both.
  void Stop() { stop_.request_stop(); }

 private:
  struct File {
    InodeId id;
    uint32_t owner;
  };
  // The last commit into a directory.
  struct Line {
    InodeId parent, last;
    bool was_read = false;
  };
  // Whether the one before was read.
  bool BeginLine(InodeId parent, InodeId committed) REQUIRES_LOCK(mutex_);
  void Step() EXCLUDES_LOCK(mutex_);
  // What is worth it in the directory. Its directories are to be looked at next.
  std::vector<File> Look(InodeId directory, std::vector<InodeId>& directories);
  bool WasWrittenHere(InodeId file);
  void Fill(const File& file);
  // Less than the pool lets chunks take that are kept for readers alone.
  bool HasRoom() const { return !at_.pool.UnderPressure(); }

  const Parts at_;
  std::stop_source stop_;
  const Context until_stop_{stop_.get_token()};
  std::atomic<bool> has_lines_{false};
  Mutex mutex_;
  std::deque<Line> lines_ GUARDED_BY(mutex_);           // the latest first
  std::deque<InodeId> directories_ GUARDED_BY(mutex_);  // the next first
  std::deque<File> files_ GUARDED_BY(mutex_);
  bool is_posted_ GUARDED_BY(mutex_) = false;
};

}  // namespace cairnfs::fs
