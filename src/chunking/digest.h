// BLAKE3-256, and the names of chunks that are made of it. https://github.com/BLAKE3-team/BLAKE3-specs
//
// A chunk's name is the digest of its bytes, with the first four XORed with the owner's number. So equal bytes of two
// owners have two names. A chunk can be verified without knowing its owner, because the other 28 bytes are those of the
// digest (Names).
#pragma once

#include <memory>

#include "base/types.h"

namespace cairnfs::chunking {

// Digest of bytes in one piece. Pure; any thread.
Digest ComputeDigest(ByteSpan bytes);

// Whose chunk it is: equal bytes of one owner are one chunk.
struct Owner {
  uint32_t number = 0;  // a uid; 0: root, and everybody where all files share chunks
  bool operator==(const Owner&) const = default;
};

// The name of the owner's chunk whose bytes have this digest. Pure.
Digest NameOf(const Digest& digest, Owner owner);
// The same of bytes in one piece.
Digest NameBytes(Owner owner, ByteSpan bytes);
// Whether bytes with this digest are those of the chunk of that name, whoever owns it. Pure.
bool Names(const Digest& name, const Digest& digest);

// Digest of bytes that come in pieces. One thread at a time.
class Digester {
 public:
  Digester();
  Digester& Update(ByteSpan bytes);
  Digest Finish();  // the digest of all bytes since construction or the last Reset
  void Reset();

 private:
  // The library hashes sixteen kilobytes at once, side by side, but fewer where one call ends inside a sixteen and the
  // next goes on. So it gets whole sixteens.
  static constexpr size_t kBlockBytes = 16 * kKiB;
  void Hold(ByteSpan bytes);
  alignas(16) std::array<std::byte, 2048> state_;  // the hasher of the library, whose size is asserted in digest.cc
  std::array<std::byte, kBlockBytes> block_;       // the beginning of the next sixteen
  size_t held_ = 0;
};

}  // namespace cairnfs::chunking
