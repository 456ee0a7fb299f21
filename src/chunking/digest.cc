#include "chunking/digest.h"

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

Digester::Digester() {
  static_assert(sizeof(Hasher) <= sizeof(state_) && alignof(Hasher) <= 16);
  Init(new (state_.data()) Hasher);
}

Digester& Digester::Update(ByteSpan bytes) {
  if (!bytes.empty()) Add(std::launder(reinterpret_cast<Hasher*>(state_.data())), bytes);
  return *this;
}

Digest Digester::Finish() { return ResultOf(std::launder(reinterpret_cast<const Hasher*>(state_.data()))); }

void Digester::Reset() { Init(std::launder(reinterpret_cast<Hasher*>(state_.data()))); }

}  // namespace cairnfs::chunking
