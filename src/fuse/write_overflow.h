// Writes whose data found no room in the buffer pool, and the thread that waits for it in the receiver's place. Why it
// is there stands in receiver.h.
#pragma once

#include <fuse_lowlevel.h>

#include <deque>
#include <memory>
#include <thread>

#include "base/thread_annotations.h"
#include "base/types.h"
#include "fs/filesystem.h"
#include "fuse/packer.h"
#include "io/buffer_pool.h"

namespace cairnfs::fuse {

inline constexpr size_t kOverflowBytesMax = 64 * kMiB;

class WriteOverflow {
 public:
  explicit WriteOverflow(io::BufferPool& pool) : pool_(pool) {}
  ~WriteOverflow();

  // False when it is full. Only the keeper adds, so that what it is told stays true until it does.
  bool HasRoom() const;
  // Copies the payload; the write is given to the filesystem, and the request answered, once the pool has a buffer.
  void Add(fuse_req_t request, fs::FileSystem::WriteRequest write, ByteSpan payload);
  // REQUIRES: nothing is added any more. Hands on what is there, then ends the thread.
  void Stop();

 private:
  struct Postponed {
    fuse_req_t request;
    fs::FileSystem::WriteRequest write;  // without data
    std::unique_ptr<std::byte[]> payload;
    size_t size;
  };
  void Run();
  void HandOn(Postponed postponed);
  // Copies the payload into the pool; waits for room. Null data when the pool was closed, or is stuck
  // while the server stops.
  io::Slice Place(ByteSpan payload);

  io::BufferPool& pool_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Postponed> queue_ GUARDED_BY(mutex_);
  size_t queued_bytes_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool is_stuck_ = false;  // of the thread: no buffer came for the last write
  Packer packer_;          // of the thread
  std::thread thread_;     // of the keeper until Stop; started by the first Add
};

}  // namespace cairnfs::fuse
