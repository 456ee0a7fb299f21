// NamesOperations: what an operator does with the hosts among which the names lie: gives them a standby, has it take
// over, and asks how they are. docs/cluster/standby.md.
#pragma once

#include <optional>
#include <string>

#include "base/context.h"
#include "base/result.h"
#include "cluster/membership.h"
#include "control.pb.h"
#include "daemon/cluster_store.h"
#include "daemon/config.h"
#include "daemon/node_operations.h"

namespace cairnfs::daemon {

// The errors are those of control::ClusterControl. Any thread.
class NamesOperations {
 public:
  struct Parts {  // all outlive it
    const Config& config;
    cluster::Membership& membership;
    ClusterStore& store;
    NodeOperations& nodes;
  };
  explicit NamesOperations(const Parts& parts) : at_(parts) {}

  Result<control::NodeReply> SetStandby(const Context& context, const control::SetStandbyRequest& request) const;
  Result<control::PromoteReply> Promote(const Context& context, const control::PromoteRequest& request) const;
  std::optional<control::NamesHosts> Report(const Context& context) const;  // nullopt: there can be no standby

 private:
  Result<kv::NamesHost*> Host() const;                // this one
  std::string NameOf(const std::string& node) const;  // of an id in hex; where nobody knows it, the id

  const Parts at_;
};

}  // namespace cairnfs::daemon
