// EtcdStore: the keys of a cluster in an etcd cluster, over etcd's own gRPC API (version 3.4 or later).
//
// Reads are linearizable. A call goes to the endpoint that answered last, then to the next ones. etcd keeps every old
// version of a key until somebody compacts its history: have etcd do it (--auto-compaction-retention=1h), or call
// Housekeep from one host. So that etcd never comes over its space quota, and removals go on, transactions that make
// names or lengthen records are refused before (etcd_room.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kv/shared_store.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

struct EtcdOptions {
  std::vector<std::string> endpoints;  // HOST:PORT each
  std::string prefix = "/cairnfs/";    // of all keys; not empty, at most 256 bytes
  RemoteOptions remote;
};

// Whether this host is the one that compacts the history, too.
enum class Compacts { kNo, kYes };

class EtcdStore : public kv::SharedKvStore {
 public:
  // Connects when it is used. kInvalidArgument: an endpoint or the prefix is none.
  static Result<std::unique_ptr<EtcdStore>> Create(const EtcdOptions& options);

  // To be called every second or two, by one thread: looks how much room the members have, where that is due. One host
  // compacts: every five minutes but for the last 100,000 revisions, and while much of the quota is in use sooner and
  // nearly all. It waits for that for some seconds.
  virtual Status Housekeep(const Context& context, Compacts compacts) = 0;

  // Has etcd forget all but the last `revisions_kept` revisions. Watches that are further behind are lost.
  virtual Status CompactHistory(const Context& context, uint64_t revisions_kept) = 0;

  // Finds another cluster whose prefix this store's prefix begins with, or the other way round, and returns its prefix.
  // Each cluster has the key `header`. nullopt: there is none, or it lies behind thousands of keys of something else.
  virtual Result<std::optional<std::string>> FindOverlap(const Context& context, std::string_view header) = 0;
};

}  // namespace cairnfs::kvnet
