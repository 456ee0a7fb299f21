#include "fuse/negotiation.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace cairnfs::fuse {
namespace {

// Wanted, and why where it is not plain:
//  - ATOMIC_O_TRUNC: open with O_TRUNC is one request.
//  - ASYNC_DIO: one large asynchronous write is sent as several requests at once.
//  - PARALLEL_DIROPS: look-ups in one directory do not wait for each other.
//  - CACHE_SYMLINKS: a target never changes.
//  - EXPORT_SUPPORT: look-ups of "." and ".." in any inode, so that handles of files outlive the kernel's memory of
//    them. Numbers of inodes are never used again: the generation is 0, but of directories that were restored from the
//    trash, which the kernel has to take for other ones (fs::Inode::generation).
//  - HANDLE_KILLPRIV_V2: saves a GETXATTR of security.capability before each write. The kernel says which writes,
//    truncations and opens take set-user-id away; chown always does (docs/decisions/set-id.md).
// Not wanted, though offered:
//  - WRITEBACK_CACHE: the page cache is the slow way in.
//  - SPLICE_*: no faster than read(2), and pages would arrive unaligned.
//  - POSIX_LOCKS, FLOCK_LOCKS, on one host: docs/decisions/locks-on-one-host.md. In a cluster the daemon keeps the
//    locks.
//  - AUTO_INVAL_DATA: on one host every change passes this kernel; and it would drop a mapper's pages after its own
//    msync.
constexpr uint64_t kWantedFlags = FUSE_ASYNC_READ | FUSE_ATOMIC_O_TRUNC | FUSE_BIG_WRITES | FUSE_ASYNC_DIO |
                                  FUSE_DO_READDIRPLUS | FUSE_READDIRPLUS_AUTO | FUSE_PARALLEL_DIROPS | FUSE_MAX_PAGES |
                                  FUSE_CACHE_SYMLINKS | FUSE_EXPORT_SUPPORT | FUSE_HANDLE_KILLPRIV_V2 | FUSE_INIT_EXT |
                                  kFuseDirectIoAllowMmap;
constexpr uint64_t kLockFlags = FUSE_POSIX_LOCKS | FUSE_FLOCK_LOCKS;

// Of fuse_init_out, the field after flags2; not in Debian 12's linux/fuse.h. The files that may stand in for those of
// this mount lie on no stack of file systems. The kernel counts the mount as one layer more than them: an overlay of an
// overlay on it is one too many.
constexpr size_t kMaxStackDepthOffset = offsetof(fuse_init_out, unused);
constexpr uint32_t kMaxStackDepth = 1;
static_assert(kMaxStackDepthOffset == 36);

}  // namespace

std::optional<KernelOffer> DecodeInitRequest(ByteSpan body) {
  if (body.size() < offsetof(fuse_init_in, max_readahead)) return std::nullopt;
  fuse_init_in request{};
  std::memcpy(&request, body.data(), std::min(body.size(), sizeof request));
  KernelOffer offer{request.major, request.minor, request.flags};
  if (request.flags & FUSE_INIT_EXT) offer.flags |= uint64_t{request.flags2} << 32;
  return offer;
}

uint64_t AgreedFlags(const KernelOffer& offer, const Wishes& wishes) {
  uint64_t wanted = kWantedFlags;
  if (wishes.lock_keeper == LockKeeper::kDaemon) wanted |= kLockFlags;
  if (wishes.passthrough) wanted |= kFusePassthrough;
  uint64_t agreed = offer.flags & wanted;
  if (!(agreed & FUSE_INIT_EXT)) agreed &= 0xffff'ffff;
  return agreed;
}

void PatchInitReply(const KernelOffer& offer, fuse_init_out& reply, const Wishes& wishes) {
  const uint64_t agreed = AgreedFlags(offer, wishes);
  if (agreed & kFusePassthrough) {
    std::memcpy(reinterpret_cast<std::byte*>(&reply) + kMaxStackDepthOffset, &kMaxStackDepth, sizeof kMaxStackDepth);
  }
  reply.flags = static_cast<uint32_t>(agreed);
  reply.flags2 = static_cast<uint32_t>(agreed >> 32);
  if (agreed & FUSE_MAX_PAGES) {
    reply.max_write = kMaxWriteBytes;
    reply.max_pages = kMaxReadBytes / kPageBytes;
  } else {
    reply.max_write = kOldMaxWriteBytes;
    reply.max_pages = 0;
  }
}

}  // namespace cairnfs::fuse
