// A file behind passthrough that is a string, for tests without the kernel.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "base/thread_annotations.h"
#include "io/backing_fs.h"

namespace cairnfs {

class MemoryBacking final : public io::BackingFile {
 public:
  explicit MemoryBacking(uint64_t room) : room_(room) {}

  Status Write(uint64_t offset, ByteSpan data) override {
    MutexLock lock(mutex_);
    if (written_ + data.size() > room_) return MakeError(ErrorCode::kNoSpace, "there is no memory for it");
    written_ += data.size();
    text_.resize(std::max<size_t>(text_.size(), offset + data.size()));
    text_.replace(offset, data.size(), AsText(data));
    return {};
  }
  Status Truncate(uint64_t size) override {
    MutexLock lock(mutex_);
    text_.resize(size);
    return {};
  }
  Status Punch(uint64_t offset, uint64_t length) override {
    MutexLock lock(mutex_);
    const uint64_t begin = std::min<uint64_t>(offset, text_.size());
    const uint64_t end = std::min<uint64_t>(offset + length, text_.size());
    std::fill(text_.begin() + static_cast<ptrdiff_t>(begin), text_.begin() + static_cast<ptrdiff_t>(end), '\0');
    return {};
  }
  void EndWriting() override {}
  int fd() const override { return -1; }
  Result<bool> IsUsed() override {
    MutexLock lock(mutex_);
    return is_used_;
  }

  void SetRoom(uint64_t bytes) {  // that may be written, over all
    MutexLock lock(mutex_);
    room_ = bytes;
  }
  void SetUsed(bool is_used) {
    MutexLock lock(mutex_);
    is_used_ = is_used;
  }
  std::string text() const {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  mutable Mutex mutex_;
  std::string text_ GUARDED_BY(mutex_);
  uint64_t room_ GUARDED_BY(mutex_);
  uint64_t written_ GUARDED_BY(mutex_) = 0;
  bool is_used_ GUARDED_BY(mutex_) = false;
};

// Files of as many bytes each as there may be of all.
class MemoryBackings final : public io::BackingFs {
 public:
  explicit MemoryBackings(uint64_t room) : room_(room) {}
  Result<std::unique_ptr<io::BackingFile>> MakeFile() override {
    auto file = std::make_unique<MemoryBacking>(room_);
    last = file.get();
    return std::unique_ptr<io::BackingFile>(std::move(file));
  }
  Result<uint64_t> UsedBytes() const override { return uint64_t{0}; }

  MemoryBacking* last = nullptr;  // that was made

 private:
  const uint64_t room_;
};

}  // namespace cairnfs
