// The floor's FUSE side: one directory with one file in it, whatever name it is given.
#pragma once

#include "pack.h"

namespace cairnfs::bench {

// Mounts, prints "ready" and serves until it is unmounted; an exit code. A write takes its buffer over and is answered
// before its bytes are hashed; a read is answered from memory that is not looked at.
int ServeFloor(const FloorOptions& options, FloorBuffers& buffers, Pack& pack);

}  // namespace cairnfs::bench
