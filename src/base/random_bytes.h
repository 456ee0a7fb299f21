// Bytes that nobody can guess, from the kernel.
#pragma once

#include <cstddef>
#include <string>

namespace cairnfs {

std::string RandomBytes(size_t size);

}  // namespace cairnfs
