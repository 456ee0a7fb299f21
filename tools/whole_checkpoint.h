// Whether a checkpoint can be loaded, as far as its files tell without the program that has written them.
#pragma once

#include <optional>
#include <string>

namespace cairnfs::tools {

enum class Depth {
  kFormats,   // reads the ends of files, where their format says whether they are whole
  kAllBytes,  // reads everything, from the disk
};
// Why the checkpoint cannot be loaded, as far as can be told; nullopt: nothing is wrong.
std::optional<std::string> WhyNotWhole(const std::string& path, Depth depth);

}  // namespace cairnfs::tools
