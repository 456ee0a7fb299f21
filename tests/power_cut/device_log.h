// The log of one or several devices: every write and every flush, in the order in which they reached them.
//
// File format: entries one after another, each a LogEntryHeader and, for a write, `length` bytes. Beside it lies a file
// of 8 bytes that holds the count of whole entries, mapped shared by the server and the test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairnfs::testing {

struct LogEntryHeader {
  enum Kind : uint32_t { kWrite = 1, kFlush = 2 };
  uint32_t kind;
  uint32_t device;
  uint64_t offset;
  uint64_t length;
  int64_t time_ns;  // CLOCK_MONOTONIC
};
static_assert(sizeof(LogEntryHeader) == 32);

// The count of entries, shared between processes.
class SharedCount {
 public:
  explicit SharedCount(const std::string& path);  // creates the file if it is not there
  ~SharedCount();
  SharedCount(const SharedCount&) = delete;
  uint64_t Get() const;
  void Increment();

 private:
  uint64_t* value_;
};

// A log that is complete, mapped for reading.
class DeviceLog {
 public:
  struct Entry {
    LogEntryHeader::Kind kind;
    uint32_t device;
    uint64_t offset;
    const char* data;
    uint64_t length;
    int64_t time_ns;
  };
  explicit DeviceLog(const std::string& path);
  ~DeviceLog();
  DeviceLog(const DeviceLog&) = delete;
  const std::vector<Entry>& entries() const { return entries_; }
  // The entry that the last flush of the device before `position` is, plus one; 0 without any. Its writes before that
  // are safe.
  uint64_t SafeAt(uint64_t position, uint32_t device) const;

 private:
  void* map_ = nullptr;
  size_t size_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace cairnfs::testing
