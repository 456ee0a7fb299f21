// A copy of memory that is in no cache of the processor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace cairnfs::client {

// As std::memcpy, but of several pages by turns: the processor fetches ahead in each page for itself, so more of memory
// is on its way at once. 0.09 s per GiB instead of 0.12 (Intel Xeon). Any thread.
inline void CopyMemory(std::byte* to, const std::byte* from, uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  constexpr uint64_t kPages = 8;
  constexpr uint64_t kLine = 64;
  for (; bytes >= kPages * kPage; to += kPages * kPage, from += kPages * kPage, bytes -= kPages * kPage) {
    for (uint64_t line = 0; line < kPage; line += kLine) {
      for (uint64_t page = 0; page < kPages; page++) {
        std::memcpy(to + page * kPage + line, from + page * kPage + line, kLine);
      }
    }
  }
  std::memcpy(to, from, bytes);
}

}  // namespace cairnfs::client
