// memcpy for bytes that this processor will not read again soon, such as what the disk takes from a window.
#pragma once

#include <cstddef>

namespace cairnfs::store {

// Copies `size` bytes, large pieces past the caches: the destination is not read into the caches first, and drives
// nothing out of them. REQUIRES: the regions do not overlap. On return the bytes are ordered before all later stores,
// as after memcpy.
void StreamCopy(std::byte* to, const std::byte* from, size_t size);

}  // namespace cairnfs::store
