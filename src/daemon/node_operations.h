// NodeOperations: what an operator does with the nodes of a cluster: drains, removes and replaces them.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "base/context.h"
#include "base/result.h"
#include "cluster/membership.h"
#include "control.pb.h"
#include "daemon/config.h"
#include "daemon/names_part.h"
#include "kv/store.h"

namespace cairnfs::daemon {

control::NodeReply ReplyOf(const cluster::NodeId& id, const std::string& name);

// The errors are those of control::ClusterControl. Any thread.
class NodeOperations {
 public:
  struct Parts {  // all outlive it
    const Config& config;
    cluster::Membership& membership;
    kv::KvStore& store;                     // fenced
    std::function<bool()> may_lack_copies;  // of what was saved, and only a look for missing copies tells
    std::function<control::ClusterReply(const Context& context)> report;  // of all nodes
    std::function<NamesHosts(const Context& context)> names_hosts;        // where there are three
  };
  explicit NodeOperations(Parts parts) : at_(std::move(parts)) {}

  // By name or id in hex. kNotFound, kInvalidArgument. kOthers: not this host's own. kAllAndJoined: also one that was
  // never there, of which only id, name and address are told.
  enum class Among { kAll, kOthers, kAllAndJoined };
  Result<cluster::NodeInfo> Find(const std::string& node, Among among = Among::kAll) const;

  Result<control::NodeReply> Drain(const Context& context, const control::DrainNodeRequest& request) const;
  Result<control::NodeReply> Remove(const Context& context, const control::RemoveNodeRequest& request) const;
  Result<control::NodeReply> Replace(const Context& context, const control::ReplaceNodeRequest& request) const;

 private:
  Status CheckNamesStay(const Context& context, const cluster::NodeInfo& node) const;
  Status CheckDrain(const Context& context, const cluster::NodeInfo& node) const;
  Status CheckReplacement(const cluster::NodeInfo& old, const control::ReplaceNodeRequest& request) const;

  const Parts at_;
};

}  // namespace cairnfs::daemon
