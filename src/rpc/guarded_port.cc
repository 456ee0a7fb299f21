#include "rpc/guarded_port.h"

#include <fmt/format.h>
#include <grpcpp/generic/async_generic_service.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
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
// What is received and not worked off, over all connections: also parts of messages. Beyond it gRPC ends calls, the
// largest first.
constexpr size_t kReceivedBytesMax = 256 * kMiB;
// Connections over which no call came yet: those of strangers are closed after the handshake's time.
constexpr size_t kYoungMax = 512, kYoungOfNetworkMax = 64;
constexpr int kHandshakeMs = 5'000;
constexpr auto kYoungAge = 2 * std::chrono::milliseconds(kHandshakeMs);

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

std::string OwnUsers() { return geteuid() == 0 ? "root" : "root and " + UserName(geteuid()); }

}  // namespace

// A server that answers every call with one error.
class GuardedPort::Answers final : public grpc::CallbackGenericService {
 public:
  static Result<std::unique_ptr<Answers>> Start(const std::string& message) {
    auto answers = std::unique_ptr<Answers>(new Answers(message));
    grpc::ServerBuilder builder;
    answers->tell_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_MS, kRefusedAgeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_AGE_GRACE_MS, kRefusedGraceMs);
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kRefusedAgeMs);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kRefusedCallsMax);
    grpc::ResourceQuota quota("refusals");
    quota.Resize(kRefusedBytesMax);
    builder.SetResourceQuota(quota);
    builder.RegisterCallbackGenericService(answers.get());
    answers->server_ = builder.BuildAndStart();
    if (answers->server_ == nullptr) return MakeError(ErrorCode::kUnavailable, "cannot start a server");
    return answers;
  }
  ~Answers() override {
    if (server_ != nullptr) server_->Shutdown(Clock::LibraryDeadline(kShutdownGrace));
  }

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    return new RefusedCall(answer_);
  }

  // Called by the thread that takes connections.
  void Tell(int connection) {
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
  explicit Answers(const std::string& message) : answer_(ToGrpc(MakeError(ErrorCode::kPermission, message))) {}

  const grpc::Status answer_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> tell_;
  std::unique_ptr<grpc::Server> server_;
  std::vector<Told> told_;
};

GuardedPort::GuardedPort(grpc::ServerBuilder& builder, PortGuard guard)
    : guard_(std::move(guard)),
      admit_(builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, guard_.tls.Server())) {
  grpc::ResourceQuota quota("port");
  quota.Resize(kReceivedBytesMax);
  builder.SetResourceQuota(quota);
  if (guard_.tls.enabled()) builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
}

GuardedPort::~GuardedPort() { Close(); }

void GuardedPort::Close() {
  acceptor_.reset();
  answers_.reset();
}

Status GuardedPort::Open(const std::string& listen) {
  CAIRNFS_ASSIGN_OR_RETURN(const int listener, Acceptor::ListenOn(listen));
  const auto prepare = [&]() -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(address_, AddressOf(listener, listen));
    refusals_ = std::make_unique<RefusalLog>("the port of the node at " + address_);
    if (guard_.tls.enabled()) return {};
    CAIRNFS_ASSIGN_OR_RETURN(
        answers_, Answers::Start(fmt::format(
                      "refused by the node at {}: its cluster has no certificates, so it serves other hosts by their "
                      "addresses (trusted_network), and on its own host processes of {} alone",
                      address_, OwnUsers())));
    return {};
  };
  if (Status prepared = prepare(); !prepared.ok()) {
    close(listener);
    return prepared;
  }
  CAIRNFS_ASSIGN_OR_RETURN(
      acceptor_, Acceptor::Start(listener, "cairn-accept",
                                 {[this](int connection) { Take(connection); }, [this] { return LookAfterYoung(); }}));
  return {};
}

void GuardedPort::Take(int connection) {
  const int on = 1;
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (guard_.tls.enabled()) return TakeYoung(connection);
  if (Status judged = Judge(connection); judged.ok()) {
    HandOver(*admit_, connection);
  } else {
    refusals_->Note(judged.error().message);
    answers_->Tell(connection);
  }
}

void GuardedPort::TakeYoung(int connection) {
  LookAfterYoung();
  const auto peer = PeerOf(connection);
  const auto cookie = SocketCookie(connection);
  if (!peer.ok() || !cookie) {
    close(connection);  // it has gone
    return;
  }
  const IpBytes network = NetworkOf(peer->address);
  const auto is_of_network = [&](const Young& young) { return NetworkOf(young.peer.address) == network; };
  {
    MutexLock lock(mutex_);
    // A node calls at once: so the oldest gives way, that of the same network where its share is used up.
    const auto of_network = std::count_if(young_.begin(), young_.end(), is_of_network);
    auto oldest = young_.end();
    if (of_network >= static_cast<ptrdiff_t>(kYoungOfNetworkMax)) {
      oldest = std::find_if(young_.begin(), young_.end(), is_of_network);
    } else if (young_.size() >= kYoungMax) {
      oldest = young_.begin();
    }
    if (oldest != young_.end()) {
      End(*oldest);
      if (!oldest->is_counted) ended_.push_back(oldest->peer);
      young_.erase(oldest);
    }
    young_.push_back({connection, *cookie, *peer, Clock::Now()});
    young_count_ = young_.size();
  }
  HandOver(*admit_, connection);
}

// The server closes the descriptor once it finds the connection ended.
void GuardedPort::End(const Young& young) {
  if (SocketCookie(young.connection) == young.cookie) shutdown(young.connection, SHUT_RDWR);
}

// Forgets those that have ended without a call, and ends those that have had time enough for one.
bool GuardedPort::LookAfterYoung() {
  if (young_count_ == 0) return false;
  std::vector<Endpoint> ended;
  MutexLock lock(mutex_);
  ended.swap(ended_);
  std::erase_if(young_, [&, now = Clock::Now()](const Young& young) {
    const bool is_late = now - young.taken_at > kYoungAge;
    if (is_late) End(young);
    const bool has_ended = is_late || SocketCookie(young.connection) != young.cookie;
    if (has_ended && !young.is_counted) ended.push_back(young.peer);
    return has_ended;
  });
  young_count_ = young_.size();
  const bool are_left = !young_.empty();
  lock.Unlock();
  for (const Endpoint& peer : ended) {
    refusals_->Note(
        fmt::format("a connection from {}, which ended before a call of a member: it showed no certificate that "
                    "this cluster's authority gave and that is valid now, broke off, or was silent",
                    TextOf(peer)));
  }
  return are_left;
}

void GuardedPort::NoteCall(const grpc::ServerContextBase& call, Caller caller) {
  if (young_count_ == 0) return;
  const auto peer = EndpointOfUri(call.peer());
  if (!peer) return;
  MutexLock lock(mutex_);
  const auto young = std::find_if(young_.begin(), young_.end(), [&](const Young& one) {
    return one.peer.port == peer->port && one.peer.address == peer->address;
  });
  if (young == young_.end()) return;
  if (caller == Caller::kMember) {
    young_.erase(young);
  } else {
    young->is_counted = true;
  }
  young_count_ = young_.size();
}

Result<std::string> GuardedPort::Admit(const grpc::ServerContextBase& call) {
  if (!guard_.tls.enabled()) return std::string();
  const auto node = CertifiedNode(*call.auth_context());
  if (!node) return Refuse(call, "its certificate names no node");
  const Status member = guard_.check_member ? guard_.check_member(*node) : Status();
  if (member.ok()) {
    NoteCall(call, Caller::kMember);
    return *node;
  }
  NoteCall(call, Caller::kStranger);
  return MakeError(member.error().code, Refuse(call, member.error().message).message);
}

Error GuardedPort::Refuse(const grpc::ServerContextBase& call, const std::string& why) {
  const auto peer = EndpointOfUri(call.peer());
  refusals_->Note(fmt::format("a call from {}: {}", peer ? TextOf(*peer) : "?", why));
  return MakeError(ErrorCode::kPermission, fmt::format("refused by the node at {}: {}", address_, why));
}

Status GuardedPort::Judge(int connection) const {
  const auto peer = PeerOf(connection);
  if (!peer.ok()) return peer.error();  // it has gone
  const std::string from = "a connection from " + TextOf(*peer);
  const auto uid = UidOfLocalPeer(connection);
  if (!uid.ok()) return MakeError(ErrorCode::kPermission, from + ", on this host: " + uid.error().message);
  if (*uid) {
    if (**uid == 0 || **uid == geteuid()) return {};
    return MakeError(ErrorCode::kPermission, from + ", on this host, is of " + UserName(**uid));
  }
  if (!guard_.is_trusted || guard_.is_trusted(peer->address)) return {};
  return MakeError(ErrorCode::kPermission, from + " lies in none of the trusted networks");
}

}  // namespace cairnfs::rpc
