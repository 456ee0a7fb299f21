// BLAKE3 in hash mode, written once: nvcc compiles it for devices, the host's compiler for tests and for builds that
// have no BLAKE3 library. https://github.com/BLAKE3-team/BLAKE3-specs/blob/master/blake3.pdf, sections 2.1 to 2.4.
//
// A message is cut into chunks of 1024 bytes, a chunk into blocks of 64; here the latter are called `inputs`, because a
// block is a MiB of a tensor elsewhere. Chaining values of chunks are the leaves of a binary tree. Its left subtrees
// are full, so merging neighbours level by level, and moving up one that is left over, makes the same tree.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CAIRNFS_KERNEL_FUNCTION __device__ __forceinline__
#else
#define CAIRNFS_KERNEL_FUNCTION [[gnu::always_inline]] inline
#endif

namespace cairnfs::client::blake3 {

inline constexpr uint32_t kChunkBytes = 1024;
inline constexpr uint32_t kInputBytes = 64;
inline constexpr uint32_t kInputWords = kInputBytes / 4;
inline constexpr uint32_t kInputsPerChunk = kChunkBytes / kInputBytes;
inline constexpr uint32_t kValueWords = 8;  // of a chaining value, and of a digest

enum Flags : uint32_t { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8 };

// Word i of the initial chaining value.
constexpr uint32_t InitialWord(uint32_t i) {
  constexpr uint32_t kWords[kValueWords] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                                            0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};
  return kWords[i];
}

// Which word of the message round `round` takes at position `i`: the permutation of the paper's table 2, applied
// `round` times.
constexpr uint32_t MessageWord(uint32_t round, uint32_t i) {
  constexpr uint32_t kPermutation[kInputWords] = {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8};
  for (; round > 0; round--) i = kPermutation[i];
  return i;
}

// As constants, which code of devices can use where it cannot call functions of the host.
template <uint32_t i>
inline constexpr uint32_t kInitialWord = InitialWord(i);
template <uint32_t round, uint32_t i>
inline constexpr uint32_t kMessageWord = MessageWord(round, i);

// Word is uint32_t, or a vector of them: then each lane is a message of its own.
template <typename Word>
CAIRNFS_KERNEL_FUNCTION void RotateRight(Word& word, const int bits) {
  word = (word >> bits) | (word << (32 - bits));
}

template <typename Word>
CAIRNFS_KERNEL_FUNCTION void Mix(Word& a, Word& b, Word& c, Word& d, const Word& first, const Word& second) {
  a = a + b + first;
  d ^= a;
  RotateRight(d, 16);
  c = c + d;
  b ^= c;
  RotateRight(b, 12);
  a = a + b + second;
  d ^= a;
  RotateRight(d, 8);
  c = c + d;
  b ^= c;
  RotateRight(b, 7);
}

// The indices are constants, so that state and message stay in registers.
template <uint32_t round, typename Word>
CAIRNFS_KERNEL_FUNCTION void Round(Word (&v)[16], const Word (&m)[kInputWords]) {
  Mix(v[0], v[4], v[8], v[12], m[kMessageWord<round, 0>], m[kMessageWord<round, 1>]);
  Mix(v[1], v[5], v[9], v[13], m[kMessageWord<round, 2>], m[kMessageWord<round, 3>]);
  Mix(v[2], v[6], v[10], v[14], m[kMessageWord<round, 4>], m[kMessageWord<round, 5>]);
  Mix(v[3], v[7], v[11], v[15], m[kMessageWord<round, 6>], m[kMessageWord<round, 7>]);
  Mix(v[0], v[5], v[10], v[15], m[kMessageWord<round, 8>], m[kMessageWord<round, 9>]);
  Mix(v[1], v[6], v[11], v[12], m[kMessageWord<round, 10>], m[kMessageWord<round, 11>]);
  Mix(v[2], v[7], v[8], v[13], m[kMessageWord<round, 12>], m[kMessageWord<round, 13>]);
  Mix(v[3], v[4], v[9], v[14], m[kMessageWord<round, 14>], m[kMessageWord<round, 15>]);
}

// The chaining value becomes the next one, or the digest where `flags` have kRoot. `counter` is the chunk's number in
// its message, the same for every lane but for what `Word` itself says; 0 for parents and roots. Messages here have
// fewer than 2^32 chunks.
template <typename Word>
CAIRNFS_KERNEL_FUNCTION void Compress(Word (&value)[kValueWords], const Word (&m)[kInputWords], const Word& counter,
                                      uint32_t bytes, uint32_t flags) {
  const Word zero = counter ^ counter;
  Word v[16] = {value[0],
                value[1],
                value[2],
                value[3],
                value[4],
                value[5],
                value[6],
                value[7],
                zero + kInitialWord<0>,
                zero + kInitialWord<1>,
                zero + kInitialWord<2>,
                zero + kInitialWord<3>,
                counter,
                zero,
                zero + bytes,
                zero + flags};
  Round<0>(v, m);
  Round<1>(v, m);
  Round<2>(v, m);
  Round<3>(v, m);
  Round<4>(v, m);
  Round<5>(v, m);
  Round<6>(v, m);
  for (uint32_t i = 0; i < kValueWords; i++) value[i] = v[i] ^ v[i + 8];
}

// What the chaining value of a chunk, or of a parent, begins with.
template <typename Word>
CAIRNFS_KERNEL_FUNCTION void SetInitial(Word (&value)[kValueWords], const Word& zero) {
  value[0] = zero + kInitialWord<0>;
  value[1] = zero + kInitialWord<1>;
  value[2] = zero + kInitialWord<2>;
  value[3] = zero + kInitialWord<3>;
  value[4] = zero + kInitialWord<4>;
  value[5] = zero + kInitialWord<5>;
  value[6] = zero + kInitialWord<6>;
  value[7] = zero + kInitialWord<7>;
}

// The chaining value of the parent of two; the digest with kRoot as `root`, else 0. `out` may be `left`.
CAIRNFS_KERNEL_FUNCTION void Parent(const uint32_t* left, const uint32_t* right, uint32_t root, uint32_t* out) {
  uint32_t m[kInputWords];
  for (uint32_t i = 0; i < kValueWords; i++) {
    m[i] = left[i];
    m[i + kValueWords] = right[i];
  }
  uint32_t value[kValueWords];
  SetInitial(value, 0U);
  Compress(value, m, 0U, kInputBytes, kParent | root);
  for (uint32_t i = 0; i < kValueWords; i++) out[i] = value[i];
}

}  // namespace cairnfs::client::blake3
