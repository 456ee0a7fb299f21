#include "kvnet/open.h"

#include <string_view>

#include "kvnet/etcd_store.h"
#include "kvnet/node_store.h"

namespace cairnfs::kvnet {
namespace {

constexpr std::string_view kNode = "node:", kEtcd = "etcd://";

EtcdOptions ParseEtcd(std::string_view text, const RemoteOptions& options) {
  EtcdOptions etcd;
  etcd.remote = options;
  const size_t slash = text.find('/');
  if (slash != std::string_view::npos && slash + 1 < text.size()) {
    etcd.prefix = text.substr(slash);
    if (!etcd.prefix.ends_with('/')) etcd.prefix += '/';
  }
  std::string_view hosts = text.substr(0, slash);
  for (;;) {
    const size_t comma = hosts.find(',');
    etcd.endpoints.emplace_back(hosts.substr(0, comma));
    if (comma == std::string_view::npos) return etcd;
    hosts.remove_prefix(comma + 1);
  }
}

Result<std::unique_ptr<kv::SharedKvStore>> Open(const std::string& text, const RemoteOptions& options) {
  if (text.starts_with(kNode)) return MakeNodeStore(text.substr(kNode.size()), options);
  if (text.starts_with(kEtcd)) {
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStore> store,
                             EtcdStore::Create(ParseEtcd(std::string_view(text).substr(kEtcd.size()), options)));
    return std::unique_ptr<kv::SharedKvStore>(std::move(store));
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "it names no store; write node:HOST:PORT or etcd://HOST:PORT,HOST:PORT,...");
}

}  // namespace

Result<std::unique_ptr<kv::SharedKvStore>> OpenSharedStore(const std::string& text, const RemoteOptions& options) {
  Result<std::unique_ptr<kv::SharedKvStore>> store = Open(text, options);
  if (!store.ok()) return store.error().WithContext("the shared store '" + text + "'");
  return store;
}

}  // namespace cairnfs::kvnet
