#include "client/arguments.h"

#include <filesystem>

#include "client/errors.h"
#include "client/ring.h"

namespace cairnfs::client {

Status CheckOptions(uint32_t threads, uint64_t ring_bytes, const char* threads_name) {
  if (threads > 256) {
    return InvalidArgument(std::string(threads_name) + " is " + std::to_string(threads) +
                           ", and at most 256 is possible");
  }
  if (ring_bytes != 0 && ring_bytes < kRingBytesMin) {
    return InvalidArgument("ring_bytes is " + std::to_string(ring_bytes) + ", and at least " +
                           std::to_string(kRingBytesMin) + " (two blocks) is needed");
  }
  return {};
}

Result<std::string> AbsolutePath(const char* path, const char* what) {
  if (path == nullptr || path[0] == '\0') return InvalidArgument(std::string(what) + " is NULL or empty");
  std::string text = path;
  if (text.back() == '/') return InvalidArgument(std::string(what) + " '" + text + "' ends with '/': it names no file");
  if (text.front() == '/') return text;
  std::error_code error;
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) return FileError(error.value(), std::string(what) + " '" + text + "': the working directory");
  return folder + "/" + text;
}

Result<std::map<int32_t, StreamHandle>> StreamsByDevice(const cairnfs_stream* streams, size_t count) {
  if (streams == nullptr && count > 0) return InvalidArgument("streams is NULL and stream_count is not 0");
  std::map<int32_t, StreamHandle> by_device;
  for (size_t i = 0; i < count; i++) {
    if (streams[i].device < 0) {
      return InvalidArgument("stream " + std::to_string(i) + ": device " + std::to_string(streams[i].device) +
                             " is no device");
    }
    if (!by_device.emplace(streams[i].device, streams[i].stream).second) {
      return InvalidArgument("stream " + std::to_string(i) + ": device " + std::to_string(streams[i].device) +
                             " has a stream already");
    }
  }
  return by_device;
}

}  // namespace cairnfs::client
