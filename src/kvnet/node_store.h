// NodeStore: the HostedStore of another node, reached over gRPC (kv_service.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kv/shared_store.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// `addresses`: HOST:PORT, of the nodes of which one serves the keys at a time; the first is asked first. Where nodes
// have certificates, that of the one at an address must name the node (hex) that `nodes` has there, unless that is
// empty. Connects when it is used. kInvalidArgument: no such address can be. REQUIRES (unchecked): there is one.
Result<std::unique_ptr<kv::SharedKvStore>> MakeNodeStore(const std::vector<std::string>& addresses,
                                                         const RemoteOptions& options,
                                                         const std::vector<std::string>& nodes = {});
inline Result<std::unique_ptr<kv::SharedKvStore>> MakeNodeStore(const std::string& address,
                                                                const RemoteOptions& options) {
  return MakeNodeStore(std::vector<std::string>{address}, options);
}

}  // namespace cairnfs::kvnet
