#include "daemon/cluster_config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>

#include "daemon/network.h"
#include "daemon/size_text.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

using kvnet::StoreAddress;

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

Status CheckTrusted(const Config& config) {
  for (const std::string& text : config.trusted_network) {
    auto network = ParseNetwork(text);
    if (!network.ok()) return network.error().WithContext("trusted_network");
    if (config.trust_public_network || IsPrivate(*network)) continue;
    return InvalidArgument(
        fmt::format("trusted_network = \"{}\" is no private network: every host and user in it is obeyed as a node, "
                    "because a cluster with trusted networks has no certificates. Leave it out to have them, or name "
                    "one within 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, "
                    "100.64.0.0/10, 169.254.0.0/16, fc00::/8, fd00::/8 or fe80::/10, or, if you know that nobody else "
                    "reaches it, set trust_public_network = true (cairnfs cluster init and join: --i-know)",
                    text));
  }
  return {};
}

// Without certificates a port obeys everybody who reaches it.
Status CheckIsTrusted(const Config& config, std::string_view key, const std::string& text, const IpAddress& ip) {
  if (config.HasCertificates() || InNetworks(ip, config.trusted_network)) return {};
  return InvalidArgument(
      fmt::format("{} = \"{}\" does not lie in trusted_network ({}): {}", key, text, Joined(config.trusted_network),
                  ip.IsAny() ? "give the address of the interface that does"
                             : "give an address that does, or name the network it lies in if that is private"));
}

Status CheckListens(const Config& config, std::string_view key, const std::string& text) {
  auto address = ParseHostPort(text);
  if (!address.ok()) return address.error().WithContext(key);
  if (address->port == 0)
    return InvalidArgument(fmt::format("{} = \"{}\" has port 0: give one that others can know", key, text));
  auto ip = ParseIp(address->host);
  if (!ip.ok()) {
    return InvalidArgument(
        fmt::format("{} = \"{}\" must be an IP address of this host and a port, not a name", key, text));
  }
  return CheckIsTrusted(config, key, text, *ip);
}

// The configuration of the others names it, so it is to be one that leads here from there.
Status CheckIsOneAddress(std::string_view key, const std::string& text) {
  if (!ParseIp(ParseHostPort(text)->host)->IsAny()) return {};
  return InvalidArgument(
      fmt::format("{} = \"{}\" is no address that others could use: give one of this host", key, text));
}

// Of an etcd.
Status CheckTlsFiles(const Config& config) {
  const bool is_any_set = !config.tls_ca.empty() || !config.tls_certificate.empty() || !config.tls_key.empty();
  if (!is_any_set) return {};
  if (StoreAddress::KindOf(config.metadata) != StoreAddress::Kind::kEtcd) {
    return InvalidArgument(
        "tls_ca, tls_certificate and tls_key are for an etcd, but metadata names none: leave them out");
  }
  if (config.tls_ca.empty()) return InvalidArgument("tls_ca is not set: name the file with the etcd's authority");
  if (config.tls_certificate.empty() == config.tls_key.empty()) return {};
  return InvalidArgument("tls_certificate and tls_key go together: set both, or none where etcd asks for none");
}

Status CheckJoining(const Config& config) {
  if (config.serve_join.empty()) return {};
  if (!config.HasCertificates()) {
    return InvalidArgument(
        "serve_join is for a cluster whose nodes have certificates, but trusted_network is set: leave one of them out");
  }
  CAIRNFS_RETURN_IF_ERROR(CheckListens(config, "serve_join", config.serve_join));
  for (const std::string* other : {&config.listen, &config.serve_metadata}) {
    if (*other == config.serve_join) {
      return InvalidArgument(fmt::format("\"{}\" stands for two ports of this host: give serve_join another", *other));
    }
  }
  return CheckIsOneAddress("serve_join", config.serve_join);
}

Status CheckAlone(const Config& config) {
  struct Setting {
    std::string_view key;
    bool set;
  };
  const std::array settings = {
      Setting{"listen", !config.listen.empty()},
      Setting{"serve_join", !config.serve_join.empty()},
      Setting{"tls_ca", !config.tls_ca.empty()},
      Setting{"advertise", !config.advertise.empty()},
      Setting{"failure_domain", !config.failure_domain.empty()},
      Setting{"node_name", !config.node_name.empty()},
      Setting{"weight", config.weight != kWeightOfCapacity},
      Setting{"min_replicas", config.min_replicas != 0},
  };
  for (const Setting& setting : settings) {
    if (!setting.set) continue;
    return InvalidArgument(
        fmt::format("{} is set, but neither metadata nor serve_metadata: say where the cluster's metadata is "
                    "(cairnfs cluster join writes a configuration that does), or leave {} out for a host alone",
                    setting.key, setting.key));
  }
  return {};
}

Status CheckServed(const Config& config) {
  CAIRNFS_RETURN_IF_ERROR(CheckListens(config, "serve_metadata", config.serve_metadata));
  CAIRNFS_RETURN_IF_ERROR(CheckIsOneAddress("serve_metadata", config.serve_metadata));
  if (config.serve_metadata == config.listen) {
    return InvalidArgument(
        fmt::format("serve_metadata and listen are both \"{}\": give them different ports", config.listen));
  }
  if (config.metadata.empty()) return {};
  auto address = StoreAddress::Parse(config.metadata);
  if (address.ok() && address->MayHaveStandby()) {
    if (std::ranges::find(address->endpoints, config.serve_metadata) != address->endpoints.end()) return {};
    return InvalidArgument(fmt::format(
        "serve_metadata = \"{}\" is none of the three hosts in metadata = \"{}\": put it there as it is, or "
        "leave serve_metadata out",
        config.serve_metadata, config.metadata));
  }
  if (address.ok() && address->kind == StoreAddress::Kind::kNode) {
    auto used = ParseHostPort(address->endpoints.front());
    auto served = ParseHostPort(config.serve_metadata);
    if (used.ok() && served.ok() && used->port == served->port) return {};
  }
  return InvalidArgument(
      fmt::format("serve_metadata = \"{}\" makes this host the one that serves the metadata, but metadata = "
                  "\"{}\" is elsewhere: leave one of them out",
                  config.serve_metadata, config.metadata));
}

}  // namespace

Status CheckMetadata(const std::string& url) {
  assert(!url.empty());
  if (!StoreAddress::KindOf(url)) {
    return InvalidArgument(
        fmt::format("must be \"node:HOST:PORT\", \"node:\" and three of these with commas between them, "
                    "\"etcd://HOST:PORT,HOST:PORT/prefix\", or empty for a host alone, not \"{}\"",
                    url));
  }
  auto address = StoreAddress::Parse(url);
  return address.ok() ? Status() : address.error();
}

Status CheckCluster(const Config& config) {
  CAIRNFS_RETURN_IF_ERROR(CheckTrusted(config));
  if (!config.InCluster()) return CheckAlone(config);
  if (!config.metadata.empty()) {
    if (auto checked = CheckMetadata(config.metadata); !checked.ok()) return checked.error().WithContext("metadata");
    if (!config.HasCertificates() && StoreAddress::Parse(config.metadata)->NamesNodes()) {
      return InvalidArgument(fmt::format(
          "metadata = \"{}\" names nodes by their ids, which only certificates show, and trusted_network is set: leave "
          "the ids out, and each @ with them",
          config.metadata));
    }
  }
  if (config.listen.empty()) {
    return InvalidArgument(
        "listen is not set: a host of a cluster serves chunks to the others; give an IP address of this host "
        "and a port, for example listen = \"10.0.0.1:7401\"");
  }
  CAIRNFS_RETURN_IF_ERROR(CheckListens(config, "listen", config.listen));
  if (!config.serve_metadata.empty()) CAIRNFS_RETURN_IF_ERROR(CheckServed(config));
  CAIRNFS_RETURN_IF_ERROR(CheckTlsFiles(config));
  CAIRNFS_RETURN_IF_ERROR(CheckJoining(config));
  if (!config.advertise.empty()) {
    if (auto address = ParseHostPort(config.advertise); !address.ok()) return address.error().WithContext("advertise");
  } else if (ParseIp(ParseHostPort(config.listen)->host)->IsAny()) {
    return InvalidArgument(fmt::format(
        "listen = \"{}\" is no address that others could use: set advertise = \"HOST:PORT\"", config.listen));
  }
  if (config.min_replicas > config.copies) {
    return InvalidArgument(
        fmt::format("min_replicas = {} is more than copies = {}: it says with how many of the copies a commit "
                    "may do while nodes are missing",
                    config.min_replicas, config.copies));
  }
  if (config.out_after_ms < config.lease_ms) {
    return InvalidArgument(
        fmt::format("out_after = {} is shorter than lease = {}: a node is out some time after its lease has ended",
                    FormatDurationMs(config.out_after_ms), FormatDurationMs(config.lease_ms)));
  }
  return {};
}

Result<std::string> MetadataOfAddress(const std::string& address) {
  std::string url = StoreAddress::KindOf(address) ? address : StoreAddress::TextOfNode(address);
  if (Status checked = CheckMetadata(url); !checked.ok()) {
    return InvalidArgument(
        fmt::format("\"{}\" is no address to join: give etcd://HOST:PORT,HOST:PORT/prefix for an etcd, or "
                    "HOST:PORT of the host that serves the metadata",
                    address));
  }
  return url;
}

std::string MetadataUrl(const Config& config) {
  return config.metadata.empty() ? StoreAddress::TextOfNode(config.serve_metadata) : config.metadata;
}

bool MayHaveStandby(const Config& config) {
  if (config.metadata.empty()) return false;
  const auto address = StoreAddress::Parse(config.metadata);
  return address.ok() && address->MayHaveStandby();
}

std::string AdvertisedAddress(const Config& config) {
  return config.advertise.empty() ? config.listen : config.advertise;
}

std::string NodeName(const Config& config) {
  if (!config.node_name.empty()) return config.node_name;
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 && name[0] != '\0' ? name.data() : "unnamed";
}

unsigned MinReplicas(const Config& config) {
  return static_cast<unsigned>(config.min_replicas == 0 ? config.copies : config.min_replicas);
}

}  // namespace cairnfs::daemon
