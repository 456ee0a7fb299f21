#include "daemon/setup_addresses.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>
#include <string>

#include "daemon/network.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

constexpr uint16_t kPeerPort = 7401;

struct FreeFound {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};

// The addresses to which the name leads, as this host sees it. kUnavailable.
Result<std::unique_ptr<addrinfo, FreeFound>> Resolve(const HostPort& address) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  const int error = getaddrinfo(address.host.c_str(), fmt::format("{}", address.port).c_str(), &hints, &found);
  if (error == 0) return std::unique_ptr<addrinfo, FreeFound>(found);
  return MakeError(ErrorCode::kUnavailable, fmt::format("cannot resolve {}: {}", address.host, gai_strerror(error)));
}

// The address that this machine has towards another one: that of the route, no packet is sent.
Result<std::string> AddressTowards(const HostPort& other) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, Resolve(other));
  const int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  const bool connected = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
                         getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0;
  const int failure = errno;
  if (fd >= 0) close(fd);
  if (!connected) return ErrnoError(failure, "no route to " + other.host);
  std::array<char, NI_MAXHOST> text{};
  getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  return std::string(text.data());
}

Result<HostPort> FirstEndpoint(const std::string& url) {
  CAIRNFS_ASSIGN_OR_RETURN(kvnet::StoreAddress address, kvnet::StoreAddress::Parse(url));
  return ParseHostPort(address.endpoints.front());
}

Status CheckListensHere(const Config& config) {
  struct Named {
    std::string_view key;
    const std::string& text;
  };
  for (const Named& named : {Named{"listen", config.listen}, Named{"serve_metadata", config.serve_metadata},
                             Named{"serve_join", config.serve_join}}) {
    if (named.text.empty()) continue;
    CAIRNFS_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(named.text));
    CAIRNFS_ASSIGN_OR_RETURN(const IpAddress ip, ParseIp(address.host));
    if (MayBeOfThisHost(ip)) continue;
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} = \"{}\" {}", named.key, named.text, kNoAddressHere));
  }
  return {};
}

// Refuses addresses that cannot lead here from another host: that of no host, and loopback ones unless this host
// listens at one. It cannot know where a name leads from there: many hosts have their own name at a loopback address.
Status CheckLeadsHere(const Config& config, const IpAddress& ip) {
  CAIRNFS_ASSIGN_OR_RETURN(const HostPort listen, ParseHostPort(config.listen));
  CAIRNFS_ASSIGN_OR_RETURN(const IpAddress own, ParseIp(listen.host));
  if (!ip.IsAny() && (!ip.IsLoopback() || own.IsLoopback())) return {};
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("advertise = \"{}\" leads other hosts nowhere: give the address at which they reach this "
                  "host",
                  config.advertise));
}

Status CheckAdvertised(const Config& config) {
  if (config.advertise.empty()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(config.advertise));
  if (const auto ip = ParseIp(address.host); ip.ok()) return CheckLeadsHere(config, *ip);
  auto found = Resolve(address);
  if (found.ok()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("advertise = \"{}\": {}: others are to reach this host there, so give a name that the "
                               "hosts can look up, or an IP address",
                               config.advertise, found.error().message));
}

// The address of `listen` with a port that comes so many after its.
Result<std::string> AfterListen(const Config& config, unsigned ports, std::string_view option) {
  auto listen = ParseHostPort(config.listen);
  if (!listen.ok()) return listen.error().WithContext("listen");
  if (listen->port > UINT16_MAX - ports) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("listen = \"{}\" leaves no port after it: give a lower one, or {}", config.listen, option));
  }
  return FormatHostPort({listen->host, static_cast<uint16_t>(listen->port + ports)});
}

}  // namespace

Status ChooseListen(Config& config) {
  if (!config.listen.empty()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(HostPort metadata, FirstEndpoint(config.metadata));
  CAIRNFS_ASSIGN_OR_RETURN(std::string address, AddressTowards(metadata));
  config.listen = FormatHostPort({address, kPeerPort});
  return {};
}

Status ChooseServed(Config& config) {
  if (!config.metadata.empty() || !config.serve_metadata.empty()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(config.serve_metadata, AfterListen(config, 1, "--serve-metadata"));
  return {};
}

Status ChooseServeJoin(Config& config) {
  if (!config.serve_join.empty()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(config.serve_join, AfterListen(config, 2, "--serve-join"));
  return {};
}

Status CheckAddresses(const Config& config) {
  CAIRNFS_RETURN_IF_ERROR(CheckListensHere(config));
  return CheckAdvertised(config);
}

}  // namespace cairnfs::daemon
