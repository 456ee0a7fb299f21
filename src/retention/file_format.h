// What the format of a file says about its length: whether it is cut short.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cairnfs::retention {

// Up to `size` bytes of the file from `offset` on; fewer at its end.
using ReadAt = std::function<Result<std::string>(uint64_t offset, size_t size)>;

// Why a file of this name and size is cut short, as a sentence; nullopt: nothing is wrong, or its format is none that
// says so. Knows safetensors, by the end of the name, and zip, by its first bytes, of *.distcp a series of them; a file
// whose name ends as those of torch.save, NumPy and Keras do has four bytes at least, and begins with others than
// zeros; HDF5 and MessagePack have bytes. Reads the last 64 KiB of a zip file, and its directory, or the header of
// safetensors, 100 MB at most and 1 MiB at a time; whatever the file claims, it takes little memory beside the longest
// name in that header. What cannot be read is told too.
std::optional<std::string> WhyCutShort(std::string_view name, uint64_t size, const ReadAt& read);

}  // namespace cairnfs::retention
