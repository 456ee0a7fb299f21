// ClusterStore: the shared metadata as a host of a cluster reaches it; on the host that keeps it also the server.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admission/credentials.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "kv/names_host.h"
#include "kv/shared_store.h"
#include "kvnet/etcd_store.h"
#include "kvnet/kv_service.h"
#include "kvnet/names_service.h"

namespace cairnfs::daemon {

class ClusterStore {
 public:
  enum class Serve { kYes, kNo };  // kNo: this process alone uses it, to prepare it

  // `credentials`, of a cluster whose nodes have certificates, are not kept. With `serve_metadata` the keys lie in
  // DATA/shared of `directory`, which is locked. Otherwise `metadata` says where, and the connection is made when it is
  // used. kInvalidArgument, kCorrupt, kUnavailable: the message says what is wrong with which key or path.
  static Result<std::unique_ptr<ClusterStore>> Open(const DataDirectory* directory, const Config& config,
                                                    Serve serve = Serve::kYes,
                                                    const admission::Credentials* credentials = nullptr);
  // For a command on which somebody looks on: of `metadata` that is elsewhere, whose calls wait 15 s at most.
  static Result<std::unique_ptr<ClusterStore>> OpenForCommand(const Config& config);
  ~ClusterStore();

  // Of the calls to a store that is elsewhere; null: it is here.
  const std::shared_ptr<kv::AnswerWatch>& answers() const { return answers_; }
  kv::SharedKvStore& store() { return remote_ ? *remote_ : *hosted_; }
  // Connections and calls that the server of the keys has refused; 0 where they are elsewhere.
  uint64_t refused_total() const { return server_ == nullptr ? 0 : server_->refused_total(); }
  // The engine of the keys, where this host keeps them, or a copy; else null.
  kv::KvEngine* engine() { return engine_.get(); }
  // Of the store on that engine; null: there is no engine.
  kv::NameRoomUser* room_user();
  // This host, where it is one of three among which the names lie; else null.
  kv::NamesHost* names_host() { return names_host_.get(); }
  // What each of the three tells of itself, of those that answer within a second or so. Nothing where there are none.
  std::vector<kv::NamesHost::Description> DescribeHosts(const Context& context) const;
  // As EtcdStore::Housekeep; nothing for a store that is no etcd.
  Status Housekeep(const Context& context, kvnet::Compacts compacts);
  // As EtcdStore::FindOverlap; nullopt for a store that is no etcd.
  Result<std::optional<std::string>> FindOverlap(std::string_view header);

 private:
  ClusterStore() = default;
  Status OpenOwn(const DataDirectory& directory, const Config& config, Serve serve,
                 const admission::Credentials* credentials);
  Status OpenEngine(const DataDirectory& directory, const Config& config);
  Status CheckVote(const DataDirectory& directory) const;
  Status OpenNamesHost(const DataDirectory& directory, const Config& config, const admission::Credentials* credentials);
  kvnet::KvServer::Guard GuardOf(const Config& config, const admission::Credentials* credentials) const;
  kv::NamesHost::Options::Remote Reach(const kv::Member& member);
  Status CheckMember(const std::string& node) const;

  kvnet::RemoteOptions remote_options_;
  std::vector<std::string> hosts_, host_nodes_;  // that may serve the names, where there are three
  Mutex reached_mutex_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<kvnet::RemoteNames>> reached_
      GUARDED_BY(reached_mutex_);
  std::shared_ptr<kv::AnswerWatch> answers_;
  // Destroyed from the last to the first.
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> hosted_;
  std::unique_ptr<kv::NamesHost> names_host_;
  std::unique_ptr<kvnet::KvServer> server_;
  std::unique_ptr<kv::SharedKvStore> remote_;
};

}  // namespace cairnfs::daemon
