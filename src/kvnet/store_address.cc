#include "kvnet/store_address.h"

#include <algorithm>
#include <cassert>

#include "base/comma_list.h"
#include "kvnet/channel.h"
#include "kvnet/etcd_store.h"

namespace cairnfs::kvnet {
namespace {

constexpr size_t kNodeDigits = 32;
constexpr std::string_view kNodeScheme = "node:", kEtcdScheme = "etcd://";

StoreAddress EtcdAddress(std::string_view text) {
  StoreAddress address{StoreAddress::Kind::kEtcd, {}, EtcdOptions().prefix};
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && slash + 1 < text.size()) {
    address.prefix = text.substr(slash);
    if (!address.prefix.ends_with('/')) address.prefix += '/';
  }
  for (std::string_view endpoint : SplitAtCommas(text.substr(0, slash))) address.endpoints.emplace_back(endpoint);
  return address;
}

StoreAddress NodeAddress(std::string_view text) {
  StoreAddress address{StoreAddress::Kind::kNode, {}, {}};
  for (std::string_view endpoint : SplitAtCommas(text)) {
    const size_t at = endpoint.find('@');
    const bool names_node = at != std::string_view::npos;
    address.nodes.emplace_back(names_node ? endpoint.substr(0, at) : "");
    address.endpoints.emplace_back(names_node ? endpoint.substr(at + 1) : endpoint);
  }
  if (address.endpoints.empty()) address.endpoints.emplace_back();  // which is refused as no address
  return address;
}

// Before an '@' stands the id of a node.
Status CheckNode(std::string_view text, const std::string& node) {
  const bool is_id = node.size() == kNodeDigits && node.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (is_id) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"" + std::string(text) + "\" has \"" + node +
                       "\" before an @, and that is no id of a node: it has 32 hex digits, in lower case "
                       "(cairnfs node list); or write node:HOST:PORT without");
}

}  // namespace

Result<StoreAddress> StoreAddress::Parse(std::string_view text) {
  const std::optional<Kind> kind = KindOf(text);
  if (!kind) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "it names no store; write node:HOST:PORT or etcd://HOST:PORT,HOST:PORT,...");
  }
  const StoreAddress address = *kind == Kind::kEtcd ? EtcdAddress(text.substr(kEtcdScheme.size()))
                                                    : NodeAddress(text.substr(kNodeScheme.size()));
  if (*kind == Kind::kEtcd && address.endpoints.empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "\"" + std::string(text) + "\" lacks an endpoint of the etcd; write etcd://HOST:PORT,HOST:PORT,.../PREFIX");
  }
  const bool is_node = *kind == Kind::kNode;
  if (is_node && address.endpoints.size() != 1 && !address.MayHaveStandby()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "\"" + std::string(text) + "\" names " + std::to_string(address.endpoints.size()) +
                         " hosts: name one, or three of which one serves the names, one may follow it, and the third "
                         "bears witness");
  }
  for (const std::string& node : address.nodes) {
    if (!node.empty()) CAIRNFS_RETURN_IF_ERROR(CheckNode(text, node));
  }
  for (const std::string& endpoint : address.endpoints) {
    CAIRNFS_RETURN_IF_ERROR(CheckAddress(endpoint, /*port_min=*/1));
    if (is_node && std::count(address.endpoints.begin(), address.endpoints.end(), endpoint) > 1) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "\"" + std::string(text) + "\" names " + endpoint + " twice: three hosts are needed");
    }
  }
  return address;
}

std::optional<StoreAddress::Kind> StoreAddress::KindOf(std::string_view text) {
  if (text.starts_with(kNodeScheme)) return Kind::kNode;
  if (text.starts_with(kEtcdScheme)) return Kind::kEtcd;
  return std::nullopt;
}

std::string StoreAddress::TextOfNode(std::string_view host_port, std::string_view node) {
  std::string text(kNodeScheme);
  if (!node.empty()) text.append(node).append("@");
  return text.append(host_port);
}

std::string StoreAddress::TextOfEtcd(const std::vector<std::string>& endpoints, std::string_view prefix) {
  std::string text(kEtcdScheme);
  for (const std::string& endpoint : endpoints) text += (text.size() > kEtcdScheme.size() ? "," : "") + endpoint;
  assert(prefix.starts_with('/'));
  return text + std::string(prefix);
}

}  // namespace cairnfs::kvnet
