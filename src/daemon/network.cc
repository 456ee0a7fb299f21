#include "daemon/network.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>

namespace cairnfs::daemon {
namespace {

constexpr unsigned kIpv4Bits = 32, kIpv6Bits = 128;
constexpr size_t kIpv4Offset = 12;  // of the address in its IPv6 form
constexpr std::array<uint8_t, kIpv4Offset> kIpv4Prefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

template <typename Number>
bool ParseNumber(std::string_view text, Number& number) {
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  return code == std::errc{} && end == text.data() + text.size();
}

bool IsIpv4(const IpAddress& address) {
  return std::equal(kIpv4Prefix.begin(), kIpv4Prefix.end(), address.bytes.begin());
}

bool BitOf(const IpAddress& address, unsigned index) { return (address.bytes[index / 8] >> (7 - index % 8) & 1) != 0; }

}  // namespace

bool IpAddress::IsAny() const {
  return std::all_of(bytes.begin() + (IsIpv4(*this) ? kIpv4Offset : 0), bytes.end(),
                     [](uint8_t byte) { return byte == 0; });
}

bool IpAddress::IsLoopback() const {
  constexpr uint8_t kIpv4Net = 127;
  if (IsIpv4(*this)) return bytes[kIpv4Offset] == kIpv4Net;
  return bytes.back() == 1 && std::all_of(bytes.begin(), bytes.end() - 1, [](uint8_t byte) { return byte == 0; });
}

bool Network::Contains(const IpAddress& other) const {
  for (unsigned bit = 0; bit < prefix_bits; ++bit) {
    if (BitOf(address, bit) != BitOf(other, bit)) return false;
  }
  return true;
}

bool IsPrivate(const Network& network) {
  constexpr auto kPrivate = std::to_array<std::string_view>({"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16",
                                                             "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8",
                                                             "fc00::/8", "fd00::/8", "fe80::/10", "::1/128"});
  return std::any_of(kPrivate.begin(), kPrivate.end(), [&](std::string_view text) {
    const Network wider = *ParseNetwork(text);
    return network.prefix_bits >= wider.prefix_bits && wider.Contains(network.address);
  });
}

Result<IpAddress> ParseIp(std::string_view text) {
  const std::string terminated(text);
  IpAddress address;
  if (inet_pton(AF_INET6, terminated.c_str(), address.bytes.data()) == 1) return address;
  std::copy(kIpv4Prefix.begin(), kIpv4Prefix.end(), address.bytes.begin());
  if (inet_pton(AF_INET, terminated.c_str(), address.bytes.data() + kIpv4Offset) == 1) return address;
  return InvalidArgument(fmt::format("\"{}\" is no IP address, such as 10.0.0.1 or fd00::1", text));
}

Result<Network> ParseNetwork(std::string_view text) {
  const size_t slash = text.find('/');
  auto wrong = [&] {
    return InvalidArgument(fmt::format(
        "\"{}\" is no network; write an address and the bits of its prefix, for example \"10.0.0.0/8\"", text));
  };
  if (slash == std::string_view::npos) return wrong();
  auto address = ParseIp(text.substr(0, slash));
  unsigned bits = 0;
  if (!address.ok() || !ParseNumber(text.substr(slash + 1), bits)) return wrong();
  const bool is_ipv4 = text.substr(0, slash).find(':') == std::string_view::npos;
  if (const unsigned bits_max = is_ipv4 ? kIpv4Bits : kIpv6Bits; bits > bits_max) {
    return InvalidArgument(fmt::format("\"{}\" is no network: the prefix of an {} address has at most {} bits", text,
                                       is_ipv4 ? "IPv4" : "IPv6", bits_max));
  }
  Network network{*address, is_ipv4 ? bits + kIpv6Bits - kIpv4Bits : bits};
  for (unsigned bit = network.prefix_bits; bit < kIpv6Bits; ++bit) {
    if (!BitOf(network.address, bit)) continue;
    return InvalidArgument(
        fmt::format("\"{}\" names a host in a network: bits of the address after the first {} must be 0", text, bits));
  }
  return network;
}

Result<HostPort> ParseHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  auto wrong = [&] {
    return InvalidArgument(fmt::format("\"{}\" is no HOST:PORT, such as 10.0.0.1:7401 or [fd00::1]:7401", text));
  };
  HostPort address;
  if (colon == std::string_view::npos || !ParseNumber(text.substr(colon + 1), address.port)) return wrong();
  std::string_view host = text.substr(0, colon);
  const bool in_brackets = host.starts_with('[') && host.ends_with(']');
  if (in_brackets) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find_first_of("/ ,") != std::string_view::npos) return wrong();
  if (in_brackets != (host.find(':') != std::string_view::npos)) return wrong();
  address.host = host;
  return address;
}

std::string FormatHostPort(const HostPort& address) {
  return address.host.find(':') == std::string::npos ? fmt::format("{}:{}", address.host, address.port)
                                                     : fmt::format("[{}]:{}", address.host, address.port);
}

bool MayBeOfThisHost(const IpAddress& address) {
  const bool is_ipv4 = IsIpv4(address);
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  memcpy(&ipv4.sin_addr, address.bytes.data() + kIpv4Offset, sizeof ipv4.sin_addr);
  sockaddr_in6 ipv6{};
  ipv6.sin6_family = AF_INET6;
  memcpy(&ipv6.sin6_addr, address.bytes.data(), sizeof ipv6.sin6_addr);
  const auto* own = is_ipv4 ? reinterpret_cast<const sockaddr*>(&ipv4) : reinterpret_cast<const sockaddr*>(&ipv6);
  const int fd = socket(own->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;
  // Binds to any port: the one to listen on may be in use just now.
  const bool is_elsewhere = bind(fd, own, is_ipv4 ? sizeof ipv4 : sizeof ipv6) != 0 && errno == EADDRNOTAVAIL;
  close(fd);
  return !is_elsewhere;
}

bool InNetworks(const IpAddress& address, const std::vector<std::string>& networks) {
  return std::any_of(networks.begin(), networks.end(), [&](const std::string& text) {
    auto network = ParseNetwork(text);
    assert(network.ok());
    return network->Contains(address);
  });
}

rpc::IsTrusted TrustIn(std::vector<std::string> networks) {
  return [networks = std::move(networks)](const rpc::IpBytes& bytes) { return InNetworks(IpAddress{bytes}, networks); };
}

}  // namespace cairnfs::daemon
