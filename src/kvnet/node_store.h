// NodeStore: the HostedStore of another node, reached over gRPC (kv_service.h).
#pragma once

#include <memory>
#include <string>

#include "kv/shared_store.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// `address`: HOST:PORT. Connects when it is used. kInvalidArgument: no such address can be.
Result<std::unique_ptr<kv::SharedKvStore>> MakeNodeStore(const std::string& address, const RemoteOptions& options);

}  // namespace cairnfs::kvnet
