// ClusterStore: the shared metadata as a host of a cluster reaches it; on the host that keeps it also the server.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "admission/credentials.h"
#include "base/result.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"
#include "kv/shared_store.h"
#include "kvnet/etcd_store.h"
#include "kvnet/kv_service.h"

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
  kv::SharedKvStore& store() { return hosted_ ? *hosted_ : *remote_; }
  // Connections and calls that the server of the keys has refused; 0 where they are elsewhere.
  uint64_t refused_total() const { return server_ == nullptr ? 0 : server_->refused_total(); }
  // The engine of the keys, where this host keeps them; else null.
  kv::KvEngine* engine() { return engine_.get(); }
  kv::HostedStore* hosted() { return hosted_.get(); }  // `store`, where this host keeps the keys; else null
  // Forgets old versions where the store keeps them until told so. Cheap where it does not.
  Status CompactHistory(const Context& context);
  // As EtcdStore::FindOverlap; nullopt for a store that is no etcd.
  Result<std::optional<std::string>> FindOverlap(std::string_view header);

 private:
  ClusterStore() = default;
  Status OpenOwn(const DataDirectory& directory, const Config& config, Serve serve,
                 const admission::Credentials* credentials);
  Status CheckMember(const std::string& node) const;

  std::shared_ptr<kv::AnswerWatch> answers_;
  // Destroyed from the last to the first.
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> hosted_;
  std::unique_ptr<kvnet::KvServer> server_;
  std::unique_ptr<kv::SharedKvStore> remote_;
};

}  // namespace cairnfs::daemon
