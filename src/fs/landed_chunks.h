// What becomes of a file's content once a chunk of it is stored. The inode's lock is held.
#pragma once

#include <cstdint>
#include <vector>

#include "fs/inode.h"

namespace cairnfs::fs {

// Lays the chunk over the extents. Bytes that an earlier chunk had take its place too where only this host can
// have written since, so that a stream that is synced again and again keeps few extents. Returns how many bytes.
uint64_t LayChunk(Content& content, const FlyingChunk& chunk, const std::vector<Extent>& extents);

// Of a chunk whose bytes have left the overlay: but for those that were filled again.
void ForgetFilledHoles(Content& content, const FlyingChunk& chunk);

}  // namespace cairnfs::fs
