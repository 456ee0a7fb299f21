#include "chunking/digest.h"

#include <algorithm>
#include <new>

#if defined(CAIRNFS_BLAKE3_FROM_LLVM)
#include <llvm-c/blake3.h>
#else
#include <blake3.h>
#endif

namespace cairnfs::chunking {
namespace {

#if defined(CAIRNFS_BLAKE3_FROM_LLVM)
using Hasher = llvm_blake3_hasher;
void Init(Hasher* hasher) { llvm_blake3_hasher_init(hasher); }
void Add(Hasher* hasher, ByteSpan bytes) { llvm_blake3_hasher_update(hasher, bytes.data(), bytes.size()); }
void Finalize(const Hasher* hasher, uint8_t* out) { llvm_blake3_hasher_finalize(hasher, out, Digest::kBytes); }
#else
using Hasher = blake3_hasher;
void Init(Hasher* hasher) { blake3_hasher_init(hasher); }
void Add(Hasher* hasher, ByteSpan bytes) { blake3_hasher_update(hasher, bytes.data(), bytes.size()); }
void Finalize(const Hasher* hasher, uint8_t* out) { blake3_hasher_finalize(hasher, out, Digest::kBytes); }
#endif

// The owner's bytes come first. Code that makes a hash of a name (DigestHash, the collector's marks) takes the first
// eight bytes, and must tell the chunks of two owners apart.
constexpr size_t kOwnerBytes = sizeof(Owner::number);

Digest ResultOf(const Hasher* hasher) {
  Digest digest;
  Finalize(hasher, reinterpret_cast<uint8_t*>(digest.bytes.data()));
  return digest;
}

}  // namespace

Digest ComputeDigest(ByteSpan bytes) {
  Hasher hasher;
  Init(&hasher);
  if (!bytes.empty()) Add(&hasher, bytes);
  return ResultOf(&hasher);
}

Digest NameOf(const Digest& digest, Owner owner) {
  Digest name = digest;
  for (size_t i = 0; i < kOwnerBytes; i++) name.bytes[i] ^= static_cast<std::byte>(owner.number >> (8 * i));
  return name;
}

Digest NameBytes(Owner owner, ByteSpan bytes) { return NameOf(ComputeDigest(bytes), owner); }

bool Names(const Digest& name, const Digest& digest) {
  return std::equal(name.bytes.begin() + kOwnerBytes, name.bytes.end(), digest.bytes.begin() + kOwnerBytes);
}

Digester::Digester() {
  static_assert(sizeof(Hasher) <= sizeof(state_) && alignof(Hasher) <= 16);
  Init(new (state_.data()) Hasher);
}

Digester& Digester::Update(ByteSpan bytes) {
  auto* hasher = std::launder(reinterpret_cast<Hasher*>(state_.data()));
  if (held_ > 0) {
    const ByteSpan front = bytes.first(std::min(bytes.size(), kBlockBytes - held_));
    Hold(front);
    bytes = bytes.subspan(front.size());
    if (held_ < kBlockBytes) return *this;
    Add(hasher, block_);
    held_ = 0;
  }
  const size_t whole = bytes.size() / kBlockBytes * kBlockBytes;
  if (whole > 0) Add(hasher, bytes.first(whole));
  Hold(bytes.subspan(whole));
  return *this;
}

void Digester::Hold(ByteSpan bytes) {
  std::copy(bytes.begin(), bytes.end(), block_.begin() + static_cast<ptrdiff_t>(held_));
  held_ += bytes.size();
}

Digest Digester::Finish() {
  auto* hasher = std::launder(reinterpret_cast<Hasher*>(state_.data()));
  if (held_ > 0) Add(hasher, ByteSpan(block_).first(held_));
  held_ = 0;
  return ResultOf(hasher);
}

void Digester::Reset() {
  held_ = 0;
  Init(std::launder(reinterpret_cast<Hasher*>(state_.data())));
}

}  // namespace cairnfs::chunking
