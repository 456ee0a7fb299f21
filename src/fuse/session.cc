#include "fuse/session.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

#include "base/clock.h"
#include "base/log.h"
#include "fs/backing_files.h"
#include "fs/names.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"

namespace cairnfs::fuse {
namespace {

constexpr auto kWakeInterval = std::chrono::milliseconds(10);
constexpr uint64_t kInterruptBit = 1;  // of `unique`: an INTERRUPT; the kernel's other numbers are even

bool OwesReply(const fuse_in_header& header) {
  return header.opcode != FUSE_FORGET && header.opcode != FUSE_BATCH_FORGET && header.opcode != FUSE_INTERRUPT;
}

// libfuse asks for it, but the receivers read the descriptor themselves.
ssize_t ReadNothing(int, void*, size_t, void*) {
  errno = ENOSYS;
  return -1;
}

void LogFromLibfuse(fuse_log_level level, const char* format, va_list arguments) {
  char text[512];
  int size = std::vsnprintf(text, sizeof text, format, arguments);
  std::string_view message(text, std::min<size_t>(size < 0 ? 0 : static_cast<size_t>(size), sizeof text - 1));
  while (message.ends_with('\n')) message.remove_suffix(1);
  spdlog::log(level <= FUSE_LOG_ERR ? spdlog::level::err : spdlog::level::debug, "{}", message);
}

}  // namespace

Session::Session(Device& device, io::BufferPool& pool, const SessionOptions& options)
    : device_(device),
      pool_(pool),
      options_(options),
      kill_watch_(IsBeingKilled),
      overflow_([this] { return AwaitBuffer(); }),
      backing_ids_(device, [this](uint64_t node) {
        static_cast<void>(fuse_lowlevel_notify_inval_inode(session_, node, -1, 0));  // ENOENT: it knows none
      }) {
  // One that does not wait (receiver.h), so one other at least.
  const size_t count = std::max(2U, options.receive_threads);
  for (size_t i = 0; i < count; ++i) {
    receivers_.push_back(std::make_unique<Receiver>(*this, pool));
  }
}

Session::~Session() {
  if (session_ != nullptr) fuse_session_destroy(session_);
}

Result<std::unique_ptr<Session>> Session::Create(Device& device, io::BufferPool& pool, const SessionOptions& options) {
  fuse_set_log_func(LogFromLibfuse);
  std::unique_ptr<Session> session(new Session(device, pool, options));
  CAIRNFS_RETURN_IF_ERROR(session->overflow_.Start());
  char name[] = "cairnfs";
  char* argv[] = {name, nullptr};
  fuse_args arguments = FUSE_ARGS_INIT(1, argv);
  const fuse_lowlevel_ops& operations = Operations(&Session::Init);
  session->session_ = fuse_session_new(&arguments, &operations, sizeof operations, session.get());
  fuse_opt_free_args(&arguments);
  if (session->session_ == nullptr) return MakeError(ErrorCode::kIo, "libfuse could not make a session");
  // The session closes its descriptor; the device keeps its own.
  int fd = fcntl(device.fd(), F_DUPFD_CLOEXEC, 3);
  if (fd < 0) return ErrnoError(errno, "duplicate the descriptor of /dev/fuse");
  fuse_custom_io io{};
  io.writev = &Session::WriteReply;
  io.read = ReadNothing;
  if (int error = fuse_session_custom_io(session->session_, &io, fd); error != 0) {
    close(fd);
    return ErrnoError(-error, "fuse_session_custom_io");
  }
  return session;
}

void Session::Init(void* user_data, fuse_conn_info* connection) {
  auto* session = static_cast<Session*>(user_data);
  connection->max_background = session->options_.max_background;
  connection->congestion_threshold = std::max(1U, session->options_.max_background * 3 / 4);
  // These change what libfuse itself does. PatchInitReply sets the flags of the answer.
  connection->want &= ~(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
}

ssize_t Session::WriteReply(int fd, iovec* parts, int count, void* user_data) {
  return static_cast<Session*>(user_data)->WriteAndCount(fd, parts, count);
}

Wishes Session::wishes() const {
  const bool passthrough = backing_memory_ && backing_memory_->ok() && (offer_.flags & kFusePassthrough) != 0;
  // With two node ids for a file the kernel would keep two tables of its locks.
  const bool kernel_keeps_locks = filesystem_->owns_names() && !passthrough;
  return {.lock_keeper = kernel_keeps_locks ? LockKeeper::kKernel : LockKeeper::kDaemon, .passthrough = passthrough};
}

ssize_t Session::WriteAndCount(int fd, iovec* parts, int count) {
  const auto* header = static_cast<const fuse_out_header*>(parts[0].iov_base);
  const uint64_t unique = header->unique;
  if (unique != 0 && unique == init_unique_.load() && header->error == 0 && count == 2 &&
      parts[1].iov_len >= sizeof(fuse_init_out)) {
    PatchInitReply(offer_, *static_cast<fuse_init_out*>(parts[1].iov_base), wishes());
  }
  ssize_t written = writev(fd, parts, count);
  const int error = errno;
  if (unique != 0 && !(unique & kInterruptBit)) owed_replies_.fetch_sub(1, std::memory_order_release);
  errno = error;
  return written;
}

bool Session::TryBeginWait() {
  size_t waiting = waiting_.load();
  while (waiting + 1 < receivers_.size()) {
    if (waiting_.compare_exchange_weak(waiting, waiting + 1)) return true;
  }
  return false;
}

Result<io::BufferRef> Session::AwaitBuffer() {
  std::optional<Error> why;
  const auto waits_since = Clock::Now();
  io::BufferRef buffer = pool_.Acquire([this, &why, waits_since](std::chrono::milliseconds without_release) {
    if (stopping() && without_release >= kStopPatience) {
      why = MakeError(ErrorCode::kFailed, "write: the server stops, and no buffer comes free");
    } else {
      why = filesystem_->WhyNoBufferComes(without_release, waits_since);
    }
    return why.has_value();
  });
  if (buffer) return buffer;
  return why ? *why : MakeError(ErrorCode::kFailed, "write: the buffer pool is closed");
}

void Session::NoteRequest(const fuse_in_header& header, ByteSpan body) {
  if (OwesReply(header)) owed_replies_.fetch_add(1, std::memory_order_relaxed);
  if (header.opcode != FUSE_INIT) return;
  if (auto offer = DecodeInitRequest(body)) {
    offer_ = *offer;
    init_unique_.store(header.unique);
  }
}

void Session::NoteProcessed(const fuse_in_header& header) {
  if (header.opcode != FUSE_INIT) return;
  const uint64_t agreed = AgreedFlags(offer_, wishes());
  spdlog::info("{}: kernel speaks FUSE {}.{}, writes of up to {} KiB", device_.mount_point(), offer_.major,
               offer_.minor, (agreed & FUSE_MAX_PAGES ? kMaxWriteBytes : kOldMaxWriteBytes) / kKiB);
  if (!(agreed & kFuseDirectIoAllowMmap)) {
    spdlog::warn(
        "{}: this kernel allows no shared mappings: mmap with MAP_SHARED fails with ENODEV, all else works; use Linux "
        "6.6 or newer",
        device_.mount_point());
  }
  if (backing_memory_.has_value()) BeginPassthrough();
  // The kernel set its own value while it took the answer.
  device_.SetReadAhead(options_.read_ahead_bytes);
}

bool Session::has_two_ids() const { return filesystem_->backing_files().is_begun(); }

void Session::NoteNoPassthrough(const std::string& why) {
  spdlog::warn("{}: no passthrough, all reads go through the daemon: {}", device_.mount_point(), why);
  filesystem_->backing_files().NoteOff(why);
}

void Session::PreparePassthrough() {
  if (!options_.passthrough) return filesystem_->backing_files().NoteOff("the option passthrough is false");
  if (!filesystem_->owns_names()) return NoteNoPassthrough("several hosts share the files");
  backing_memory_ = io::BackingFs::Open({.size_bytes_max = pool_.lendable_bytes()});
}

void Session::BeginPassthrough() {
  // First: an older kernel refuses that memory too.
  if ((offer_.flags & kFusePassthrough) == 0) {
    return NoteNoPassthrough("this kernel offers none: it takes Linux 6.9 or newer");
  }
  if (!backing_memory_->ok()) return NoteNoPassthrough(backing_memory_->error().message);
  io::BackingFs& memory = ***backing_memory_;
  // Whether the kernel takes such files shows when it gets one.
  auto file = memory.MakeFile();
  auto id = file.ok() ? backing_ids_.Register((*file)->fd()) : Result<fs::BackingId>(file.error());
  if (!id.ok()) return NoteNoPassthrough(id.error().message);
  backing_ids_.Unregister(*id);
  const uint64_t files_max = std::min(fs::BackingFiles::kFilesMax, options_.passthrough_descriptors_max / 2);
  const Status begun = filesystem_->backing_files().Begin({memory, backing_ids_, files_max});
  if (!begun.ok()) return NoteNoPassthrough(begun.error().message);
  spdlog::info("{}: the kernel reads files of up to {} MiB in all past the daemon", device_.mount_point(),
               pool_.lendable_bytes() / kMiB);
}

void Session::NoteReceiverEnd(Status status) {
  MutexLock lock(mutex_);
  if (status.ok()) {
    --running_;
  } else if (receive_status_.ok()) {
    receive_status_ = std::move(status);
  }
  changed_.NotifyAll();
}

Status Session::Serve(fs::FileSystem& filesystem) {
  filesystem_ = &filesystem;
  {
    MutexLock lock(mutex_);
    running_ = receivers_.size();
  }
  // What is named past the kernel, which may remember that the name is absent.
  filesystem.names().TellNames([this](InodeId parent, const std::string& name) {
    static_cast<void>(fuse_lowlevel_notify_inval_entry(session_, parent.value, name.data(), name.size()));
    static_cast<void>(fuse_lowlevel_notify_inval_inode(session_, parent.value, -1, 0));  // its times
  });
  PreparePassthrough();
  for (auto& receiver : receivers_) receiver->Start();
  WaitForReceivers();
  filesystem.names().TellNames({});
  for (auto& receiver : receivers_) receiver->Join();
  stop_.request_stop();
  fuse_session_exit(session_);
  overflow_.Stop();
  // Nobody is left who could free what these waits are for.
  filesystem.EndWaits();
  WaitForReplies();
  filesystem.backing_files().End();
  MutexLock lock(mutex_);
  return receive_status_;
}

void Session::WaitForReceivers() {
  MutexLock lock(mutex_);
  while (running_ > 0) {
    // One receiver that ended ends the others: when the descriptor failed they would wait for ever.
    if (running_ < receivers_.size() && !stopping()) {
      // Not under the lock: it calls whoever waits.
      lock.Unlock();
      stop_.request_stop();
      lock.Lock();
      continue;
    }
    if (!stopping()) {
      changed_.Wait(mutex_);
      continue;
    }
    for (auto& receiver : receivers_) receiver->Wake();
    changed_.WaitFor(mutex_, kWakeInterval);
  }
}

void Session::WaitForReplies() {
  while (owed_replies_.load(std::memory_order_acquire) > 0) Clock::SleepFor(std::chrono::milliseconds(1));
}

void Session::RequestStop() {
  stop_.request_stop();
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

bool Session::Alive() const {
  const auto now = Clock::Now();
  return std::none_of(receivers_.begin(), receivers_.end(), [&](const auto& receiver) { return receiver->Stuck(now); });
}

Session& SessionOf(fuse_req_t request) { return *static_cast<Session*>(fuse_req_userdata(request)); }

}  // namespace cairnfs::fuse
