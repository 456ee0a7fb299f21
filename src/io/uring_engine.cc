// io_uring: one ring, one thread that takes the completions.
//
// Invariants: at most `queue_depth_` requests are in the ring, which has as many submission entries and twice as many
// completion entries, so neither side can overflow. The submission side belongs to the thread that holds mutex_, the
// completion side to the reaper alone. The reaper never waits for a free place: a request that a callback submits to a
// full ring goes to `overflow_`.
#include <liburing.h>
#include <pthread.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <deque>
#include <thread>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "io/io_engine.h"

namespace cairnfs::io {
namespace {

// An error that only a broken ring can give: nobody would ever hear of the requests in it.
[[noreturn]] void StopForBrokenRing(const char* call, int error) {
  spdlog::critical("{} failed: {}; requests in the ring are lost", call, std::strerror(-error));
  std::abort();
}

bool IsPassing(int error) { return error == -EINTR || error == -EAGAIN || error == -EBUSY || error == -ENOMEM; }

class UringEngine final : public IoEngine {
 public:
  UringEngine(const io_uring& ring, unsigned queue_depth) : ring_(ring), queue_depth_(queue_depth) {
    reaper_ = std::thread([this] { Reap(); });
  }
  ~UringEngine() override;
  void Submit(std::unique_ptr<IoRequest> request) override;

 private:
  io_uring_sqe* NextEntry() REQUIRES_LOCK(mutex_);
  void SubmitEntries() REQUIRES_LOCK(mutex_);
  void Push(IoRequest* request) REQUIRES_LOCK(mutex_);
  void Reap();
  void Complete(std::unique_ptr<IoRequest> request, int outcome) EXCLUDES_LOCK(mutex_);

  io_uring ring_;
  const unsigned queue_depth_;
  Mutex mutex_;
  CondVar place_freed_;
  unsigned in_ring_ GUARDED_BY(mutex_) = 0;
  // What callbacks asked for. Bounded as what they were called for: each request has memory of its caller's.
  std::deque<std::unique_ptr<IoRequest>> overflow_ GUARDED_BY(mutex_);
  std::thread reaper_;
};

UringEngine::~UringEngine() {
  {
    MutexLock lock(mutex_);
    assert(in_ring_ == 0 && overflow_.empty());
    io_uring_sqe* entry = NextEntry();
    io_uring_prep_nop(entry);
    io_uring_sqe_set_data(entry, this);  // tells the reaper to end
    SubmitEntries();
  }
  reaper_.join();
  io_uring_queue_exit(&ring_);
}

void UringEngine::Submit(std::unique_ptr<IoRequest> request) {
  MutexLock lock(mutex_);
  if (in_ring_ == queue_depth_ && std::this_thread::get_id() == reaper_.get_id()) {
    overflow_.push_back(std::move(request));
    return;
  }
  while (in_ring_ == queue_depth_) place_freed_.Wait(mutex_);
  in_ring_++;
  Push(request.release());
}

io_uring_sqe* UringEngine::NextEntry() {
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  assert(entry != nullptr && "the ring has an entry for each request");
  return entry;
}

void UringEngine::SubmitEntries() {
  while (true) {
    int submitted = io_uring_submit(&ring_);
    if (submitted >= 0 && io_uring_sq_ready(&ring_) == 0) return;
    if (submitted < 0 && !IsPassing(submitted)) StopForBrokenRing("io_uring_submit", submitted);
    Clock::SleepFor(std::chrono::microseconds(100));
  }
}

void UringEngine::Push(IoRequest* request) {
  io_uring_sqe* entry = NextEntry();
  const auto size = static_cast<unsigned>(request->next_size());
  if (request->write) {
    io_uring_prep_write(entry, request->fd, request->next_data(), size, request->next_offset());
  } else {
    io_uring_prep_read(entry, request->fd, request->next_data(), size, request->next_offset());
  }
  // Through the page cache the call itself would copy the bytes, here, under the lock: a kernel thread does it instead.
  if (!request->direct) io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
  io_uring_sqe_set_data(entry, request);
  SubmitEntries();
}

void UringEngine::Reap() {
  pthread_setname_np(pthread_self(), "disk-reaper");
  while (true) {
    io_uring_cqe* completion = nullptr;
    int error = io_uring_wait_cqe(&ring_, &completion);
    if (IsPassing(error)) continue;
    if (error < 0) StopForBrokenRing("io_uring_wait_cqe", error);
    void* data = io_uring_cqe_get_data(completion);
    const int outcome = completion->res;
    io_uring_cqe_seen(&ring_, completion);
    if (data == this) return;
    Complete(std::unique_ptr<IoRequest>(static_cast<IoRequest*>(data)), outcome);
  }
}

void UringEngine::Complete(std::unique_ptr<IoRequest> request, int outcome) {
  std::optional<Result<size_t>> result;
  {
    // Held while the request is looked at: the submitter's writes to it happened under the same lock.
    MutexLock lock(mutex_);
    result = Advance(*request, outcome);
    if (!result) {
      Push(request.release());
      return;
    }
    if (!overflow_.empty()) {
      std::unique_ptr<IoRequest> next = std::move(overflow_.front());
      overflow_.pop_front();
      Push(next.release());
    } else {
      in_ring_--;
      place_freed_.NotifyOne();
    }
  }
  Finish(std::move(request), std::move(*result));
}

bool HasOperations(io_uring* ring) {
  io_uring_probe* probe = io_uring_get_probe_ring(ring);
  if (probe == nullptr) return false;
  bool has = io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
  io_uring_free_probe(probe);
  return has;
}

}  // namespace

Result<std::unique_ptr<IoEngine>> MakeUringEngine(unsigned queue_depth) {
  constexpr unsigned kQueueDepthMax = 4096;
  queue_depth = std::clamp(queue_depth, 1U, kQueueDepthMax);
  io_uring ring;
  int error = io_uring_queue_init(queue_depth, &ring, 0);
  if (error < 0) return ErrnoError(-error, "setting up an io_uring of " + std::to_string(queue_depth) + " entries");
  if (!HasOperations(&ring)) {
    io_uring_queue_exit(&ring);
    return MakeError(ErrorCode::kNotSupported, "this kernel's io_uring cannot read and write; Linux 5.6 can");
  }
  return std::unique_ptr<IoEngine>(new UringEngine(ring, queue_depth));
}

}  // namespace cairnfs::io
