// Finds another cluster in the same etcd among whose keys this one's would lie.
#include <chrono>
#include <set>

#include "base/context.h"
#include "kvnet/etcd_store_impl.h"

namespace cairnfs::kvnet {

namespace pb = etcdserverpb;

namespace {

constexpr int64_t kScannedKeysPerPage = 1000;
// How many pages of keys that belong to no cluster are passed over. A cluster is found at its first key.
constexpr int kScannedPagesMax = 10;
constexpr std::chrono::seconds kScanMax{5};

}  // namespace

Result<bool> EtcdStoreImpl::IsOfCluster(const Context& context, const std::string& prefix, std::string_view header) {
  pb::RangeRequest request;
  request.set_key(EtcdKeys(prefix).Key(header));
  request.set_count_only(true);
  pb::RangeResponse response;
  CAIRNFS_RETURN_IF_ERROR(TryLong(context, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.kv->Range(&call, request, &response);
  }));
  return response.count() > 0;
}

Result<std::optional<std::string>> EtcdStoreImpl::FindOverlap(const Context& context, std::string_view header) {
  const std::string& own = keys_.prefix();
  for (size_t slash = own.find('/'); slash < own.size() - 1; slash = own.find('/', slash + 1)) {
    std::string above = own.substr(0, slash + 1);
    CAIRNFS_ASSIGN_OR_RETURN(const bool is_of_cluster, IsOfCluster(context, above, header));
    if (is_of_cluster) return std::optional(std::move(above));
  }
  const Context scan = context.WithTimeout(kScanMax);
  std::set<std::string> looked_at;
  pb::RangeRequest request;
  request.set_key(own);
  request.set_range_end(kv::PrefixEnd(own));
  request.set_limit(kScannedKeysPerPage);
  request.set_keys_only(true);
  for (int page = 0; page < kScannedPagesMax; ++page) {
    pb::RangeResponse response;
    CAIRNFS_RETURN_IF_ERROR(TryLong(context, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
      return endpoint.kv->Range(&call, request, &response);
    }));
    for (const pb::KeyValue& entry : response.kvs()) {
      const std::string& key = entry.key();
      for (size_t slash = key.find('/', own.size()); slash < kEtcdPrefixBytesMax; slash = key.find('/', slash + 1)) {
        std::string below = key.substr(0, slash + 1);
        if (!looked_at.insert(below).second) continue;
        if (scan.Expired() && !context.Expired()) return std::optional<std::string>();
        CAIRNFS_ASSIGN_OR_RETURN(const bool is_of_cluster, IsOfCluster(context, below, header));
        if (is_of_cluster) return std::optional(std::move(below));
      }
    }
    if (!response.more() || response.kvs().empty()) break;
    request.set_key(response.kvs().rbegin()->key() + '\0');
  }
  return std::optional<std::string>();
}

}  // namespace cairnfs::kvnet
