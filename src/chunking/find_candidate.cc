// The window test, once per instruction set. All must answer alike: tests/unit/chunking compares them.
//
// The two byte tests are evaluated at every position; the few positions that pass both (one in 65,536 of uniform bytes)
// go through the mix, which reads the whole window.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "chunking/chunker.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cairnfs::chunking {
namespace {

// The values are ordinary ones for the sign and exponent byte of small weights, and for text. So text has candidates,
// and so have weights that were widened from bfloat16 to float32, half of whose bytes are zero.
constexpr uint8_t kXor = 0x0c;
constexpr uint8_t kSum = 0xbc;
constexpr uint64_t kMixLow = 0x9e37'79b9'7f4a'7c15;
constexpr uint64_t kMixHigh = 0xc2b2'ae3d'27d4'eb4f;
constexpr size_t kXorOther = 3;
constexpr size_t kSumOne = 5;
constexpr size_t kSumOther = 10;

// Searches of fewer bytes are not timed, and this many of each kind are.
constexpr size_t kTimedBytesMin = 64 * kKiB;
constexpr size_t kTimedSearches = 31;

// How far ahead of the search memory is asked for. The processor's own prefetching keeps up with neither kind.
constexpr size_t kPrefetchAheadBytes = 8 * kKiB;
constexpr size_t kCacheLineBytes = 64;

uint64_t LoadLittle64(const uint8_t* at) {
  uint64_t value;
  std::memcpy(&value, at, sizeof value);
  if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
  return value;
}

// The last part of the test, for a position that passed the two byte tests.
bool MixPasses(const uint8_t* window, uint32_t mask_bits) {
  if (mask_bits == 0) return true;
  uint64_t mix = LoadLittle64(window) * kMixLow + LoadLittle64(window + 8) * kMixHigh;
  return mix >> (64 - mask_bits) == 0;
}

// Each function looks at positions [from, count), where `count` + kWindowBytes - 1 bytes exist, and returns the first
// candidate, or `count`.
size_t FindScalar(const uint8_t* bytes, size_t from, size_t count, uint32_t mask_bits) {
  for (size_t p = from; p < count; p++) {
    if ((bytes[p] ^ bytes[p + kXorOther]) != kXor) continue;
    if (static_cast<uint8_t>(bytes[p + kSumOne] + bytes[p + kSumOther]) != kSum) continue;
    if (MixPasses(bytes + p, mask_bits)) return p;
  }
  return count;
}

#if defined(__x86_64__)

// The first position among the set bits of `hits`, counted from `p`, that passes the mix; `count` if none does.
size_t FirstPassing(const uint8_t* bytes, size_t p, uint64_t hits, size_t count, uint32_t mask_bits) {
  for (; hits != 0; hits &= hits - 1) {
    size_t position = p + static_cast<size_t>(std::countr_zero(hits));
    if (MixPasses(bytes + position, mask_bits)) return position;
  }
  return count;
}

// Has no effect where there is no memory.
inline void Prefetch(const uint8_t* at, size_t bytes_ahead) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a pointer past the memory may not be made
  _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at) + bytes_ahead), _MM_HINT_T0);
}

__attribute__((target("avx2"))) inline __m256i Load256(const uint8_t* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}

__attribute__((target("avx2"))) inline __m256i Hits256(const uint8_t* at) {
  __m256i differs = _mm256_xor_si256(Load256(at), Load256(at + kXorOther));
  __m256i sum = _mm256_add_epi8(Load256(at + kSumOne), Load256(at + kSumOther));
  return _mm256_and_si256(_mm256_cmpeq_epi8(differs, _mm256_set1_epi8(static_cast<char>(kXor))),
                          _mm256_cmpeq_epi8(sum, _mm256_set1_epi8(static_cast<char>(kSum))));
}

__attribute__((target("avx2"))) size_t FindAvx2(const uint8_t* bytes, size_t from, size_t count, uint32_t mask_bits) {
  size_t p = from;
  for (; p + 64 <= count; p += 64) {
    Prefetch(bytes + p, kPrefetchAheadBytes);
    __m256i low = Hits256(bytes + p);
    __m256i high = Hits256(bytes + p + 32);
    __m256i any = _mm256_or_si256(low, high);
    if (_mm256_testz_si256(any, any)) continue;
    uint64_t hits = static_cast<uint32_t>(_mm256_movemask_epi8(low)) |
                    static_cast<uint64_t>(static_cast<uint32_t>(_mm256_movemask_epi8(high))) << 32;
    size_t found = FirstPassing(bytes, p, hits, count, mask_bits);
    if (found != count) return found;
  }
  return FindScalar(bytes, p, count, mask_bits);
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) inline __mmask64 Hits512(const uint8_t* at) {
  __m512i differs = _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_loadu_si512(at + kXorOther));
  __m512i sum = _mm512_add_epi8(_mm512_loadu_si512(at + kSumOne), _mm512_loadu_si512(at + kSumOther));
  __mmask64 hits = _mm512_cmpeq_epi8_mask(differs, _mm512_set1_epi8(static_cast<char>(kXor)));
  return _mm512_mask_cmpeq_epi8_mask(hits, sum, _mm512_set1_epi8(static_cast<char>(kSum)));
}

__attribute__((target("avx512f,avx512bw,avx512vl"))) size_t FindAvx512(const uint8_t* bytes, size_t from, size_t count,
                                                                       uint32_t mask_bits) {
  size_t p = from;
  for (; p + 128 <= count; p += 128) {
    Prefetch(bytes + p, kPrefetchAheadBytes);
    Prefetch(bytes + p, kPrefetchAheadBytes + kCacheLineBytes);
    __mmask64 low = Hits512(bytes + p);
    __mmask64 high = Hits512(bytes + p + 64);
    if (_kortestz_mask64_u8(low, high)) continue;
    size_t found = FirstPassing(bytes, p, low, count, mask_bits);
    if (found == count) found = FirstPassing(bytes, p + 64, high, count, mask_bits);
    if (found != count) return found;
  }
  return FindScalar(bytes, p, count, mask_bits);
}

#endif

using Finder = size_t (*)(const uint8_t*, size_t, size_t, uint32_t);

Finder FinderOf(Implementation implementation) {
  switch (implementation) {
    case Implementation::kScalar: return FindScalar;
#if defined(__x86_64__)
    case Implementation::kAvx2: return FindAvx2;
    case Implementation::kAvx512: return FindAvx512;
#else
    case Implementation::kAvx2:
    case Implementation::kAvx512: break;
#endif
  }
  return FindScalar;
}

std::optional<size_t> Find(ByteSpan bytes, uint32_t mask_bits, Finder finder) {
  if (bytes.size() < kWindowBytes) return std::nullopt;
  size_t count = bytes.size() - kWindowBytes + 1;
  size_t found = finder(reinterpret_cast<const uint8_t*>(bytes.data()), 0, count, mask_bits);
  if (found == count) return std::nullopt;
  return found;
}

// Which instructions are faster depends on the processor, and on where the bytes lie. On an EPYC AVX-512 takes two
// thirds of AVX2's time for bytes in the caches and one and a half times as long for bytes in memory, and there are
// both. So the first searches are done by both in turn, and timed, and the one with the lower median goes on.
class FasterOfTwo {
 public:
  // Any thread.
  std::optional<size_t> Find(ByteSpan bytes, uint32_t mask_bits) {
    const Implementation chosen = chosen_.load(std::memory_order_relaxed);
    if (decided_.load(std::memory_order_relaxed) || bytes.size() < kTimedBytesMin) {
      return chunking::FindCandidate(bytes, mask_bits, chosen);
    }
    const bool is_other = turn_.fetch_add(1, std::memory_order_relaxed) % 2 == 1;
    const auto begin = Clock::ThreadTime();
    const auto found = chunking::FindCandidate(bytes, mask_bits, is_other ? kOther : chosen);
    const std::chrono::duration<double> time = Clock::ThreadTime() - begin;
    const size_t searched = found.value_or(bytes.size());
    if (searched >= kTimedBytesMin) Note(is_other, time.count() / static_cast<double>(searched));
    return found;
  }

 private:
  static constexpr Implementation kOther = Implementation::kAvx512;
  static Implementation First() {
    return IsSupported(Implementation::kAvx2) ? Implementation::kAvx2
           : IsSupported(kOther)              ? kOther
                                              : Implementation::kScalar;
  }
  static bool HasTwo() { return IsSupported(Implementation::kAvx2) && IsSupported(kOther); }

  void Note(bool is_other, double seconds_per_byte) {
    MutexLock lock(mutex_);
    if (decided_) return;
    (is_other ? other_ : first_).push_back(seconds_per_byte);
    if (first_.size() < kTimedSearches || other_.size() < kTimedSearches) return;
    if (MedianOf(other_) < MedianOf(first_)) chosen_ = kOther;
    decided_ = true;
  }
  static double MedianOf(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  std::atomic<Implementation> chosen_{First()};
  std::atomic<bool> decided_{!HasTwo()};
  std::atomic<uint32_t> turn_{0};
  Mutex mutex_;
  std::vector<double> first_ GUARDED_BY(mutex_), other_ GUARDED_BY(mutex_);
};

}  // namespace

bool IsSupported(Implementation implementation) {
  switch (implementation) {
    case Implementation::kScalar: return true;
#if defined(__x86_64__)
    case Implementation::kAvx2: return __builtin_cpu_supports("avx2");
    case Implementation::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl");
#else
    case Implementation::kAvx2:
    case Implementation::kAvx512: break;
#endif
  }
  return false;
}

std::optional<size_t> FindCandidate(ByteSpan bytes, uint32_t mask_bits) {
  static FasterOfTwo fastest;
  return fastest.Find(bytes, mask_bits);
}

std::optional<size_t> FindCandidate(ByteSpan bytes, uint32_t mask_bits, Implementation implementation) {
  assert(IsSupported(implementation));
  return Find(bytes, mask_bits, FinderOf(implementation));
}

}  // namespace cairnfs::chunking
