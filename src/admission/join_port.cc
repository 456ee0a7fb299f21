#include "admission/join_port.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "admission/tls_connection.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/printable.h"
#include "base/task_queue.h"
#include "rpc/acceptor.h"
#include "rpc/local_peer.h"
#include "rpc/refusals.h"

namespace cairnfs::admission {
namespace {

constexpr size_t kConnectionsMax = 8, kConnectionsOfNetworkMax = 2;
constexpr auto kStrangerTime = std::chrono::seconds(5);  // for the handshake and the token
constexpr auto kGuestTime = std::chrono::seconds(60);    // with a good token: the host makes its data directory

class JoinPortImpl final : public JoinPort {
 public:
  JoinPortImpl(const Credentials& credentials, Tokens& tokens, Cluster cluster)
      : credentials_(credentials),
        tokens_(tokens),
        cluster_(std::move(cluster)),
        work_(std::make_unique<TaskQueue>("cairn-join", kConnectionsMax)) {}

  ~JoinPortImpl() override {
    acceptor_.reset();
    {
      MutexLock lock(mutex_);
      for (const auto& [number, guest] : guests_) shutdown(guest.socket, SHUT_RDWR);
    }
    work_.reset();
  }

  Status Open(const std::string& listen) {
    CAIRNFS_ASSIGN_OR_RETURN(const int listener, rpc::Acceptor::ListenOn(listen));
    CAIRNFS_ASSIGN_OR_RETURN(address_, rpc::AddressOf(listener, listen));
    refusals_.emplace("the port for joining at " + address_);
    CAIRNFS_ASSIGN_OR_RETURN(acceptor_,
                             rpc::Acceptor::Start(listener, "cairn-joins", {[this](int s) { Take(s); }, {}}));
    return {};
  }

  const std::string& address() const override { return address_; }
  uint64_t refused_total() const override { return refusals_->total(); }

 private:
  void Take(int socket) {
    const auto peer = rpc::PeerOf(socket);
    const auto entered = peer.ok() ? Enter(socket, rpc::NetworkOf(peer->address)) : std::nullopt;
    if (!entered) {
      if (peer.ok()) refusals_->Note(fmt::format("{}: too many connections at once", rpc::TextOf(*peer)));
      close(socket);
      return;
    }
    work_->Post([this, socket, number = *entered, from = rpc::TextOf(*peer)] {
      if (Status served = Serve(socket); !served.ok()) refusals_->Note(from + ": " + served.error().message);
      Leave(number);
    });
  }

  // Nullopt: there are too many.
  std::optional<uint64_t> Enter(int socket, const rpc::IpBytes& from) {
    MutexLock lock(mutex_);
    size_t of_network = 0;
    for (const auto& [number, guest] : guests_) of_network += guest.from == from ? 1 : 0;
    if (guests_.size() >= kConnectionsMax || of_network >= kConnectionsOfNetworkMax) return std::nullopt;
    const int held = fcntl(socket, F_DUPFD_CLOEXEC, 0);
    if (held < 0) return std::nullopt;
    guests_[next_number_] = {held, from};
    return next_number_++;
  }
  void Leave(uint64_t number) {
    MutexLock lock(mutex_);
    close(guests_.at(number).socket);
    guests_.erase(number);
  }

  // Takes over the socket.
  Status Serve(int socket) {
    const auto strange_until = Clock::Now() + kStrangerTime;
    auto context = TlsConnection::ServerContext(credentials_.own(), credentials_.authority());
    if (!context.ok()) {
      close(socket);
      return context.error();
    }
    CAIRNFS_ASSIGN_OR_RETURN(const auto connection, TlsConnection::Accept(*std::move(context), socket, strange_until));
    CAIRNFS_ASSIGN_OR_RETURN(const std::string first, connection->Read(strange_until));
    const auto until = Clock::Now() + kGuestTime;
    return Talk(*connection, first, until);
  }

  Status Talk(TlsConnection& connection, const std::string& first, Clock::time_point until) {
    const auto hello = JoinHello::Decode(first);
    if (!hello.ok()) return Answer(connection, hello.error(), until);
    if (!tokens_.IsGood(hello->secret)) return Answer(connection, UnknownToken(), until);
    CAIRNFS_RETURN_IF_ERROR(Answer(connection, Welcome(), until));
    CAIRNFS_ASSIGN_OR_RETURN(const std::string second, connection.Read(until));
    return Answer(connection, Grant(hello->secret, second), until);
  }

  Result<std::string> Welcome() const {
    CAIRNFS_ASSIGN_OR_RETURN(const JoinWelcome welcome, cluster_.welcome());
    return welcome.Encode();
  }

  Result<std::string> Grant(const Secret& secret, const std::string& message) {
    CAIRNFS_ASSIGN_OR_RETURN(const JoinRequest request, JoinRequest::Decode(message));
    const auto until = tokens_.Use(secret);
    if (!until) return UnknownToken();
    auto granted = GrantTo(request);
    if (!granted.ok()) tokens_.PutBack(secret, *until);  // it made nobody a node
    return granted;
  }

  Result<std::string> GrantTo(const JoinRequest& request) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::string chain,
                             credentials_.Issue(request.certificate, request.node, Clock::WallTime()));
    const bool is_proven = IsProofOf(credentials_.authority(), request.node, request.certificate, request.proof);
    CAIRNFS_RETURN_IF_ERROR(cluster_.admit(request, is_proven ? Identity::kProven : Identity::kClaimed));
    spdlog::info("node {} ({}, {}) may join the cluster: it had a token", Printable(request.name), request.node,
                 Printable(request.address));
    return JoinGrant{credentials_.authority(), chain}.Encode();
  }

  static Error UnknownToken() {
    return MakeError(ErrorCode::kPermission,
                     "the token is not known: it was used, has expired, or the daemon that made it was restarted; make "
                     "a new one with cairnfs cluster token");
  }

  // Sends it, and fails with the error that it is.
  static Status Answer(TlsConnection& connection, const Result<std::string>& answer, Clock::time_point until) {
    CAIRNFS_RETURN_IF_ERROR(connection.Write(EncodeAnswer(answer), until));
    return answer.ok() ? Status() : Status(answer.error());
  }

  const Credentials& credentials_;
  Tokens& tokens_;
  const Cluster cluster_;
  std::optional<rpc::RefusalLog> refusals_;  // once it is open
  std::string address_;
  struct Guest {
    int socket;  // a descriptor of its own, by which the end of the port ends the connection
    rpc::IpBytes from;
  };
  Mutex mutex_;
  uint64_t next_number_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Guest> guests_ GUARDED_BY(mutex_);
  std::unique_ptr<TaskQueue> work_;  // a task for each guest
  std::unique_ptr<rpc::Acceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<JoinPort>> JoinPort::Start(const std::string& listen, const Credentials& credentials,
                                                  Tokens& tokens, Cluster cluster) {
  auto port = std::make_unique<JoinPortImpl>(credentials, tokens, std::move(cluster));
  CAIRNFS_RETURN_IF_ERROR(port->Open(listen));
  return std::unique_ptr<JoinPort>(std::move(port));
}

}  // namespace cairnfs::admission
