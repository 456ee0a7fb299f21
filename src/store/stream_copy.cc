#include "store/stream_copy.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "base/types.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace cairnfs::store {

#if defined(__SSE2__)
namespace {

constexpr size_t kLineBytes = 64;
// For fewer bytes the fence, and the ends, which go through the caches, cost more than is gained.
constexpr size_t kStreamBytesMin = 16 * kKiB;

}  // namespace

void StreamCopy(std::byte* to, const std::byte* from, size_t size) {
  assert(to + size <= from || from + size <= to);
  if (size < kStreamBytesMin) {
    std::memcpy(to, from, size);
    return;
  }
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(to) % kLineBytes) % kLineBytes;
  std::memcpy(to, from, head);
  to += head;
  from += head;
  size -= head;
  for (; size >= kLineBytes; size -= kLineBytes, to += kLineBytes, from += kLineBytes) {
    const auto* source = reinterpret_cast<const __m128i*>(from);
    auto* line = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    // The four together fill a line of the write-combining buffer.
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(to, from, size);
  _mm_sfence();
}
#else
void StreamCopy(std::byte* to, const std::byte* from, size_t size) { std::memcpy(to, from, size); }
#endif

}  // namespace cairnfs::store
