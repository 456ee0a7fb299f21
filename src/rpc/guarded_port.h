// GuardedPort: the TCP port of a service for other nodes. The service obeys whoever reaches it, so the port decides who
// may.
//
// With TLS: who shows a certificate of the cluster's authority. Nothing that comes before is parsed as a call, and
// connections over which no member has called yet are bounded in number and time, each address having a share. Each
// call is then admitted by Admit(), which asks whether the node that the certificate names is still a member.
//
// What is received over all connections and not worked off yet, parts of messages too, is bounded: calls beyond it end
// with RESOURCE_EXHAUSTED and without a code of status.h.
//
// Without: of this host's processes those of root and of the daemon's user, and other hosts with a trusted address.
// Others get the refusal as the answer to each call, of any service. A connection is judged once, before anything that
// it sends is read. So calls cost nothing, and a port that another process has later is judged anew.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "rpc/acceptor.h"
#include "rpc/local_peer.h"
#include "rpc/refusals.h"
#include "rpc/tls.h"

namespace cairnfs::rpc {

struct PortGuard {
  Tls tls;               // none: the addresses decide
  IsTrusted is_trusted;  // without TLS
  // With TLS: why the node (hex) is no member; ok: it is. Any thread, must not block for long. Empty: who has a
  // certificate is one.
  std::function<Status(const std::string& node)> check_member;
};

class GuardedPort {
 public:
  // Adds the port to the server that `builder` will build. That server takes the connections that are let in.
  GuardedPort(grpc::ServerBuilder& builder, PortGuard guard);
  ~GuardedPort();
  GuardedPort(const GuardedPort&) = delete;

  // Listens on IP:PORT; port 0: one that is free. kUnavailable: the message says why. REQUIRES
  // (unchecked): the server was started.
  Status Open(const std::string& listen);
  const std::string& address() const { return address_; }  // with the port that was taken

  // Takes no more connections. To be called before the server is shut down; calls under way may still ask Admit.
  void Close();

  // To be asked first by each call. The node (hex) that calls, empty without TLS. Errors are those of check_member;
  // kPermission: the certificate names no node.
  Result<std::string> Admit(const grpc::ServerContextBase& call);
  // Refuses a call for another reason, which is counted and logged.
  Error Refuse(const grpc::ServerContextBase& call, const std::string& why);
  uint64_t refused_total() const { return refusals_ == nullptr ? 0 : refusals_->total(); }

 private:
  // A connection over which no call of a member came yet.
  struct Young {
    int connection;
    uint64_t cookie;  // tells the connection from a later one with this descriptor
    Endpoint peer;
    Clock::time_point taken_at;
    bool is_counted = false;  // a call over it was refused
  };
  class Answers;
  void Take(int connection);
  void TakeYoung(int connection) EXCLUDES_LOCK(mutex_);
  static void End(const Young& young);
  bool LookAfterYoung() EXCLUDES_LOCK(mutex_);
  enum class Caller { kMember, kStranger };
  void NoteCall(const grpc::ServerContextBase& call, Caller caller) EXCLUDES_LOCK(mutex_);
  // ok: it may come in. kPermission: the message says who it is, for the log.
  Status Judge(int connection) const;

  const PortGuard guard_;
  const std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> admit_;
  std::string address_;
  std::unique_ptr<RefusalLog> refusals_;  // once it is open
  std::unique_ptr<Answers> answers_;      // without TLS
  std::atomic<size_t> young_count_{0};    // of young_: a call need not look where it is 0
  Mutex mutex_;
  std::vector<Young> young_ GUARDED_BY(mutex_);     // the oldest first
  std::vector<Endpoint> ended_ GUARDED_BY(mutex_);  // of those that gave way, and are still to be told
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace cairnfs::rpc
