#include "fuse/receiver.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/clock.h"
#include "fuse/node_ids.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

// In front of a WRITE's payload.
constexpr size_t kWriteHeaderBytes = sizeof(fuse_in_header) + sizeof(fuse_write_in);
static_assert(kWriteHeaderBytes == 80);
constexpr size_t kRequestBytesMax = kWriteHeaderBytes + io::BufferPool::kPayloadBytes;
static_assert(kRequestBytesMax >= kWriteHeaderBytes + kMaxWriteBytes);

thread_local Receiver* current_receiver = nullptr;

int WakeSignal() { return SIGRTMIN + 4; }

void InstallWakeSignal() {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART: read(2) returns EINTR
  sigemptyset(&action.sa_mask);
  sigaction(WakeSignal(), &action, nullptr);
}

// The process's signals are for its other threads.
void TakeOnlyWakeSignal() {
  sigset_t set;
  sigfillset(&set);
  sigdelset(&set, WakeSignal());
  pthread_sigmask(SIG_SETMASK, &set, nullptr);
}

int64_t Ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

// A signal to wake would cut calls short that others make.
enum class WakeSignals { kHeld, kLetIn };
void Set(WakeSignals state) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, WakeSignal());
  pthread_sigmask(state == WakeSignals::kHeld ? SIG_BLOCK : SIG_UNBLOCK, &set, nullptr);
}

}  // namespace

Receiver::Wait::Wait(Receiver& receiver) : receiver_(receiver), is_long_(receiver.session_.TryBeginWait()) {
  Set(WakeSignals::kHeld);
  receiver_.busy_since_.store(0, std::memory_order_relaxed);
}

Receiver::Wait::~Wait() {
  receiver_.busy_since_.store(Ticks(Clock::Now()), std::memory_order_relaxed);
  if (is_long_) receiver_.session_.EndWait();
  Set(WakeSignals::kLetIn);
}

void Receiver::Join() {
  if (thread_.joinable()) thread_.join();
}

Receiver& Receiver::Current() {
  assert(current_receiver != nullptr);
  return *current_receiver;
}

void Receiver::Start() {
  InstallWakeSignal();
  ended_.store(false);
  thread_ = std::thread([this] { Run(); });
}

void Receiver::Wake() {
  if (!ended_.load()) pthread_kill(thread_.native_handle(), WakeSignal());
}

bool Receiver::Stuck(Clock::time_point now) const {
  const int64_t since = busy_since_.load(std::memory_order_relaxed);
  return since != 0 && Ticks(now) - since > Clock::duration(kStuckAfter).count();
}

void Receiver::Run() {
  TakeOnlyWakeSignal();
  pthread_setname_np(pthread_self(), "fuse-receiver");
  current_receiver = this;
  home_ = pool_.AcquireReserved();
  while (home_ && !session_.stopping() && ReceiveOne()) {
  }
  home_ = {};
  packer_.Drop();
  ended_.store(true);
  session_.NoteReceiverEnd({});
}

bool Receiver::ReceiveOne() {
  std::byte* start = home_.payload() - kWriteHeaderBytes;
  ssize_t size = read(session_.device().fd(), start, kRequestBytesMax);
  if (size < 0) {
    // ENOENT: the request was taken back while it was read.
    if (errno == EINTR || errno == ENOENT || errno == EAGAIN) return true;
    // ENODEV: unmounted. ECONNABORTED: aborted through sysfs.
    if (errno != ENODEV && errno != ECONNABORTED) session_.NoteReceiverEnd(ErrnoError(errno, "read /dev/fuse"));
    return false;
  }
  if (static_cast<size_t>(size) < sizeof(fuse_in_header)) {
    session_.NoteReceiverEnd(MakeError(ErrorCode::kIo, "short read from /dev/fuse"));
    return false;
  }
  is_beside_ = session_.has_two_ids() && TakeBesideBits({start, static_cast<size_t>(size)});
  message_ = start;
  Process(static_cast<size_t>(size));
  return true;
}

void Receiver::Process(size_t size) {
  busy_since_.store(Ticks(Clock::Now()), std::memory_order_relaxed);
  // The header is copied: the buffer may belong to the filesystem after the call.
  fuse_in_header header;
  std::memcpy(&header, message_, sizeof header);
  session_.NoteRequest(header, {message_ + sizeof header, size - sizeof header});
  fuse_buf buffer{};
  buffer.mem = const_cast<std::byte*>(message_);
  buffer.size = size;
  fuse_session_process_buf(session_.handle(), &buffer);
  session_.NoteProcessed(header);
  busy_since_.store(0, std::memory_order_relaxed);
}

io::BufferRef Receiver::AcquireWithPatience() {
  const auto deadline = Clock::Now() + kKeeperPatience;
  for (;;) {
    if (io::BufferRef buffer = pool_.TryAcquire()) return buffer;
    if (Clock::Now() >= deadline) return {};
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
}

Receiver::Payload Receiver::Admit(io::BufferRef& buffer) {
  buffer = pool_.TryAcquire();
  if (buffer) return {Outcome::kTaken, {}, {}};
  const Wait wait(*this);
  if (!wait.is_long() && session_.overflow().HasRoom()) {
    buffer = AcquireWithPatience();
    return {buffer ? Outcome::kTaken : Outcome::kPostponed, {}, {}};
  }
  Result<io::BufferRef> awaited = session_.AwaitBuffer();
  if (!awaited.ok()) return {Outcome::kRefused, {}, awaited.error()};
  buffer = *std::move(awaited);
  return {Outcome::kTaken, {}, {}};
}

Receiver::Payload Receiver::TakePayload(ByteSpan payload) {
  if (payload.size() < kKeptPayloadBytesMin) return Pack(payload);
  io::BufferRef next;
  Payload taken = Admit(next);
  if (taken.outcome != Outcome::kTaken) return taken;
  taken.slice = io::Slice{std::move(home_), payload.data(), payload.size()};
  home_ = std::move(next);
  return taken;
}

Receiver::Payload Receiver::Pack(ByteSpan payload) {
  if (!packer_.Fits(payload.size())) {
    packer_.Drop();
    io::BufferRef next;
    Payload admitted = Admit(next);
    if (admitted.outcome != Outcome::kTaken) return admitted;
    packer_.Refill(std::move(next));
  }
  return {Outcome::kTaken, packer_.Add(payload), {}};
}

}  // namespace cairnfs::fuse
