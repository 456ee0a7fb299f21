// The side of the host that joins.
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>

#include "admission/join_port.h"
#include "admission/tls_connection.h"
#include "base/clock.h"
#include "rpc/acceptor.h"

namespace cairnfs::admission {
namespace {

constexpr auto kJoinTime = std::chrono::seconds(30);
constexpr auto kProbeTime = std::chrono::seconds(3);

// A socket that does not block, and connects or is connected.
Result<int> SocketTo(const std::string& address) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, rpc::LookUp(address, 0));
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool begun = fd >= 0 && (connect(fd, found->ai_addr, found->ai_addrlen) == 0 || errno == EINPROGRESS);
  const int error = errno;
  if (begun) return fd;
  if (fd >= 0) close(fd);
  return MakeError(ErrorCode::kUnavailable, ErrnoError(error, "cannot reach " + address).message);
}

// Finds the token's authority at the end of the chain, and checks that it vouches for the other end now.
Status CheckHost(const std::vector<CertificatePtr>& chain, const Token& token) {
  const auto other_cluster = [] {
    return MakeError(ErrorCode::kPermission,
                     "the host there is not of the token's cluster: give the address that cairnfs cluster token "
                     "printed with it");
  };
  if (chain.empty()) return other_cluster();
  Fingerprint print{};
  unsigned size = 0;
  if (X509_digest(chain.back().get(), EVP_sha256(), print.data(), &size) != 1) return OpenSslError("a fingerprint");
  if (print != token.authority) return other_cluster();
  return CheckChain(*chain.back(), chain, ChainTime::kNow);
}

}  // namespace

bool SpeaksTls(const std::string& address) {
  auto context = TlsConnection::ClientContext();
  const auto socket = SocketTo(address);
  if (!context.ok() || !socket.ok()) return false;
  return TlsConnection::Connect(*std::move(context), *socket, Clock::Now() + kProbeTime).ok();
}

Result<JoinGrant> Join(const std::string& address, const Token& token, const Introduce& introduce) {
  const auto until = Clock::Now() + kJoinTime;
  const auto ask = [&](TlsConnection& connection, const std::string& message) -> Result<std::string> {
    CAIRNFS_RETURN_IF_ERROR(connection.Write(message, until));
    CAIRNFS_ASSIGN_OR_RETURN(const std::string answer, connection.Read(until));
    return DecodeAnswer(answer);
  };
  CAIRNFS_ASSIGN_OR_RETURN(auto context, TlsConnection::ClientContext());
  CAIRNFS_ASSIGN_OR_RETURN(const int socket, SocketTo(address));
  const auto nobody_joins = [&](const Error& error) {
    return error.code != ErrorCode::kUnavailable
               ? error
               : error.WithContext("no host lets others join at " + address +
                                   " (it must be mounted, and serve_join be its address)");
  };
  auto connection = TlsConnection::Connect(std::move(context), socket, until);
  if (!connection.ok()) return nobody_joins(connection.error());
  CAIRNFS_RETURN_IF_ERROR(CheckHost((*connection)->Chain(), token));
  const auto welcome_bytes = ask(**connection, JoinHello{token.secret}.Encode());
  if (!welcome_bytes.ok()) return nobody_joins(welcome_bytes.error());
  CAIRNFS_ASSIGN_OR_RETURN(const JoinWelcome welcome, JoinWelcome::Decode(*welcome_bytes));
  CAIRNFS_ASSIGN_OR_RETURN(const JoinRequest request, introduce(welcome));
  CAIRNFS_ASSIGN_OR_RETURN(const std::string grant, ask(**connection, request.Encode()));
  return JoinGrant::Decode(grant);
}

}  // namespace cairnfs::admission
