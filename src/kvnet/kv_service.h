// The gRPC service of the node that hosts the keys of a cluster.
#pragma once

#include <memory>
#include <string>

#include "kv/hosted_store.h"
#include "kvnet/options.h"
#include "rpc/local_peer.h"

namespace grpc {
class Service;
}

namespace cairnfs::kvnet {

// To be registered with a gRPC server. The server must be shut down, calls included, before this is destroyed, and
// takes messages of at least kMessageBytesMax.
class KvService {
 public:
  static constexpr int kMessageBytesMax = 24 << 20;

  static constexpr int kWatchesMax = 4096;  // each is a thread

  explicit KvService(kv::HostedStore& store, int watches_max = kWatchesMax);  // the store outlives it
  ~KvService();
  KvService(const KvService&) = delete;
  grpc::Service& service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A server that serves nothing else.
class KvServer {
 public:
  // Listens on IP:PORT; port 0: one that is free. `store` outlives it. With TLS, clients must show a certificate of the
  // same authority, too. kInvalidArgument or kUnavailable: the address is wrong, or cannot be listened on.
  static Result<std::unique_ptr<KvServer>> Start(kv::HostedStore& store, const std::string& listen, const Tls& tls = {},
                                                 rpc::IsTrusted is_trusted = {});
  virtual ~KvServer() = default;                   // ends calls in progress
  virtual const std::string& address() const = 0;  // with the port that was taken
};

}  // namespace cairnfs::kvnet
