// The gRPC service of the node that hosts the keys of a cluster.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kv/hosted_store.h"
#include "kv/names_host.h"
#include "rpc/local_peer.h"
#include "rpc/tls.h"

namespace grpc {
class ServerContextBase;
class Service;
}  // namespace grpc

namespace cairnfs::kvnet {

// To be registered with a gRPC server. The server must be shut down, calls included, before this is destroyed, and
// takes messages of at least kMessageBytesMax.
class KvService {
 public:
  static constexpr int kMessageBytesMax = 24 << 20;

  static constexpr int kWatchesMax = 4096;  // each is a thread

  // Whether a call may be served; asked first by each. Any thread.
  using Admit = std::function<Status(const grpc::ServerContextBase& call)>;
  // The store that is served now; null: none is, and calls are answered kUnavailable. Any thread.
  using StoreOf = std::function<kv::HostedStore*()>;
  // The store outlives it. Without `admit` all calls are served.
  explicit KvService(kv::HostedStore& store, Admit admit = {}, int watches_max = kWatchesMax)
      : KvService([&store] { return &store; }, std::move(admit), watches_max) {}
  KvService(StoreOf store, Admit admit, int watches_max = kWatchesMax);
  ~KvService();
  KvService(const KvService&) = delete;
  grpc::Service& service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// A server of the keys, and of what hosts with the names say to each other.
class KvServer {
 public:
  // Who may call, as rpc::PortGuard says it.
  struct Guard {
    rpc::Tls tls;
    rpc::IsTrusted is_trusted;
    std::function<Status(const std::string& node)> check_member;
  };
  // Listens on IP:PORT; port 0: one that is free. `store` outlives it. kInvalidArgument or kUnavailable: the address is
  // wrong, or cannot be listened on.
  static Result<std::unique_ptr<KvServer>> Start(kv::HostedStore& store, const std::string& listen, Guard guard = {});
  // The same of one of three hosts, of the store that it serves now.
  static Result<std::unique_ptr<KvServer>> Start(kv::NamesHost& host, const std::string& listen, Guard guard);
  virtual ~KvServer() = default;                   // ends calls in progress
  virtual const std::string& address() const = 0;  // with the port that was taken
  virtual uint64_t refused_total() const = 0;      // connections and calls
};

}  // namespace cairnfs::kvnet
