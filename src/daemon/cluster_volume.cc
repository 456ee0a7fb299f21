#include "daemon/cluster_volume.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/context.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/machine_limits.h"
#include "cluster/held_dumps.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_setup.h"
#include "daemon/dedup.h"
#include "daemon/joining.h"
#include "daemon/names_dump.h"
#include "daemon/network.h"
#include "daemon/volume.h"

namespace cairnfs::daemon {
namespace {

constexpr uint64_t kStartWaitMs = 60'000;
constexpr uint64_t kAnswersSoonMs = 2'000;
constexpr auto kStopSilenceMax = std::chrono::seconds(10);  // of metadata, while this host stops
// On this many cores copies do not disturb programs that write. On fewer cores copies wait for a pause of these.
constexpr unsigned kCoresForAll = 8;
constexpr std::chrono::milliseconds kWriterPause{5};
constexpr double kWeightMin = 1.0 / 1024;  // a disk of no size is a node all the same

cluster::NodeInfo NodeOf(const DataDirectory& directory, const Config& config) {
  cluster::NodeInfo node;
  node.id = *cluster::NodeId::FromHex(directory.uuid());
  node.name = NodeName(config);
  node.address = AdvertisedAddress(config);
  node.domain = config.failure_domain;
  const double capacity = static_cast<double>(directory.DiskBytes()) / static_cast<double>(kTiB);
  node.weight = config.weight == kWeightOfCapacity ? std::max(capacity, kWeightMin) : config.weight;
  return node;
}

// A copy of the directory is another place, also on the same machine.
std::string PlaceOf(const DataDirectory& directory) {
  struct stat found {};
  if (stat(directory.path().c_str(), &found) != 0) return {};
  return fmt::format("{} {:x}:{:x}", cluster::PlaceOfThisKernel(), found.st_dev, found.st_ino);
}

control::HoldReply ReplyOf(const cluster::HeldDump& hold) {
  control::HoldReply reply;
  reply.set_id(hold.id);
  reply.set_taken_seconds(hold.taken.seconds);
  reply.set_until_seconds(hold.until.seconds);
  reply.set_records(hold.records);
  reply.set_complete(hold.is_complete);
  reply.set_host(hold.host);
  return reply;
}

void LogMinReplicas(const ClusterSettings& settings) {
  if (settings.IsLowered()) {
    spdlog::warn("min_replicas is lowered: a commit needs {} of {} copies while nodes are missing",
                 settings.MinReplicas(), settings.copies);
  } else {
    spdlog::info("min_replicas is not lowered any more: a commit needs all {} copies", settings.copies);
  }
}

}  // namespace

// One after the other: three waits for data (this host's round, that of other hosts, the copies of what moves to a
// directory at level `replicated`), and three of the transaction (for a session, for delegations, for the store). One
// more of the latter is for all else.
std::chrono::milliseconds RenameWaitMax(const Config& config) {
  constexpr int kWaitsForData = 3, kWaitsForMetadata = 3;
  const std::chrono::milliseconds data(config.commit_wait_max_ms), metadata(config.metadata_wait_ms);
  return kWaitsForData * data + (kWaitsForMetadata + 1) * metadata;
}

Result<std::unique_ptr<ClusterVolume>> ClusterVolume::Open(DataDirectory& directory, const Config& config) {
  auto volume = std::unique_ptr<ClusterVolume>(new ClusterVolume(directory, config));
  auto opened = volume->OpenParts();
  if (opened.ok()) return volume;
  volume->StartFailed();
  return ExplainDenied(opened.error(), directory.path());
}

ClusterVolume::~ClusterVolume() {
  if (!start_failed_) return;
  // Nothing comes from other nodes any more once these are gone.
  settings_.reset();
  usage_.reset();
  gate_.reset();
  locks_.reset();
  names_.reset();
  admission_.reset();
  peer_service_.reset();
  chunks_.reset();
  // Not of a node that has chunks: others expect it back, and copy its chunks once it is out.
  if (membership_ != nullptr && storage_->chunks().Stats().chunk_count == 0) membership_->ForgetAtEnd();
}

Status ClusterVolume::OpenParts() {
  CAIRNFS_ASSIGN_OR_RETURN(credentials_, OpenCredentials(directory_, config_));
  // One of three hosts answers the other two before anybody can reach the names: it may take two of them to serve
  // these.
  const bool answers_first = !config_.serve_metadata.empty() && MayHaveStandby(config_);
  if (!answers_first) CAIRNFS_RETURN_IF_ERROR(ReachMetadata());
  CAIRNFS_ASSIGN_OR_RETURN(cluster_store_, OpenStore(config_));
  if (answers_first) CAIRNFS_RETURN_IF_ERROR(ReachMetadata());
  CAIRNFS_RETURN_IF_ERROR(OpenFilesystem());
  CAIRNFS_RETURN_IF_ERROR(JoinCluster());
  return StartServing();
}

Result<std::unique_ptr<ClusterStore>> ClusterVolume::OpenStore(const Config& config) const {
  return ClusterStore::Open(&directory_, config, ClusterStore::Serve::kYes, credentials_.get());
}

// Waits for the metadata for a short time, because somebody waits for the mount. Calls of a running mount wait longer.
Status ClusterVolume::ReachMetadata() const {
  if (!config_.serve_metadata.empty() && !MayHaveStandby(config_)) return {};
  auto try_for = [&](uint64_t wait_ms) -> Status {
    Config impatient = config_;
    impatient.serve_metadata.clear();
    impatient.metadata_wait_ms = std::min(config_.metadata_wait_ms, wait_ms);
    CAIRNFS_ASSIGN_OR_RETURN(auto store, OpenStore(impatient));
    auto header = store->store().Get({}, meta::HeaderKey());
    return header.ok() ? Status() : header.error();
  };
  Status reached = try_for(kAnswersSoonMs);
  if (!reached.ok() && reached.error().code == ErrorCode::kUnavailable) {
    spdlog::warn("waiting for the cluster's metadata at {}, {} s at most: {}", MetadataUrl(config_),
                 std::min(config_.metadata_wait_ms, kStartWaitMs) / 1000, reached.error().message);
    reached = try_for(kStartWaitMs);
  }
  return reached.ok() ? reached : ExplainUnreachable(reached.error(), config_);
}

// Finds to which filesystem the directory belongs, and opens its own disk.
Status ClusterVolume::OpenFilesystem() {
  kv::SharedKvStore& store = cluster_store_->store();
  if (directory_.is_new()) CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*cluster_store_, config_));
  auto identity = directory_.is_new() ? MakeOrReadCluster(store, config_) : ReadCluster(store);
  if (!identity.ok()) {
    Error error = identity.error().WithContext("cannot read the cluster's metadata at " + MetadataUrl(config_));
    if (error.code != ErrorCode::kNotFound) return error;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("there is no filesystem in the metadata at {}, but {} is in use already: correct "
                                 "metadata, or make a filesystem with cairnfs cluster init",
                                 MetadataUrl(config_), directory_.path()));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckAgreement(identity->settings, config_));
  settings_revision_ = identity->settings_revision;
  min_replicas_ = identity->settings.MinReplicas();
  may_lack_copies_ = identity->settings.IsLowered() || identity->settings_were_changed;
  if (config_.min_replicas != 0 && MinReplicas(config_) != min_replicas_) {
    spdlog::warn(
        "min_replicas = {} in the configuration does not count, but the cluster's record: {} (to change it: cairnfs "
        "cluster set min-replicas)",
        config_.min_replicas, min_replicas_.load());
  }
  if (identity->settings.IsLowered()) LogMinReplicas(identity->settings);
  filesystem_ = ToHex(identity->header.uuid);
  CAIRNFS_RETURN_IF_ERROR(CheckDedup(config_, identity->header.dedup, "the cluster at " + MetadataUrl(config_)));
  dedup_ = identity->header.dedup;
  CAIRNFS_ASSIGN_OR_RETURN(chunk_params_, chunking::ChunkParams::Decode(identity->header.chunk_params));
  CAIRNFS_RETURN_IF_ERROR(chunk_params_.Validate());
  CAIRNFS_RETURN_IF_ERROR(Adopt(directory_, config_, filesystem_));
  CAIRNFS_ASSIGN_OR_RETURN(storage_, Storage::Open(directory_, config_));
  CAIRNFS_RETURN_IF_ERROR(storage_->OpenChunks(Storage::Purpose::kMount, cluster_store_->engine()));
  if (!directory_.is_new()) return {};
  CAIRNFS_RETURN_IF_ERROR(directory_.FinishMaking());
  spdlog::info("made {} a node of filesystem {}, id {}", directory_.path(), filesystem_, directory_.uuid());
  return {};
}

// A configuration that was copied from another host may name that host's address. A host that lost its disk has had the
// same one before, and waits until that session has ended.
Status ClusterVolume::AwaitAddress() {
  constexpr std::chrono::milliseconds kLookEvery{200};
  const Context within_leases = Context().WithTimeout(2 * std::chrono::milliseconds(config_.lease_ms));
  for (bool is_told = false;; is_told = true) {
    const Status is_free =
        CheckAddressIsFree(cluster_store_->store(), AdvertisedAddress(config_), directory_.uuid(), config_.lease_ms);
    if (is_free.ok() || is_free.error().code != ErrorCode::kInvalidArgument) return is_free;
    if (!is_told) spdlog::warn("waiting, two leases at most: {}", is_free.error().message);
    if (!within_leases.Sleep(kLookEvery)) return is_free;
  }
}

Status ClusterVolume::JoinCluster() {
  CAIRNFS_RETURN_IF_ERROR(AwaitAddress());
  cluster::MembershipOptions options;
  options.self = NodeOf(directory_, config_);
  options.unconfigured = {config_.node_name.empty(), config_.failure_domain.empty(),
                          config_.weight == kWeightOfCapacity};
  options.lease = std::chrono::milliseconds(config_.lease_ms);
  options.renew_every = options.lease / 5;
  options.out_after = std::chrono::milliseconds(config_.out_after_ms);
  options.place = PlaceOf(directory_);
  options.answers = cluster_store_->answers();
  auto joined = cluster::Membership::Join(cluster_store_->store(), options);
  if (!joined.ok()) return joined.error().WithContext("cannot join the cluster at " + MetadataUrl(config_));
  membership_ = *std::move(joined);
  coherence::FencedStoreOptions fenced;
  fenced.wait_max = std::chrono::milliseconds(config_.metadata_wait_ms);
  fenced_ = coherence::MakeFencedStore(cluster_store_->store(), *membership_, fenced);
  coherence::DelegationOptions delegations;
  delegations.recall_wait_max = fenced.wait_max;
  delegated_ =
      std::make_unique<coherence::DelegatedStore>(cluster_store_->store(), *fenced_, *membership_, delegations);
  names_ = MakeSharedNamespace(*delegated_);
  spdlog::info("joined the cluster at {} as {} ({}), {} nodes known", MetadataUrl(config_), OwnName(),
               options.self.address, membership_->view()->nodes.size());
  return {};
}

Status ClusterVolume::StartServing() {
  cluster::ClusterChunkOptions options;
  options.copies = static_cast<unsigned>(config_.copies);
  options.min_replicas = min_replicas_;
  options.sync_wait_max =
      std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(config_.commit_wait_max_ms));
  options.repair_bytes_per_second_max = config_.repair_rate;
  if (credentials_ != nullptr) options.tls = credentials_->tls();
  options.stored_bytes = [this](const Context& context) { return ReadStoredBytes(context); };
  options.answers = cluster_store_->answers();
  if (UsableCores() < kCoresForAll) options.writer_pause = kWriterPause;
  chunks_ = cluster::ClusterChunkStore::Create(storage_->chunks(), storage_->engine(), storage_->pool(), *membership_,
                                               options);
  cluster::PeerService::Options service;
  service.listen = config_.listen;
  service.metadata = MetadataUrl(config_);
  if (credentials_ == nullptr) {
    service.is_trusted = TrustIn(config_.trusted_network);
  } else {
    service.tls = options.tls;
    service.sign = [this](const cluster::NodeId& node, std::string_view request) {
      return credentials_->Issue(request, node.ToHex(), Clock::WallTime());
    };
  }
  auto started = cluster::PeerService::Start(service, *chunks_, *membership_);
  if (!started.ok()) return started.error().WithContext("listen");
  peer_service_ = *std::move(started);
  if (credentials_ != nullptr) {
    CAIRNFS_ASSIGN_OR_RETURN(
        admission_, ClusterAdmission::Start(
                        {config_, filesystem_, *credentials_, cluster_store_->store(), *membership_, *peer_service_}));
  }
  locks_ = std::make_unique<coherence::ClusterLocks>(
      coherence::ClusterLocks::Parts{cluster_store_->store(), *fenced_, *membership_});
  control::RankGate::Options gate{*fenced_, cluster_store_->store(), {}, OwnName()};
  // Just after an outage the next renewal is yet to come.
  gate.lease = [this, wait_max = std::chrono::milliseconds(config_.metadata_wait_ms)](
                   const Context& context) -> Result<kv::LeaseId> {
    CAIRNFS_ASSIGN_OR_RETURN(cluster::Membership::Session session,
                             membership_->WaitForSession(context.WithTimeout(wait_max)));
    return session.lease;
  };
  gate.rename_wait_max = RenameWaitMax(config_);
  gate_ = std::make_unique<control::RankGate>(std::move(gate));
  usage_ = std::make_unique<UsagePublisher>(
      *fenced_, *membership_,
      [this] {
        return UsagePublisher::Sample{OwnUsage(), chunks_->ClusterStats().repair_bytes_total};
      },
      [this](const Context& context, kvnet::Compacts compacts) {
        if (auto compacted = cluster_store_->Housekeep(context, compacts); !compacted.ok()) {
          spdlog::warn("cannot compact the history of the metadata: {}", compacted.error().message);
        }
      });
  auto watched =
      SettingsWatch::Start(cluster_store_->store(), [this](const StoredSettings& stored) { TakeSettings(stored); });
  if (!watched.ok()) return watched.error().WithContext("cannot follow the settings of the cluster");
  settings_ = *std::move(watched);
  node_operations_ = std::make_unique<NodeOperations>(
      NodeOperations::Parts{config_, *membership_, *fenced_, [this] { return may_lack_copies_.load(); },
                            [this](const Context& context) { return ReportNodes(context); },
                            [this](const Context& context) { return cluster_store_->DescribeHosts(context); }});
  names_operations_ = std::make_unique<NamesOperations>(
      NamesOperations::Parts{config_, *membership_, *cluster_store_, *node_operations_});
  return {};
}

// Called by the watch: the number counts from now on, also for commits that wait.
void ClusterVolume::TakeSettings(const StoredSettings& stored) {
  const uint32_t min_replicas = stored.settings.MinReplicas();
  if (stored.revision != settings_revision_) may_lack_copies_ = true;  // also when it was lowered and set back unseen
  if (min_replicas == min_replicas_) return;
  min_replicas_ = min_replicas;
  LogMinReplicas(stored.settings);
  chunks_->SetMinReplicas(min_replicas);
}

void ClusterVolume::Stopping() {
  if (cluster_store_->answers() != nullptr) cluster_store_->answers()->EndAfterSilence(kStopSilenceMax);
}

void ClusterVolume::StartFailed() { start_failed_ = true; }

fs::FileSystem::Parts ClusterVolume::Parts() {
  fs::FileSystem::Parts parts{
      .pool = storage_->pool(),
      .kv = *delegated_,
      .engines = {&storage_->engine()},
      .names = *names_,
      .chunks = *chunks_,
      .local_chunks = storage_->chunks(),
      .chunk_params = chunk_params_,
      .dedup = dedup_,
      .cluster = {{*membership_, peer_service_->peers(), *chunks_, *locks_, *fenced_, cluster_store_->store(),
                   cluster_store_->room_user(), std::chrono::milliseconds(config_.lease_ms)}},
      .cluster_space = [this] { return SpaceOfAll(); },
      .lacks_copies = [this] { return may_lack_copies_ && LacksCopies(); }};
  if (kv::KvEngine* served = cluster_store_->engine()) parts.engines.push_back(served);
  return parts;
}

fs::FsOptions ClusterVolume::FileSystemOptions() const {
  return daemon::FileSystemOptions(config_, storage_->chunks().cache_bytes_max());
}

Result<control::HoldReply> ClusterVolume::DumpNames(const Context& context, std::chrono::seconds hold,
                                                    const meta::DumpWriter::Sink& sink) {
  kv::KvStore& store = cluster_store_->store();
  if (hold == std::chrono::seconds(0)) {
    CAIRNFS_RETURN_IF_ERROR(daemon::DumpNames(context, store, meta::DumpHead::Of::kCluster, sink));
    return control::HoldReply();
  }
  cluster::HoldInTheMaking made(*fenced_, *membership_);
  CAIRNFS_RETURN_IF_ERROR(made.Begin(context, OwnName()));
  auto keep = [&](std::string_view key, std::string_view value) {
    return key.starts_with("D") ? made.Add(context, key, value) : Status();
  };
  CAIRNFS_RETURN_IF_ERROR(daemon::DumpNames(context, store, meta::DumpHead::Of::kCluster, sink, keep));
  CAIRNFS_ASSIGN_OR_RETURN(const cluster::HeldDump held, made.Finish(context, hold));
  return ReplyOf(held);
}

Result<control::HoldsReply> ClusterVolume::Holds(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto holds, cluster::ListHolds(context, *fenced_));
  control::HoldsReply reply;
  for (const cluster::HeldDump& hold : holds) *reply.add_holds() = ReplyOf(hold);
  return reply;
}

Status ClusterVolume::ReleaseHold(const Context& context, uint64_t id) {
  CAIRNFS_RETURN_IF_ERROR(cluster::ReleaseHold(context, *fenced_, id));
  spdlog::info("the dump that was held as {} is released", id);
  return {};
}

Result<control::TokenReply> ClusterVolume::MakeToken(std::chrono::seconds life) {
  if (admission_ == nullptr) {
    return InvalidArgument(
        "this cluster has no certificates, because it trusts networks: a host joins it without a token");
  }
  CAIRNFS_ASSIGN_OR_RETURN(const ClusterAdmission::GivenToken given, admission_->MakeToken(life));
  control::TokenReply reply;
  reply.set_token(given.token);
  reply.set_address(given.address);
  reply.set_life_seconds(static_cast<uint64_t>(life.count()));
  return reply;
}

std::string ClusterVolume::OwnName() const {
  const auto view = membership_->view();
  const cluster::NodeInfo* self = view->Find(membership_->self());
  return self != nullptr ? self->name : NodeName(config_);
}

Result<control::SetMinReplicasReply> ClusterVolume::SetMinReplicas(const Context& context, uint32_t min_replicas) {
  const uint64_t times_went_back = settings_->TimesWentBack();
  CAIRNFS_ASSIGN_OR_RETURN(const StoredSettings stored, daemon::SetMinReplicas(context, *fenced_, min_replicas));
  settings_->Take(stored, times_went_back);  // who is told that it is done finds it done on this host
  control::SetMinReplicasReply reply;
  reply.set_copies(stored.settings.copies);
  reply.set_min_replicas(stored.settings.MinReplicas());
  return reply;
}

}  // namespace cairnfs::daemon
