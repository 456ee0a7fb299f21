// Who is at the other end of a TCP connection, where that end is on this host.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace cairnfs::rpc {

// IPv4 addresses lie in ::ffff:0:0/96, so that both kinds compare alike.
using IpBytes = std::array<uint8_t, 16>;

// Whether the address of another host is trusted. Any thread. An empty function trusts all of them.
using IsTrusted = std::function<bool(const IpBytes& address)>;

struct Endpoint {
  IpBytes address{};
  uint16_t port = 0;       // in the host's byte order
  uint32_t interface = 0;  // of a link-local address; else 0
};

std::string TextOf(const IpBytes& address);
std::string TextOf(const Endpoint& endpoint);  // "10.0.0.1 port 7401"
// By what shares of a bound are counted: an IPv4 address, or the network of an IPv6 one, which one host has whole.
IpBytes NetworkOf(const IpBytes& address);
// Of gRPC's name for the other end of a connection ("ipv4:10.0.0.1:7401"). Its interface is
// left out. nullopt: it is none of TCP.
std::optional<Endpoint> EndpointOfUri(std::string_view uri);

// kIo: it is none of TCP.
Result<Endpoint> EndpointOf(const sockaddr_storage& address);
// The address of the other end. kIo: the connection is gone, or is not one of TCP.
Result<Endpoint> PeerOf(int connection);

// The user of the process that made the connection, as the kernel tells. nullopt: the peer's address is none of this
// host, in the network namespace of this process. kPermission: it is, but nobody can tell whose the connection is: it
// was closed meanwhile, its address was translated, or the kernel has no inet_diag. Any thread; blocks no longer than a
// system call.
Result<std::optional<uid_t>> UidOfLocalPeer(int connection);

}  // namespace cairnfs::rpc
