// The node ids by which the kernel names inodes. A file has its inode number, and one *beside* it (fs/open_modes.h):
// the same with the highest bit, which no inode number has. Requests are stripped of that bit as they come, so nothing
// but an open and a look-up knows of it.
#pragma once

#include <linux/fuse.h>

#include <cstdint>

#include "base/types.h"

namespace cairnfs::fuse {

inline constexpr uint64_t kBesideBit = 1ULL << 63;

constexpr uint64_t NodeIdOf(InodeId inode, bool is_beside) { return inode.value | (is_beside ? kBesideBit : 0); }

// Takes the bit out of each node id of a request: that of the header and those in the body. Whether that of the header
// had it. `request` is the whole message.
bool TakeBesideBits(MutableByteSpan request);

}  // namespace cairnfs::fuse
