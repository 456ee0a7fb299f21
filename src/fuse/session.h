// One mount being served: the libfuse session, the receiving threads, and the count of requests without a reply yet.
#pragma once

#include <fuse_lowlevel.h>

#include <atomic>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fuse/backing_ids.h"
#include "fuse/device.h"
#include "fuse/kill_watch.h"
#include "fuse/negotiation.h"
#include "fuse/receiver.h"
#include "fuse/write_overflow.h"
#include "io/backing_fs.h"
#include "io/buffer_pool.h"

namespace cairnfs::fuse {

struct SessionOptions {
  unsigned receive_threads = 2;
  unsigned max_background = 64;
  size_t read_ahead_bytes = 4 * kMiB;
  bool passthrough = false;  // where it can be had
  uint64_t passthrough_descriptors_max = UINT64_MAX;
};

// When a server stops and no buffer comes back for this long, it gives up the writes that wait for one: the accepted
// bytes are stuck, on a disk that hangs.
inline constexpr std::chrono::seconds kStopPatience{10};

class Session {
 public:
  // The device and the pool outlive the session.
  static Result<std::unique_ptr<Session>> Create(Device& device, io::BufferPool& pool, const SessionOptions& options);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Receives until the connection is gone or RequestStop was called; every request taken is answered on return.
  Status Serve(fs::FileSystem& filesystem);
  // Makes the receiving threads end, also while the kernel keeps the connection open.
  void RequestStop();
  bool Alive() const;

  // For the operations and the receivers.
  fs::FileSystem& filesystem() const { return *filesystem_; }
  WriteOverflow& overflow() { return overflow_; }
  Device& device() { return device_; }
  fuse_session* handle() const { return session_; }
  // Whether the kernel may name files by the node id beside (fuse/node_ids.h).
  bool has_two_ids() const;
  bool stopping() const { return stop_.stop_requested(); }
  std::stop_token stop() const { return stop_.get_token(); }  // requested once the server stops
  KillWatch& kill_watch() { return kill_watch_; }
  // Waits for a buffer of the pool for a write. An error is the answer to the write: accepted bytes hold all buffers
  // and find no room, or are stuck while the server stops.
  Result<io::BufferRef> AwaitBuffer();
  // For a receiver that may have to wait: whether another one is left that does not. EndWait after each true.
  bool TryBeginWait();
  void EndWait() { waiting_.fetch_sub(1); }
  // Before the request in `header` is processed; `body` follows the header.
  void NoteRequest(const fuse_in_header& header, ByteSpan body);
  // After it was processed.
  void NoteProcessed(const fuse_in_header& header);
  // To be called when a receiver is about to end, by itself or with an error.
  void NoteReceiverEnd(Status status);

 private:
  Session(Device& device, io::BufferPool& pool, const SessionOptions& options);
  static ssize_t WriteReply(int fd, iovec* parts, int count, void* user_data);
  static void Init(void* user_data, fuse_conn_info* connection);
  ssize_t WriteAndCount(int fd, iovec* parts, int count);
  Wishes wishes() const;
  // Opens the memory for files that the kernel reads itself, if there may be any; and, once the kernel has agreed, has
  // them begin.
  void PreparePassthrough();
  void BeginPassthrough();
  void NoteNoPassthrough(const std::string& why);
  void WaitForReceivers();
  void WaitForReplies();

  // Constant after construction (filesystem_: after Serve began).
  Device& device_;
  io::BufferPool& pool_;
  const SessionOptions options_;
  fuse_session* session_ = nullptr;
  fs::FileSystem* filesystem_ = nullptr;
  std::vector<std::unique_ptr<Receiver>> receivers_;

  KillWatch kill_watch_;
  WriteOverflow overflow_;
  std::stop_source stop_;
  std::atomic<size_t> waiting_{0};  // receivers
  std::atomic<int64_t> owed_replies_{0};

  // The INIT exchange happens on one thread, before any other request is sent.
  std::atomic<uint64_t> init_unique_{0};
  KernelOffer offer_;

  // Of files that the kernel reads itself; null: it reads none.
  std::optional<Result<std::unique_ptr<io::BackingFs>>> backing_memory_;  // nullopt: passthrough is not wanted
  BackingIds backing_ids_;

  Mutex mutex_;
  CondVar changed_;
  size_t running_ GUARDED_BY(mutex_) = 0;
  Status receive_status_ GUARDED_BY(mutex_);
};

// The session that a request came through.
Session& SessionOf(fuse_req_t request);

}  // namespace cairnfs::fuse
