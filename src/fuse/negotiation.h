// What is agreed with the kernel in the INIT exchange.
//
// libfuse 3.14 answers INIT, but it has no name for some flags, and sets others by default that are wrong here. So the
// flags are made anew, from the kernel's offer alone, just before the answer is written.
#pragma once

#include <linux/fuse.h>

#include <cstdint>
#include <optional>

#include "base/types.h"

namespace cairnfs::fuse {

// Kernel 6.6; not in Debian 12's linux/fuse.h. A file opened with FOPEN_DIRECT_IO may be mapped shared.
inline constexpr uint64_t kFuseDirectIoAllowMmap = 1ULL << 36;
// Kernel 6.9. An open may be answered with a file that the kernel reads and maps in its place.
inline constexpr uint64_t kFusePassthrough = 1ULL << 37;

inline constexpr uint32_t kMaxWriteBytes = kMiB;
// Fewer and larger requests: a reader waits for each in turn. The kernel takes the least of this and its own limit.
inline constexpr uint32_t kMaxReadBytes = 4 * kMiB;
// The most that a kernel without FUSE_MAX_PAGES sends.
inline constexpr uint32_t kOldMaxWriteBytes = 32 * kPageBytes;

struct KernelOffer {
  uint32_t major = 0, minor = 0;
  uint64_t flags = 0;  // flags2 is the upper half
};

// Reads the body of an INIT request. Older kernels send fewer fields: those missing are zero. nullopt when it is too
// short to hold a version.
std::optional<KernelOffer> DecodeInitRequest(ByteSpan body);

// Who keeps flocks and record locks.
enum class LockKeeper { kKernel, kDaemon };

struct Wishes {
  LockKeeper lock_keeper = LockKeeper::kKernel;
  bool passthrough = false;
};

// The subset of `offer` that is wanted.
uint64_t AgreedFlags(const KernelOffer& offer, const Wishes& wishes = {});

// Sets flags, flags2, max_write, max_pages and, for passthrough, max_stack_depth of the answer.
void PatchInitReply(const KernelOffer& offer, fuse_init_out& reply, const Wishes& wishes = {});

}  // namespace cairnfs::fuse
