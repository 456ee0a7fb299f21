#include "base/types.h"

#include "base/hex.h"

namespace cairnfs {

std::string Digest::ToHex() const { return cairnfs::ToHex(AsKey()); }

}  // namespace cairnfs
