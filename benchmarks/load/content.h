// The data that the benchmarks save: what weights look like, incompressible, and never the same twice unless asked for.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace cairnfs::bench {

// Fills `bytes` with the first bytes of the stream that `seed` names: blocks of float32 values and of bfloat16 values
// in turn, each near-uniform around zero. Equal seeds give equal bytes; different ones share no block. Uses all cores.
void FillContent(uint64_t seed, MutableByteSpan bytes);

// A well-mixed number from two others.
uint64_t MixSeeds(uint64_t a, uint64_t b);

// Zeroed memory in huge pages where the kernel has them, every page touched: the first touch of a page must not be
// timed. It is given back at the end of the process only. Stops the process when there is not enough.
MutableByteSpan MapTouched(size_t size);

}  // namespace cairnfs::bench
