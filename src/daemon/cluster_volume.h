// ClusterVolume: all that a host of a cluster opens, in the order in which the parts need each other. These are its own
// disk, the shared metadata (which one host also serves), its session, its chunks and those of the others, and the peer
// service.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "chunking/chunker.h"
#include "cluster/cluster_chunk_store.h"
#include "cluster/membership.h"
#include "coherence/cluster_locks.h"
#include "coherence/delegated_store.h"
#include "coherence/fenced_store.h"
#include "daemon/any_volume.h"
#include "daemon/cluster_admission.h"
#include "daemon/cluster_settings.h"
#include "daemon/cluster_store.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "daemon/names_operations.h"
#include "daemon/node_operations.h"
#include "daemon/node_usage.h"
#include "daemon/storage.h"
#include "meta/namespace.h"

namespace cairnfs::daemon {

// How long a rename of a directory may take among hosts that go on answering.
std::chrono::milliseconds RenameWaitMax(const Config& config);

// What fits in the cluster, in bytes of files whose chunks are all different: the nodes' together, divided by the
// copies. Those that have not told theirs yet are left out, and those of weight 0 have nothing available.
fs::FileSystem::Parts::Space SpaceOf(const control::ClusterReply& report);

class ClusterVolume final : public AnyVolume, public control::ClusterControl {
 public:
  // `directory` is locked by the caller and outlives the volume. Makes the filesystem when there is none yet and the
  // directory is new. The message of an error names the key or the path that is wrong.
  static Result<std::unique_ptr<ClusterVolume>> Open(DataDirectory& directory, const Config& config);
  ~ClusterVolume() override;  // gives the session up

  io::BufferPool& pool() override { return storage_->pool(); }
  fs::FileSystem::Parts Parts() override;
  fs::FsOptions FileSystemOptions() const override;
  control::RankGate& gate() override { return *gate_; }
  meta::Dedup dedup() const override { return dedup_; }
  Result<control::HoldReply> DumpNames(const Context& context, std::chrono::seconds hold,
                                       const meta::DumpWriter::Sink& sink) override;
  void Stopping() override;
  void StartFailed() override;
  void Take(const Config& config) override { chunks_->SetRepairRate(config.repair_rate); }
  control::ClusterControl* cluster() override { return this; }

  control::ClusterActivity Activity() const override;
  Result<control::ClusterReply> Report(const Context& context) override;
  Result<control::TokenReply> MakeToken(std::chrono::seconds life) override;
  Result<control::NodeReply> Drain(const Context& context, const control::DrainNodeRequest& request) override {
    return node_operations_->Drain(context, request);
  }
  Result<control::NodeReply> Remove(const Context& context, const control::RemoveNodeRequest& request) override {
    return node_operations_->Remove(context, request);
  }
  Result<control::HoldsReply> Holds(const Context& context) override;
  Status ReleaseHold(const Context& context, uint64_t id) override;
  Result<control::NodeReply> Replace(const Context& context, const control::ReplaceNodeRequest& request) override {
    return node_operations_->Replace(context, request);
  }
  Result<control::NodeReply> SetStandby(const Context& context, const control::SetStandbyRequest& request) override {
    return names_operations_->SetStandby(context, request);
  }
  Result<control::PromoteReply> Promote(const Context& context, const control::PromoteRequest& request) override {
    return names_operations_->Promote(context, request);
  }
  Result<control::SetMinReplicasReply> SetMinReplicas(const Context& context, uint32_t min_replicas) override;

 private:
  ClusterVolume(DataDirectory& directory, const Config& config) : directory_(directory), config_(config) {}
  Status OpenParts();
  Result<std::unique_ptr<ClusterStore>> OpenStore(const Config& config) const;
  Status ReachMetadata() const;
  Status OpenFilesystem();
  Status AwaitAddress();
  Status JoinCluster();
  Status StartServing();
  void TakeSettings(const StoredSettings& stored);
  // All but the hosts of the names, which are asked over the network.
  control::ClusterReply ReportNodes(const Context& context);
  std::string OwnName() const;
  NodeUsage OwnUsage() const;
  std::optional<cluster::StoredBytes> ReadStoredBytes(const Context& context) const;  // nullopt: not known at present
  uint64_t SessionBegan() const;
  std::optional<fs::FileSystem::Parts::Space> SpaceOfAll();
  bool LacksCopies();

  DataDirectory& directory_;
  const Config config_;
  std::string filesystem_;  // uuid, in hex
  chunking::ChunkParams chunk_params_;
  meta::Dedup dedup_ = meta::Dedup::kMount;
  bool start_failed_ = false;
  uint64_t settings_revision_ = 0;         // as it was opened with
  std::atomic<uint32_t> min_replicas_{0};  // in force; 1 to copies once the parts are open
  // min_replicas is lowered, or has been. So copies of saved chunks may be missing though nobody waits for them, and
  // only a look for missing copies tells.
  std::atomic<bool> may_lack_copies_{false};
  mutable Mutex session_mutex_;
  mutable uint64_t session_revision_ GUARDED_BY(session_mutex_) = 0;
  mutable uint64_t session_began_seconds_ GUARDED_BY(session_mutex_) = 0;
  Mutex space_mutex_;
  std::optional<fs::FileSystem::Parts::Space> space_ GUARDED_BY(space_mutex_);
  Clock::time_point space_read_at_ GUARDED_BY(space_mutex_);
  // Destroyed from the last to the first: whoever serves the metadata ends that last.
  std::unique_ptr<admission::Credentials> credentials_;  // null: the cluster has no certificates
  std::unique_ptr<ClusterStore> cluster_store_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<cluster::Membership> membership_;
  std::unique_ptr<kv::KvStore> fenced_;
  std::unique_ptr<coherence::DelegatedStore> delegated_;  // on fenced_: what the namespace and the filesystem use
  std::unique_ptr<cluster::ClusterChunkStore> chunks_;
  std::unique_ptr<cluster::PeerService> peer_service_;
  std::unique_ptr<ClusterAdmission> admission_;  // null: as credentials_
  std::unique_ptr<meta::Namespace> names_;
  std::unique_ptr<coherence::ClusterLocks> locks_;
  std::unique_ptr<control::RankGate> gate_;
  std::unique_ptr<UsagePublisher> usage_;
  std::unique_ptr<SettingsWatch> settings_;
  std::unique_ptr<NodeOperations> node_operations_;
  std::unique_ptr<NamesOperations> names_operations_;
};

}  // namespace cairnfs::daemon
