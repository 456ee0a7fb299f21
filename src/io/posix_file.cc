#include "io/posix_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>

namespace cairnfs::io {
namespace {

// Calls again while a signal interrupts it; 0 or the errno.
template <typename Call>
int Retried(Call call) {
  while (call() != 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Error OpenError(int errno_value, const std::string& what) {
  Error error = ErrnoError(errno_value, what);
  if (errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOMEM) error.code = ErrorCode::kExhausted;
  return error;
}

PosixFile::PosixFile(int fd, std::string path, bool direct, const Shared& disk)
    : fd_(fd), path_(std::move(path)), direct_(direct), disk_(disk) {
  disk_.open_count.fetch_add(1, std::memory_order_relaxed);
}

PosixFile::~PosixFile() {
  assert(in_flight_.load(std::memory_order_acquire) == 0 && "a file is closed while an operation is in flight");
  close(fd_);
  disk_.open_count.fetch_sub(1, std::memory_order_release);
}

void PosixFile::Start(Direction direction, uint64_t offset, std::byte* data, size_t size, IoCallback done) {
  if (direct_) {
    assert(offset % kPageBytes == 0 && size % kPageBytes == 0 && reinterpret_cast<uintptr_t>(data) % kPageBytes == 0 &&
           "direct I/O moves whole aligned pages");
  }
  in_flight_.fetch_add(1, std::memory_order_relaxed);
  auto request = std::make_unique<IoRequest>();
  request->write = direction == Direction::kWrite;
  request->direct = direct_;
  request->fd = fd_;
  request->offset = offset;
  request->data = data;
  request->size = size;
  request->done = std::move(done);
  request->path = &path_;
  request->in_flight = &in_flight_;
  disk_.engine.Submit(std::move(request));
}

void PosixFile::ReadAsync(uint64_t offset, MutableByteSpan data, IoCallback done) {
  Start(Direction::kRead, offset, data.data(), data.size(), std::move(done));
}

void PosixFile::WriteAsync(uint64_t offset, ByteSpan data, IoCallback done) {
  Start(Direction::kWrite, offset, const_cast<std::byte*>(data.data()), data.size(), std::move(done));
}

// The engine writes what one call leaves unwritten: it knows how to go on, and what an error means.
Status PosixFile::Write(uint64_t offset, ByteSpan data) {
  const ssize_t written = pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
  if (written >= 0 && static_cast<size_t>(written) == data.size()) return {};
  return File::Write(offset, data);
}

Status PosixFile::DataSync() {
  int error = Retried([this] { return fdatasync(fd_); });
  if (error != 0) return ErrnoError(error, "syncing " + path_);
  return {};
}

// A fallocate that fails takes all free blocks before it finds that they are too few, and keeps them. So it is tried
// only when the disk seems to have enough, and blocks that a failed one took are given back.
Status PosixFile::Allocate(uint64_t size) {
  if (size == 0) return {};
  const std::string what = "allocating " + std::to_string(size) + " bytes for " + path_;
  struct stat attributes;
  struct statvfs space;
  if (fstat(fd_, &attributes) != 0 || fstatvfs(fd_, &space) != 0) return ErrnoError(errno, what);
  const auto size_before = static_cast<uint64_t>(attributes.st_size);
  const uint64_t allocated = static_cast<uint64_t>(attributes.st_blocks) * 512;
  const bool limited = space.f_blocks != 0;  // a file system in memory may have no size
  if (limited && size > allocated && size - allocated > uint64_t{space.f_bavail} * space.f_frsize) {
    return ErrnoError(ENOSPC, what);
  }
  int error = Retried([&] { return fallocate(fd_, 0, 0, static_cast<off_t>(size)); });
  if (error == EOPNOTSUPP) return size_before >= size ? Status() : Truncate(size);
  if (error == 0) return {};
  if (error == ENOSPC) CAIRNFS_RETURN_IF_ERROR(Truncate(size_before));
  return OpenError(error, what);
}

Status PosixFile::Truncate(uint64_t size) {
  int error = Retried([&] { return ftruncate(fd_, static_cast<off_t>(size)); });
  if (error != 0) return ErrnoError(error, "truncating " + path_ + " to " + std::to_string(size) + " bytes");
  return {};
}

Result<uint64_t> PosixFile::Size() {
  struct stat attributes;
  if (fstat(fd_, &attributes) != 0) return ErrnoError(errno, "size of " + path_);
  return static_cast<uint64_t>(attributes.st_size);
}

}  // namespace cairnfs::io
