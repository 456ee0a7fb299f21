#pragma once

#include <cstdint>
#include <string>

namespace cairnfs::control {

// What the files right in a directory take on the disk; 0 where it cannot be read.
uint64_t BytesBelow(const std::string& path);

}  // namespace cairnfs::control
