// Checks the reads of a load before any of them begins.
#pragma once

#include "base/result.h"
#include "cairnfs/client.h"
#include "client/device.h"

namespace cairnfs::client {

// Of a file that has `file_bytes`. kInvalidArgument, kStale, kUnavailable, kCorrupt: the file ends before a read does.
// The message names the file and the read.
Status CheckReads(const cairnfs_load_request& request, uint64_t file_bytes, Devices& devices);

}  // namespace cairnfs::client
