// Which host may become, or be again, which node of a cluster.
#pragma once

#include <cstdint>
#include <string>

#include "admission/join_port.h"
#include "base/result.h"
#include "cluster/records.h"
#include "kv/store.h"

namespace cairnfs::daemon {

// No two nodes may have one address: messages for one would come to the other. But a node that is not up may have lost
// its disk and join anew, so only a node that is up keeps its address to itself. kInvalidArgument: another node than
// `own_id` (hex) is up at `wanted`.
Status CheckAddressIsFree(kv::KvStore& store, const std::string& wanted, const std::string& own_id, uint64_t lease_ms);
// Lets a node (hex) back that was removed, if it was. kBusy: it is up. kInvalidArgument: that is no id.
Status AllowBack(kv::KvStore& store, const std::string& node);
// The same for one that joins with a token. One that was never there is noted until its first session. One that is in
// the cluster has to show that it is that node: kPermission.
Status NoteJoined(kv::KvStore& store, const std::string& node, const cluster::NodeRecord& record,
                  admission::Identity identity);

}  // namespace cairnfs::daemon
