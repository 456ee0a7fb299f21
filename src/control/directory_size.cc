#include "control/directory_size.h"

#include <sys/stat.h>

#include <filesystem>

namespace cairnfs::control {

uint64_t BytesBelow(const std::string& path) {
  uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info;
    if (stat(entry->path().c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace cairnfs::control
