// BLAKE3-256: the name of a chunk. https://github.com/BLAKE3-team/BLAKE3-specs
#pragma once

#include <memory>

#include "base/types.h"

namespace cairnfs::chunking {

// Digest of bytes in one piece. Pure; any thread.
Digest ComputeDigest(ByteSpan bytes);

// Digest of bytes that come in pieces. One thread at a time.
class Digester {
 public:
  Digester();
  Digester& Update(ByteSpan bytes);
  Digest Finish();  // the digest of all bytes since construction or the last Reset
  void Reset();

 private:
  // The library hashes sixteen kilobytes at once, side by side, but fewer where one call ends between two sixteens and
  // the next goes on: it gets whole sixteens.
  static constexpr size_t kBlockBytes = 16 * kKiB;
  void Hold(ByteSpan bytes);
  alignas(16) std::array<std::byte, 2048> state_;  // the hasher of the library, whose size is asserted in digest.cc
  std::array<std::byte, kBlockBytes> block_;       // the beginning of the next sixteen
  size_t held_ = 0;
};

}  // namespace cairnfs::chunking
