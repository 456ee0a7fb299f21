// How the stores of this room reach their servers.
#pragma once

#include <chrono>
#include <string>

#include "kv/retry.h"
#include "rpc/tls.h"

namespace cairnfs::kvnet {

struct RemoteOptions {
  kv::RetryOptions retry;
  std::chrono::milliseconds lease_timeout{1'500};  // of one try to keep a lease alive
  // Of one try at all endpoints, one after the other: members that do not answer must not use the lease up.
  std::chrono::milliseconds lease_timeout_all{3'750};
  rpc::Tls tls;
  std::string server_name;  // that the server's certificate must name; empty: the host of the address
};

// The same for a server that must be that node (hex), where it has a certificate; empty: as they are.
RemoteOptions OptionsOf(RemoteOptions options, const std::string& node);

}  // namespace cairnfs::kvnet
