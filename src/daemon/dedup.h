// The key `dedup`: chosen when a filesystem is made, and recorded in its header for good.
#pragma once

#include <string>

#include "base/result.h"
#include "daemon/config.h"
#include "meta/records.h"

namespace cairnfs::daemon {

const char* NameOf(meta::Dedup dedup);  // "mount", "owner"

// The choice for a filesystem that is to be made.
meta::Dedup ChosenDedup(const Config& config);

// kInvalidArgument: the configuration wants another one than the filesystem at `place` was made with.
Status CheckDedup(const Config& config, meta::Dedup made_with, const std::string& place);

}  // namespace cairnfs::daemon
