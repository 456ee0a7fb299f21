#include "device_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace cairnfs::testing {

SharedCount::SharedCount(const std::string& path) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, 4096) != 0) {
    perror(path.c_str());
    exit(2);
  }
  void* map = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) abort();
  value_ = static_cast<uint64_t*>(map);
  close(fd);
}

SharedCount::~SharedCount() { munmap(value_, 4096); }

uint64_t SharedCount::Get() const { return std::atomic_ref<uint64_t>(*value_).load(); }
void SharedCount::Increment() { ++std::atomic_ref<uint64_t>(*value_); }

DeviceLog::DeviceLog(const std::string& path) {
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info;
  if (fd < 0 || fstat(fd, &info) != 0) {
    perror(path.c_str());
    exit(2);
  }
  size_ = info.st_size;
  map_ = size_ == 0 ? nullptr : mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  const char* bytes = static_cast<const char*>(map_);
  for (size_t at = 0; at + sizeof(LogEntryHeader) <= size_;) {
    LogEntryHeader header;
    std::memcpy(&header, bytes + at, sizeof(header));
    at += sizeof(header);
    auto kind = static_cast<LogEntryHeader::Kind>(header.kind);
    entries_.push_back(Entry{kind, header.device, header.offset, bytes + at, header.length, header.time_ns});
    if (kind == LogEntryHeader::kWrite) at += header.length;
  }
}

DeviceLog::~DeviceLog() {
  if (map_ != nullptr) munmap(map_, size_);
}

uint64_t DeviceLog::SafeAt(uint64_t position, uint32_t device) const {
  for (uint64_t i = position; i > 0; --i) {
    if (entries_[i - 1].kind == LogEntryHeader::kFlush && entries_[i - 1].device == device) return i;
  }
  return 0;
}

}  // namespace cairnfs::testing
