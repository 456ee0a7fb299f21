// Who is at the other end of a TCP connection, where that end is on this host.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>

#include "base/result.h"

namespace cairnfs::rpc {

// IPv4 addresses lie in ::ffff:0:0/96, so that both kinds compare alike.
using IpBytes = std::array<uint8_t, 16>;

// Of an address of another host. Any thread. An empty function trusts all of them.
using IsTrusted = std::function<bool(const IpBytes& address)>;

struct Endpoint {
  IpBytes address{};
  uint16_t port = 0;       // in the host's byte order
  uint32_t interface = 0;  // of a link-local address; else 0
};

// Of the other end. kIo: the connection is gone, or is none of TCP.
Result<Endpoint> PeerOf(int connection);

// The user of the process that made the connection, as the kernel tells. nullopt: the peer's address is none of this
// host, in the network namespace of this process. kPermission: it is one, but whose the connection is cannot be told:
// it was closed meanwhile, was translated, or the kernel has no inet_diag. Any thread; blocks no longer than a system
// call.
Result<std::optional<uid_t>> UidOfLocalPeer(int connection);

}  // namespace cairnfs::rpc
