// What the micro-benchmarks share: data, and a directory on a real disk that goes away.
#pragma once

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "base/types.h"

namespace cairnfs::bench {

inline std::vector<std::byte> RandomBytes(size_t size) {
  std::mt19937_64 random(1);
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i + sizeof(uint64_t) <= size; i += sizeof(uint64_t)) {
    uint64_t word = random();
    std::memcpy(bytes.data() + i, &word, sizeof word);
  }
  return bytes;
}

inline Digest DigestOf(uint64_t number) {  // any distinct, uniform value: nothing is hashed here
  std::mt19937_64 random(number);
  Digest digest;
  for (size_t i = 0; i < Digest::kBytes; i += sizeof(uint64_t)) {
    uint64_t word = random();
    std::memcpy(digest.bytes.data() + i, &word, sizeof word);
  }
  return digest;
}

class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string pattern = (Parent() / "cairnfs-micro-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  // Not the usual temporary directory: it may be memory.
  static std::filesystem::path Parent() {
    const char* named = std::getenv("TMPDIR");
    return named != nullptr ? named : "/var/tmp";
  }
  std::string path_;
};

}  // namespace cairnfs::bench
