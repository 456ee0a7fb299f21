// Promotion of a standby on which no daemon runs: while nobody serves the names, none can start.
#pragma once

#include "base/result.h"
#include "control.pb.h"
#include "daemon/config.h"
#include "kv/names_host.h"

namespace cairnfs::daemon {

control::PromoteReply ReplyOf(const kv::NamesHost::Promotion& promotion);

// As kv::NamesHost::Promote, of the data directory that the configuration names; nothing else of it counts. Nobody
// holds the directory: kBusy, somebody does. The next start of its host serves the names.
Result<control::PromoteReply> PromoteOffline(const Config& config, bool may_lose);

}  // namespace cairnfs::daemon
