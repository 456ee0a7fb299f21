// The fingerprint of a block in memory of the host.
#pragma once

#include "base/types.h"

namespace cairnfs::client {

// BLAKE3-256. `block` has at most kBlockBytes. Pure; any thread.
Digest DigestOfBlock(ByteSpan block);

// How DigestOfBlock is made where no BLAKE3 library was found: blake3.h, sixteen chunks side by side. Pure; any thread.
Digest PortableDigest(ByteSpan bytes);

}  // namespace cairnfs::client
