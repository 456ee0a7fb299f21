// Directories that are opened past no symbolic link and no mount point, also not one of the same filesystem.
#pragma once

#include <dirent.h>

#include <memory>
#include <string>
#include <string_view>

namespace cairnfs::tools {

using OpenedDirectory = std::unique_ptr<DIR, int (*)(DIR*)>;

// `name` right in the directory with the descriptor `parent`, or in the current one (AT_FDCWD). Null: errno says why;
// EXDEV, it is a mount point.
OpenedDirectory OpenBelow(int parent, const std::string& name);
inline constexpr int kOpenBelowLevelsMax = 256;  // of a walk: each takes a descriptor

inline bool IsDots(std::string_view name) { return name == "." || name == ".."; }

}  // namespace cairnfs::tools
