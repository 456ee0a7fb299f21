// The gRPC service of a host among those with the names, for the other two; and calls to it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "kv/names_host.h"
#include "kvnet/options.h"

namespace grpc {
class ServerContextBase;
class Service;
}  // namespace grpc

namespace cairnfs::kvnet {

// To be registered with a gRPC server, which must be shut down before this is destroyed.
class NamesService {
 public:
  // The node (hex) that calls, empty where nodes have no certificates; an error: it may not. Any thread.
  using Admit = std::function<Result<std::string>(const grpc::ServerContextBase& call)>;
  // The host outlives it.
  NamesService(kv::NamesHost& host, Admit admit);
  ~NamesService();
  NamesService(const NamesService&) = delete;
  grpc::Service& service();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Calls to that member, which answers as no other node. Connects when it is used.
class RemoteNames : public kv::Voter, public kv::FollowerCalls {
 public:
  static std::shared_ptr<RemoteNames> To(const kv::Member& member, const RemoteOptions& options);
};

// What the host at `address` tells of itself, whichever node it is. kUnavailable: it does not answer within `timeout`.
// kNotSupported: nothing there has to do with names.
Result<kv::NamesHost::Description> DescribeNames(const Context& context, const std::string& address,
                                                 const RemoteOptions& options, std::chrono::milliseconds timeout);

}  // namespace cairnfs::kvnet
