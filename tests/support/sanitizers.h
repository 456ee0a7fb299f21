// Which sanitizer this is built with, by gcc or clang: for tests that do less of the same where each step is slow.
#pragma once

namespace cairnfs {

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define CAIRNFS_ADDRESS_SANITIZER
#endif
#if __has_feature(thread_sanitizer)
#define CAIRNFS_THREAD_SANITIZER
#endif
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(CAIRNFS_ADDRESS_SANITIZER)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || defined(CAIRNFS_THREAD_SANITIZER)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// About so many times as long does a step take.
inline constexpr int kSlowdown = kAddressSanitizer || kThreadSanitizer ? 4 : 1;

}  // namespace cairnfs
