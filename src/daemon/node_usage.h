// The usage that each node tells the others: space, missing copies, repair. Key `U` node-id of the shared store, under
// the node's session. For people and dashboards; and each node finds by it whether it has more than its share.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <thread>

#include "base/context.h"
#include "cluster/membership.h"
#include "control.pb.h"
#include "kv/store.h"
#include "kvnet/etcd_store.h"

namespace cairnfs::daemon {

struct NodeUsage {
  control::UsageMessage told;          // without the age of the session, which whoever reports works out
  uint64_t session_began_seconds = 0;  // by the node's wall clock, since 1970
};

std::string EncodeUsage(const NodeUsage& usage);
Result<NodeUsage> DecodeUsage(std::string_view value);
// Of all nodes that have told theirs.
Result<std::map<cluster::NodeId, NodeUsage>> ReadUsage(const Context& context, kv::KvStore& store);

// Writes this node's usage every few seconds, less often in a large cluster, and only when it changed.
class UsagePublisher {
 public:
  struct Sample {
    NodeUsage usage;                  // without the rates
    uint64_t repair_bytes_total = 0;  // from which they are made
  };
  // Called on the same thread every two seconds. One of all nodes compacts.
  using Housekeep = std::function<void(const Context& context, kvnet::Compacts compacts)>;
  // The parameters outlive it.
  UsagePublisher(kv::KvStore& store, cluster::Membership& membership, std::function<Sample()> sample,
                 Housekeep housekeep);
  ~UsagePublisher();

 private:
  void Run(const Context& context);
  void Publish(const Context& context, const NodeUsage& usage);

  kv::KvStore& store_;
  cluster::Membership& membership_;
  const std::function<Sample()> sample_;
  const Housekeep housekeep_;
  // Of the thread.
  std::string published_;
  uint64_t published_session_ = 0;

  std::jthread thread_;
};

}  // namespace cairnfs::daemon
