// Page-aligned bytes and scratch directories for the tests of disks.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>

#include "base/types.h"

namespace cairnfs::io {

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t size, std::byte fill = {})
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size)), &std::free), size_(size) {
    std::fill_n(bytes_.get(), size, fill);
  }
  static AlignedBytes Random(size_t size, uint64_t seed) {
    AlignedBytes bytes(size);
    std::mt19937_64 random(seed);
    for (size_t i = 0; i < size; i++) bytes.bytes_.get()[i] = static_cast<std::byte>(random());
    return bytes;
  }
  operator MutableByteSpan() { return {bytes_.get(), size_}; }  // NOLINT: implicit on purpose
  operator ByteSpan() const { return {bytes_.get(), size_}; }   // NOLINT
  std::byte& operator[](size_t i) { return bytes_.get()[i]; }
  std::string Text(size_t offset = 0, size_t length = std::string::npos) const {
    return std::string(AsText(ByteSpan(*this))).substr(offset, length);
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
  size_t size_;
};

// A new directory under `parent`, removed with what is in it.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& parent) : path_(parent + "/cairnfs_test_XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) path_.clear();
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  const std::string& path() const { return path_; }  // empty when it could not be made

 private:
  std::string path_;
};

}  // namespace cairnfs::io
