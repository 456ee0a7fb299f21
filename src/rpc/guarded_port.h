// GuardedPort: the TCP port of a service for other nodes. The service obeys whoever reaches it, so the port decides who
// may: of this host's processes those of root and of the daemon's user, and other hosts with a trusted address. Others
// get the refusal as the answer to each call, of any service. A connection is judged once, before anything that it
// sends is read. So calls cost nothing, and a port that another process has later is judged anew.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "rpc/acceptor.h"
#include "rpc/local_peer.h"

namespace cairnfs::rpc {

class GuardedPort {
 public:
  // Adds the port to the server that `builder` will build. That server takes the connections that are let in.
  GuardedPort(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials,
              IsTrusted is_trusted);
  // To be destroyed before the server is shut down.
  ~GuardedPort();
  GuardedPort(const GuardedPort&) = delete;

  // Listens on IP:PORT; port 0: one that is free. kUnavailable: the message says why. REQUIRES
  // (unchecked): the server was started.
  Status Open(const std::string& listen);
  const std::string& address() const { return address_; }  // with the port that was taken

 private:
  class Refusals;
  void Take(int connection);
  // ok: it may come in. kPermission: the message says who it is, for the log.
  Status Judge(int connection) const;

  const IsTrusted is_trusted_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> admit_;
  std::string address_;
  std::unique_ptr<Refusals> refusals_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace cairnfs::rpc
