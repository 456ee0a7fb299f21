// Promotion of a standby on which no daemon runs: while nobody serves the names, none can start.
#pragma once

#include "base/result.h"
#include "daemon/config.h"
#include "kv/names_host.h"

namespace cairnfs::daemon {

// As kv::NamesHost::Promote, of the data directory that the configuration names; nothing else of it counts. Nobody
// holds the directory: kBusy, somebody does. The next start of its host serves the names.
Result<kv::NamesHost::Promotion> PromoteOffline(const Config& config, bool may_lose);

}  // namespace cairnfs::daemon
