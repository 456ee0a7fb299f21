#include "rpc/local_peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>

namespace cairnfs::rpc {
namespace {

constexpr size_t kIpv4Offset = 12;  // of the address in its IPv6 form
constexpr IpBytes kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsIpv4(const IpBytes& address) {
  return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.begin() + kIpv4Offset, address.begin());
}

uint8_t FamilyOf(const IpBytes& address) { return IsIpv4(address) ? AF_INET : AF_INET6; }

void CopyAddress(const IpBytes& address, void* to) {
  const size_t offset = IsIpv4(address) ? kIpv4Offset : 0;
  std::memcpy(to, address.data() + offset, address.size() - offset);
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);
Result<Endpoint> NameOf(int connection, NameCall call) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (call(connection, reinterpret_cast<sockaddr*>(&name), &size) != 0) return ErrnoError(errno, "a connection's ends");
  return EndpointOf(name);
}

// Asks the kernel one question by netlink(7) and copies the answer's payload. `type`: of the answer. An errno; 0: done.
template <typename Request, typename Answer>
int AskKernel(int protocol, const Request& request, uint16_t type, Answer& answer) {
  const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol);
  if (fd < 0) return errno;
  alignas(nlmsghdr) std::array<char, 8192> reply;
  ssize_t size = send(fd, &request, request.header.nlmsg_len, 0);
  if (size >= 0) size = recv(fd, reply.data(), reply.size(), 0);
  const int error = errno;
  close(fd);
  if (size < 0) return error;
  const auto payload = static_cast<size_t>(size) - std::min<size_t>(static_cast<size_t>(size), NLMSG_HDRLEN);
  nlmsghdr header;
  std::memcpy(&header, reply.data(), sizeof header);
  if (header.nlmsg_type == NLMSG_ERROR && payload >= sizeof(int)) {
    int refusal = 0;  // what nlmsgerr begins with
    std::memcpy(&refusal, reply.data() + NLMSG_HDRLEN, sizeof refusal);
    return refusal == 0 ? EPROTO : -refusal;
  }
  if (header.nlmsg_type != type || payload < sizeof answer) return EPROTO;
  std::memcpy(&answer, reply.data() + NLMSG_HDRLEN, sizeof answer);
  return 0;
}

// Decides by the kernel's routes. The host may own whole networks, and processes may be allowed to bind to foreign
// addresses, so a list of the host's addresses would not do.
Result<bool> IsOfThisHost(const Endpoint& peer) {
  struct {
    nlmsghdr header;
    rtmsg route;
    rtattr attribute;
    IpBytes address;
  } request{};
  const bool is_ipv4 = IsIpv4(peer.address);
  const size_t address_bytes = is_ipv4 ? 4 : 16;
  request.header.nlmsg_len = static_cast<uint32_t>(offsetof(decltype(request), address) + address_bytes);
  request.header.nlmsg_type = RTM_GETROUTE;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.route.rtm_family = FamilyOf(peer.address);
  request.route.rtm_dst_len = static_cast<uint8_t>(8 * address_bytes);
  request.attribute.rta_type = RTA_DST;
  request.attribute.rta_len = static_cast<uint16_t>(RTA_LENGTH(address_bytes));
  CopyAddress(peer.address, request.address.data());
  rtmsg route{};
  const int error = AskKernel(NETLINK_ROUTE, request, RTM_NEWROUTE, route);
  if (error == ENETUNREACH || error == EHOSTUNREACH) return false;
  if (error != 0) return MakeError(ErrorCode::kPermission, ErrnoError(error, "netlink(7), routes").message);
  return route.rtm_type == RTN_LOCAL;
}

}  // namespace

Result<Endpoint> EndpointOf(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_INET) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, &address, sizeof ipv4);
    endpoint.address = kIpv4Prefix;
    std::memcpy(endpoint.address.data() + kIpv4Offset, &ipv4.sin_addr, sizeof ipv4.sin_addr);
    endpoint.port = ntohs(ipv4.sin_port);
    return endpoint;
  }
  if (address.ss_family != AF_INET6) return MakeError(ErrorCode::kIo, "a connection is none of TCP");
  sockaddr_in6 ipv6;
  std::memcpy(&ipv6, &address, sizeof ipv6);
  std::memcpy(endpoint.address.data(), &ipv6.sin6_addr, endpoint.address.size());
  endpoint.port = ntohs(ipv6.sin6_port);
  endpoint.interface = ipv6.sin6_scope_id;
  return endpoint;
}

std::string TextOf(const IpBytes& address) {
  char text[INET6_ADDRSTRLEN] = "?";
  const bool is_ipv4 = IsIpv4(address);
  inet_ntop(is_ipv4 ? AF_INET : AF_INET6, address.data() + (is_ipv4 ? kIpv4Offset : 0), text, sizeof text);
  return text;
}

std::string TextOf(const Endpoint& endpoint) {
  return fmt::format("{} port {}", TextOf(endpoint.address), endpoint.port);
}

IpBytes NetworkOf(const IpBytes& address) {
  constexpr size_t kNetworkBytes = 8;
  IpBytes network = address;
  if (!IsIpv4(address)) std::fill(network.begin() + kNetworkBytes, network.end(), uint8_t{0});
  return network;
}

std::optional<Endpoint> EndpointOfUri(std::string_view uri) {
  constexpr std::string_view kIpv4Scheme = "ipv4:", kIpv6Scheme = "ipv6:";
  const bool is_ipv4 = uri.starts_with(kIpv4Scheme);
  if (!is_ipv4 && !uri.starts_with(kIpv6Scheme)) return std::nullopt;
  uri.remove_prefix(kIpv4Scheme.size());
  const size_t colon = uri.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view address = uri.substr(0, colon), port = uri.substr(colon + 1);
  for (const std::string_view bracket : {"%5B", "["}) {
    if (address.starts_with(bracket)) address.remove_prefix(bracket.size());
  }
  address = address.substr(0, address.find_first_of("%]"));  // or the interface follows
  Endpoint endpoint;
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (parsed.ec != std::errc() || parsed.ptr != port.data() + port.size()) return std::nullopt;
  if (is_ipv4) endpoint.address = kIpv4Prefix;
  void* to = endpoint.address.data() + (is_ipv4 ? kIpv4Offset : 0);
  if (inet_pton(is_ipv4 ? AF_INET : AF_INET6, std::string(address).c_str(), to) != 1) return std::nullopt;
  return endpoint;
}

Result<Endpoint> PeerOf(int connection) { return NameOf(connection, getpeername); }

Result<std::optional<uid_t>> UidOfLocalPeer(int connection) {
  CAIRNFS_ASSIGN_OR_RETURN(const Endpoint peer, PeerOf(connection));
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_local, IsOfThisHost(peer));
  if (!is_local) return std::optional<uid_t>();
  CAIRNFS_ASSIGN_OR_RETURN(const Endpoint own, NameOf(connection, getsockname));
  // The socket at the other end: what is remote for this one is local there.
  struct {
    nlmsghdr header;
    inet_diag_req_v2 diag;
  } request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.diag.sdiag_family = FamilyOf(peer.address);
  request.diag.sdiag_protocol = IPPROTO_TCP;
  request.diag.idiag_states = ~0U;
  inet_diag_sockid& id = request.diag.id;
  id.idiag_sport = htons(peer.port);
  id.idiag_dport = htons(own.port);
  CopyAddress(peer.address, id.idiag_src);
  CopyAddress(own.address, id.idiag_dst);
  id.idiag_if = peer.interface;
  id.idiag_cookie[0] = id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  inet_diag_msg found{};
  if (const int error = AskKernel(NETLINK_SOCK_DIAG, request, SOCK_DIAG_BY_FAMILY, found); error != 0) {
    return MakeError(ErrorCode::kPermission, ErrnoError(error, "sock_diag(7)").message);
  }
  // A socket that no process has open any more looks like root's. A listening socket is not the other end of this one.
  if (found.idiag_inode == 0 || found.idiag_state == TCP_LISTEN) {
    return MakeError(ErrorCode::kPermission, "no process has it open any more");
  }
  return std::optional<uid_t>(found.idiag_uid);
}

}  // namespace cairnfs::rpc
