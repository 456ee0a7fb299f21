// Addresses in the configuration: IP:PORT, HOST:PORT, networks as address/bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "rpc/local_peer.h"

namespace cairnfs::daemon {

// IPv4 addresses lie in ::ffff:0:0/96, so that both kinds compare alike.
struct IpAddress {
  std::array<uint8_t, 16> bytes{};
  bool IsAny() const;       // 0.0.0.0 or ::
  bool IsLoopback() const;  // in 127.0.0.0/8, or ::1
};
struct Network {
  IpAddress address;
  unsigned prefix_bits = 0;  // of 128
  bool Contains(const IpAddress& other) const;
};
// Whether all of its addresses are private ones: of RFC 1918, shared ones of providers (100.64.0.0/10), link-local,
// unique local ones of IPv6, or loopback. The widest of these has a prefix of 8 bits.
bool IsPrivate(const Network& network);

struct HostPort {
  std::string host;  // without the brackets of an IPv6 address
  uint16_t port = 0;
};

// kInvalidArgument with what would be right, all of them.
Result<IpAddress> ParseIp(std::string_view text);
Result<Network> ParseNetwork(std::string_view text);    // "10.0.0.0/8", "fd00::/8"
Result<HostPort> ParseHostPort(std::string_view text);  // "node1:7401", "10.0.0.1:7401", "[fd00::1]:7401"
std::string FormatHostPort(const HostPort& address);

// False: no socket of this host, in the network namespace of the caller, can have the address. True too when that
// cannot be found out.
bool MayBeOfThisHost(const IpAddress& address);
// What follows the name of one that is not.
inline constexpr std::string_view kNoAddressHere =
    "is no address of this host: give one that `ip address` lists here, or bring its interface up first";

// Whether the address lies in one of the networks. REQUIRES: each parses.
bool InNetworks(const IpAddress& address, const std::vector<std::string>& networks);
// A function that says the same of an address that connects to a port. REQUIRES: each parses.
rpc::IsTrusted TrustIn(std::vector<std::string> networks);

}  // namespace cairnfs::daemon
