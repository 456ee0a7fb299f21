// ClusterAdmission: what a mounted host of a cluster with certificates does about them. It renews its own before that
// ends. Where it signs, it lets hosts join that show a token, and gives out the tokens.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "admission/credentials.h"
#include "admission/join_port.h"
#include "admission/token.h"
#include "base/context.h"
#include "base/result.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster/membership.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "kv/store.h"

namespace cairnfs::daemon {

// Opens the credentials in a data directory. Null: the cluster has no certificates. kInvalidArgument: there are none,
// and there is to be one; else as Credentials::Open.
Result<std::unique_ptr<admission::Credentials>> OpenCredentials(const DataDirectory& directory, const Config& config);

class ClusterAdmission {
 public:
  struct Parts {
    const Config& config;
    std::string filesystem;  // uuid, in hex
    admission::Credentials& credentials;
    kv::KvStore& store;  // the shared one
    cluster::Membership& membership;
    cluster::PeerService& peers;
  };
  // The parts outlive it. kUnavailable: `serve_join` cannot be listened on. kInvalidArgument: it is set on a host that
  // does not sign.
  static Result<std::unique_ptr<ClusterAdmission>> Start(const Parts& parts);
  ~ClusterAdmission();
  ClusterAdmission(const ClusterAdmission&) = delete;

  struct GivenToken {
    std::string token, address;  // where it is good
  };
  // kInvalidArgument: no host joins by this one. kExhausted: too many are out.
  Result<GivenToken> MakeToken(std::chrono::seconds life);
  uint64_t refused_total() const { return port_ == nullptr ? 0 : port_->refused_total(); }

 private:
  explicit ClusterAdmission(const Parts& parts) : parts_(parts) {}
  Status OpenPort();
  Result<admission::JoinWelcome> Welcome() const;
  Status Admit(const admission::JoinRequest& request, admission::Identity identity);
  void LookAfter(const Context& context);
  Status LookOnce(const Context& context);
  Status Renew(const Context& context);
  Result<std::string> AskOthers(const Context& context, const std::string& request);

  const Parts parts_;
  admission::Tokens tokens_;
  std::unique_ptr<admission::JoinPort> port_;  // null: no host joins by this one
  std::jthread thread_;                        // that looks after the credentials
};

}  // namespace cairnfs::daemon
