#include "kvnet/open.h"

#include <utility>

#include "kvnet/etcd_store.h"
#include "kvnet/node_store.h"
#include "kvnet/store_address.h"

namespace cairnfs::kvnet {
namespace {

Result<std::unique_ptr<kv::SharedKvStore>> Open(const std::string& text, const RemoteOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(StoreAddress address, StoreAddress::Parse(text));
  if (address.kind == StoreAddress::Kind::kNode) return MakeNodeStore(address.endpoints, options, address.nodes);
  const EtcdOptions etcd{std::move(address.endpoints), std::move(address.prefix), options};
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStore> store, EtcdStore::Create(etcd));
  return std::unique_ptr<kv::SharedKvStore>(std::move(store));
}

}  // namespace

Result<std::unique_ptr<kv::SharedKvStore>> OpenSharedStore(const std::string& text, const RemoteOptions& options) {
  Result<std::unique_ptr<kv::SharedKvStore>> store = Open(text, options);
  if (!store.ok()) return store.error().WithContext("the shared store '" + text + "'");
  return store;
}

}  // namespace cairnfs::kvnet
