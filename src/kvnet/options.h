// How the stores of this room reach their servers.
#pragma once

#include <chrono>
#include <string>

#include "kv/retry.h"

namespace cairnfs::kvnet {

// Contents of PEM files, not their names. All empty: no TLS.
struct Tls {
  std::string ca, certificate, key;
  std::string server_name;  // that the server's certificate must name, for clients; empty: the host of the address

  bool enabled() const { return !ca.empty() || !certificate.empty() || !key.empty(); }
};

struct RemoteOptions {
  kv::RetryOptions retry;
  std::chrono::milliseconds lease_timeout{1'500};  // of one try to keep a lease alive
  // Of one try at all endpoints, one after the other: members that do not answer must not use the lease up.
  std::chrono::milliseconds lease_timeout_all{3'750};
  Tls tls;
};

}  // namespace cairnfs::kvnet
