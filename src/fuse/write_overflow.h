// Writes whose data found no buffer in the pool, and the thread that waits for one in the receiver's place. receiver.h
// says why it is there.
#pragma once

#include <fuse_lowlevel.h>

#include <deque>
#include <functional>
#include <memory>
#include <thread>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "fs/filesystem.h"
#include "fuse/packer.h"
#include "io/buffer_pool.h"

namespace cairnfs::fuse {

inline constexpr size_t kOverflowBytesMax = 64 * kMiB;

class WriteOverflow {
 public:
  // As Session::AwaitBuffer.
  using AwaitBuffer = std::function<Result<io::BufferRef>()>;
  explicit WriteOverflow(AwaitBuffer await_buffer) : await_buffer_(std::move(await_buffer)) {}
  ~WriteOverflow();

  // Starts the thread. Done early, because when the pool runs dry the system may have no thread left. kUnavailable.
  Status Start();

  // False when it is full. Only the keeper adds, so a true answer holds until it does.
  bool HasRoom() const;
  // Copies the payload; the write is given to the filesystem, and the request answered, once the pool has a buffer, or
  // refused. REQUIRES: started, not stopped, HasRoom().
  void Add(fuse_req_t request, fs::FileSystem::WriteRequest write, ByteSpan payload);
  // Nothing is to be added any more. Hands on what is there, then ends the thread.
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
  // Copies the payload into the pool; waits for a buffer.
  Result<io::Slice> Place(ByteSpan payload);

  const AwaitBuffer await_buffer_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<Postponed> queue_ GUARDED_BY(mutex_);  // kOverflowBytesMax, and one more write
  size_t queued_bytes_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  Packer packer_;  // of the thread
  std::thread thread_;
};

}  // namespace cairnfs::fuse
