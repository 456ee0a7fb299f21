#include "rpc/guarded_port.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <grpcpp/generic/async_generic_service.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/types.h"
#include "base/user.h"
#include "rpc/status.h"

namespace cairnfs::rpc {
namespace {

// Refused connections that are told why. Each takes a descriptor. Beyond this number they are closed without a word.
constexpr size_t kRefusedMax = 16;
constexpr int kRefusedAgeMs = 5'000, kRefusedGraceMs = 1'000;
constexpr int kRefusedCallsMax = 4;  // of a connection
constexpr size_t kRefusedBytesMax = 16 * kMiB;
constexpr auto kShutdownGrace = std::chrono::milliseconds(100);
// A refused process tries again, and could fill the disk with the log's lines about it.
constexpr auto kWarningInterval = std::chrono::minutes(1);

void HandOver(grpc::experimental::ExternalConnectionAcceptor& to, int connection) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
  parameters.fd = connection;
  to.HandleNewConnection(&parameters);
}

class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(const grpc::Status& why) { Finish(why); }
  void OnDone() override { delete this; }
};

std::string TextOf(const IpBytes& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET6, address.data(), text, sizeof text);
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view found = text;
  const bool is_ipv4 = found.starts_with(kMapped) && found.find('.') != std::string_view::npos;
  return std::string(is_ipv4 ? found.substr(kMapped.size()) : found);
}

std::string OwnUsers() { return geteuid() == 0 ? "root" : "root and " + UserName(geteuid()); }

}  // namespace

// A server that answers every call with one error.
class GuardedPort::Refusals final : public grpc::CallbackGenericService {
 public:
  static Result<std::unique_ptr<Refusals>> Start(const std::string& message) {
    auto refusals = std::unique_ptr<Refusals>(new Refusals(message));
    grpc::ServerBuilder builder;
    refusals->tell_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedAgeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kRefusedGraceMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kRefusedAgeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kRefusedCallsMax);
    grpc::ResourceQuota quota("refusals");
    quota.Resize(kRefusedBytesMax);
    builder.SetResourceQuota(quota);
    builder.RegisterCallbackGenericService(refusals.get());
    refusals->server_ = builder.BuildAndStart();
    if (refusals->server_ == nullptr) return MakeError(ErrorCode::kUnavailable, "cannot start a server");
    return refusals;
  }
  ~Refusals() override {
    if (server_ != nullptr) server_->Shutdown(Clock::LibraryDeadline(kShutdownGrace));
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new RefusedCall(answer_);
  }

  // Called by the thread that takes connections.
  void Tell(int connection, const std::string& why) {
    const auto now = Clock::Now();
    if (!warned_ || now - *warned_ >= kWarningInterval) {
      warned_ = now;
      spdlog::warn("{}: {}", answer_.error_message(), why);
    }
    std::erase_if(told_, [](const Told& told) { return SocketCookie(told.connection) != told.cookie; });
    const auto cookie = SocketCookie(connection);
    if (!cookie || told_.size() >= kRefusedMax) {
      close(connection);
      return;
    }
    told_.push_back({connection, *cookie});
    HandOver(*tell_, connection);
  }

 private:
  struct Told {
    int connection;
    uint64_t cookie;  // tells the connection from a later one with this descriptor
  };
  explicit Refusals(const std::string& message) : answer_(ToGrpc(MakeError(ErrorCode::kPermission, message))) {}

  const grpc::Status answer_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tell_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<Told> told_;
  std::optional<Clock::time_point> warned_;
};

GuardedPort::GuardedPort(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& credentials,
                         IsTrusted is_trusted)
    : is_trusted_(std::move(is_trusted)),
      admit_(builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials)) {}

GuardedPort::~GuardedPort() {
  acceptor_.reset();
  refusals_.reset();
}

Status GuardedPort::Open(const std::string& listen) {
  CAIRNFS_ASSIGN_OR_RETURN(const int listener, Acceptor::ListenOn(listen));
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  uint16_t port = 0;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size) == 0) {
    port = ntohs(name.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&name)->sin_port
                                           : reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
  }
  address_ = fmt::format("{}{}", listen.substr(0, listen.rfind(':') + 1), port);
  auto refusals = Refusals::Start(
      fmt::format("refused by the node at {}: until nodes have certificates it serves other hosts by their addresses "
                  "(trusted_network), and on its own host processes of {} alone",
                  address_, OwnUsers()));
  if (!refusals.ok()) {
    close(listener);
    return refusals.error();
  }
  refusals_ = *std::move(refusals);
  CAIRNFS_ASSIGN_OR_RETURN(acceptor_,
                           Acceptor::Start(listener, "cairn-accept", [this](int connection) { Take(connection); }));
  return {};
}

void GuardedPort::Take(int connection) {
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (Status judged = Judge(connection); judged.ok()) {
    HandOver(*admit_, connection);
  } else {
    refusals_->Tell(connection, judged.error().message);
  }
}

Status GuardedPort::Judge(int connection) const {
  const auto peer = PeerOf(connection);
  if (!peer.ok()) return peer.error();  // it has gone
  const auto from = [&] { return fmt::format("a connection from {} port {}", TextOf(peer->address), peer->port); };
  const auto uid = UidOfLocalPeer(connection);
  if (!uid.ok()) return MakeError(ErrorCode::kPermission, from() + ", on this host: " + uid.error().message);
  if (*uid) {
    if (**uid == 0 || **uid == geteuid()) return {};
    return MakeError(ErrorCode::kPermission, from() + ", on this host, is of " + UserName(**uid));
  }
  if (!is_trusted_ || is_trusted_(peer->address)) return {};
  return MakeError(ErrorCode::kPermission, from() + " lies in none of the trusted networks");
}

}  // namespace cairnfs::rpc
