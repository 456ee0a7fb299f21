#include "pack.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "chunking/digest.h"

namespace cairnfs::bench {

void StopWithErrno(const std::string& what) {
  std::fprintf(stderr, "bench_floor: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

FloorBuffers::FloorBuffers(size_t count) {
  size_t size = count * kBufferBytes;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) StopWithErrno("memory for the buffers");
  madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 1, size);
  base_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < count; i++) free_.push_back(i);
}

size_t FloorBuffers::Take() {
  std::unique_lock lock(mutex_);
  freed_.wait(lock, [this] { return !free_.empty(); });
  size_t index = free_.back();
  free_.pop_back();
  return index;
}

void FloorBuffers::GiveBack(size_t index) {
  {
    std::lock_guard lock(mutex_);
    free_.push_back(index);
  }
  freed_.notify_one();
}

Pack::Pack(const FloorOptions& options, FloorBuffers& buffers) : options_(options), buffers_(buffers) {
  if (!options_.pack_path.empty()) {
    pack_ = open(options_.pack_path.c_str(), O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
    if (pack_ < 0) StopWithErrno(options_.pack_path);
    if (fallocate(pack_, 0, 0, static_cast<off_t>(options_.pack_bytes)) != 0) StopWithErrno(options_.pack_path);
    if (int code = io_uring_queue_init(512, &ring_, 0); code != 0) {
      errno = -code;
      StopWithErrno("io_uring");
    }
    std::thread([this] { ReapWrites(); }).detach();
  }
  for (unsigned i = 0; i < options_.hash_threads; i++) std::thread([this] { HashAndWrite(); }).detach();
}

void Pack::Add(size_t buffer, size_t size) {
  {
    std::lock_guard lock(queue_mutex_);
    queue_.push_back({buffer, size});
  }
  queued_.notify_one();
}

void Pack::HashAndWrite() {
  while (true) {
    Work work;
    {
      std::unique_lock lock(queue_mutex_);
      queued_.wait(lock, [this] { return !queue_.empty(); });
      work = queue_.front();
      queue_.pop_front();
    }
    bool known = false;
    if (options_.hash) {
      Digest digest = chunking::ComputeDigest({buffers_.payload(work.buffer), work.size});
      known = options_.drop_known && IsKnown(digest);
    }
    if (known || pack_ < 0) {
      Done(work.buffer);
    } else {
      StartWrite(work);
    }
  }
}

bool Pack::IsKnown(const Digest& digest) {
  std::lock_guard lock(known_mutex_);
  return !known_.insert(digest).second;
}

void Pack::StartWrite(const Work& work) {
  size_t size = (work.size + kPageBytes - 1) / kPageBytes * kPageBytes;
  uint64_t offset = end_.fetch_add(size) % options_.pack_bytes;
  std::lock_guard lock(ring_mutex_);
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);
  while (entry == nullptr) {
    io_uring_submit(&ring_);
    entry = io_uring_get_sqe(&ring_);
  }
  io_uring_prep_write(entry, pack_, buffers_.payload(work.buffer), static_cast<unsigned>(size), offset);
  io_uring_sqe_set_data64(entry, work.buffer);
  io_uring_submit(&ring_);
}

void Pack::ReapWrites() {
  while (true) {
    io_uring_cqe* completion;
    if (io_uring_wait_cqe(&ring_, &completion) != 0) continue;
    if (completion->res < 0) error_ = -completion->res;
    size_t buffer = io_uring_cqe_get_data64(completion);
    io_uring_cqe_seen(&ring_, completion);
    Done(buffer);
  }
}

void Pack::Done(size_t buffer) {
  buffers_.GiveBack(buffer);
  if (--in_flight_ == 0) {
    std::lock_guard lock(idle_mutex_);
    idle_.notify_all();
  }
}

int Pack::Sync() {
  {
    std::unique_lock lock(idle_mutex_);
    idle_.wait(lock, [this] { return in_flight_ == 0; });
  }
  if (pack_ >= 0 && fdatasync(pack_) != 0) return errno;
  return error_;
}

int Pack::Restart() {
  end_ = 0;
  if (pack_ < 0 || !options_.fresh_pack) return 0;
  if (ftruncate(pack_, 0) != 0) return errno;
  if (fallocate(pack_, 0, 0, static_cast<off_t>(options_.pack_bytes)) != 0) return errno;
  return fsync(pack_) == 0 ? 0 : errno;
}

}  // namespace cairnfs::bench
