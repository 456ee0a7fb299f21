// Checks of what callers of both savers and loaders hand in.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "cairnfs/client.h"
#include "client/device.h"

namespace cairnfs::client {

// Of the options `threads_name` and ring_bytes. kInvalidArgument.
Status CheckOptions(uint32_t threads, uint64_t ring_bytes, const char* threads_name);

// The path as it is from any working directory. kInvalidArgument: null, empty, or it ends with '/'.
Result<std::string> AbsolutePath(const char* path, const char* what);

// The streams of `count` entries, by device. kInvalidArgument: a device twice, or the host.
Result<std::map<int32_t, StreamHandle>> StreamsByDevice(const cairnfs_stream* streams, size_t count);

}  // namespace cairnfs::client
