#include "daemon/cluster_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/log.h"
#include "cluster/records.h"
#include "daemon/cluster_config.h"
#include "daemon/network.h"
#include "daemon/storage.h"
#include "kvnet/open.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

constexpr uint64_t kCommandWaitMs = 15'000;
constexpr std::chrono::milliseconds kDescribeWait{1'000};

Status CheckReadable(const std::string& path) {
  if (access(path.c_str(), R_OK) == 0) return {};
  return ErrnoError(errno, "cannot read " + path + ", of tls_ca, tls_certificate or tls_key");
}

bool IsNode(const std::string& url) { return kvnet::StoreAddress::KindOf(url) == kvnet::StoreAddress::Kind::kNode; }

// A host that has a standby, or had, must ask the others before it serves what it has.
Status CheckIsAlone(kv::KvEngine& engine, const std::string& node) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto voter, kv::LocalVoter::Open(engine));
  const auto value = voter->vote().value;
  if (!value || (value->IsAlone() && value->Primary().node == node)) return {};
  std::string hosts;
  for (const kv::Member& member : value->voters) hosts += (hosts.empty() ? "" : ",") + member.address;
  return InvalidArgument(
      fmt::format("this host is one of three among which the names lie, and another one may serve them: set metadata = "
                  "\"node:{}\"",
                  hosts));
}

}  // namespace

Result<std::unique_ptr<ClusterStore>> ClusterStore::Open(const DataDirectory* directory, const Config& config,
                                                         Serve serve, const admission::Credentials* credentials) {
  auto opened = std::unique_ptr<ClusterStore>(new ClusterStore());
  const bool serves = !config.serve_metadata.empty();
  if (serves && (serve == Serve::kNo || !MayHaveStandby(config))) {
    CAIRNFS_RETURN_IF_ERROR(opened->OpenOwn(*directory, config, serve, credentials));
    return opened;
  }
  kvnet::RemoteOptions& options = opened->remote_options_;
  options.retry.give_up_after = std::chrono::milliseconds(config.metadata_wait_ms);
  options.lease_timeout_all = std::chrono::milliseconds(config.lease_ms * 3 / 4);  // the first begins after a fifth
  opened->answers_ = options.retry.answers = std::make_shared<kv::AnswerWatch>();
  if (!config.tls_ca.empty()) {
    for (const std::string& file : {config.tls_ca, config.tls_certificate, config.tls_key}) {
      if (!file.empty()) CAIRNFS_RETURN_IF_ERROR(CheckReadable(file));
    }
    options.tls = rpc::Tls::Of({config.tls_ca, config.tls_certificate, config.tls_key});
  } else if (credentials != nullptr && IsNode(config.metadata)) {
    options.tls = credentials->tls();
    options.server_name = rpc::kAnyNodeName;
  }
  CAIRNFS_ASSIGN_OR_RETURN(opened->remote_, kvnet::OpenSharedStore(config.metadata, options));
  if (MayHaveStandby(config)) {
    const auto address = kvnet::StoreAddress::Parse(config.metadata);
    opened->hosts_ = address->endpoints;
    opened->host_nodes_ = address->nodes;
  }
  if (serves) CAIRNFS_RETURN_IF_ERROR(opened->OpenNamesHost(*directory, config, credentials));
  return opened;
}

Result<std::unique_ptr<ClusterStore>> ClusterStore::OpenForCommand(const Config& config) {
  Config impatient = config;
  impatient.metadata_wait_ms = std::min(config.metadata_wait_ms, kCommandWaitMs);
  return Open(nullptr, impatient);
}

Status ClusterStore::OpenOwn(const DataDirectory& directory, const Config& config, Serve serve,
                             const admission::Credentials* credentials) {
  const std::string path = directory.shared_path();
  const bool is_there = std::filesystem::exists(path);
  if (!is_there && !directory.filesystem().empty()) {
    return MakeError(ErrorCode::kCorrupt,
                     fmt::format("serve_metadata is set, but {} is missing: the metadata of filesystem {} is elsewhere "
                                 "(then say where with metadata, and leave serve_metadata out), or lost (then restore "
                                 "the directory from a copy)",
                                 path, directory.filesystem()));
  }
  CAIRNFS_RETURN_IF_ERROR(OpenEngine(directory, config));
  if (serve == Serve::kYes) CAIRNFS_RETURN_IF_ERROR(CheckIsAlone(*engine_, directory.uuid()));
  CAIRNFS_ASSIGN_OR_RETURN(const auto copying, engine_->Get(kv::kCopyingKey));
  if (copying) {
    return MakeError(ErrorCode::kCorrupt,
                     path + " has a part of the names only: they were being copied to this standby");
  }
  kv::HostedStoreOptions hosting;
  hosting.keeps_room = serve == Serve::kYes;
  auto hosted = kv::HostedStore::Open(*engine_, hosting);
  if (!hosted.ok()) return ExplainOpening(hosted.error(), "cannot read the shared metadata", path);
  hosted_ = *std::move(hosted);
  if (serve == Serve::kNo) return {};
  auto server = kvnet::KvServer::Start(*hosted_, config.serve_metadata, GuardOf(config, credentials));
  if (!server.ok()) return server.error().WithContext("serve_metadata");
  server_ = *std::move(server);
  spdlog::info("serving the cluster's metadata at {}", server_->address());
  return {};
}

Status ClusterStore::OpenEngine(const DataDirectory& directory, const Config& config) {
  kv::RocksOptions options;
  options.path = directory.shared_path();
  // A crash may have left an empty directory. Of three hosts with a standby those without names have a register.
  options.create_if_missing = directory.filesystem().empty() || MayHaveStandby(config);
  options.block_cache_bytes = config.metadata_cache_size;
  auto engine = OpenEngineMakingRoom(directory, config, options);
  if (!engine.ok()) return ExplainOpening(engine.error(), "cannot open the shared metadata", options.path);
  engine_ = *std::move(engine);
  return {};
}

// A vote that was given, and lost with the disk, must not be given again while it counts; nor may names that were put
// here be served beside those of another host. The hosts that answer know.
Status ClusterStore::CheckVote(const DataDirectory& directory) const {
  CAIRNFS_ASSIGN_OR_RETURN(const auto vote, engine_->Get(kv::LocalVoter::kKey));
  if (vote) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const kv::Position position, kv::ReadPosition(*engine_));
  for (const kv::NamesHost::Description& host : DescribeHosts({})) {
    const std::optional<kv::Register>& known = host.vote.value;
    if (!known || !known->HasVoter(directory.uuid())) continue;
    if (!known->IsAlone()) {
      return MakeError(ErrorCode::kCorrupt,
                       fmt::format("this host is one of the three that keep the names, and {} with its vote was lost: "
                                   "call cairnfs metadata standby --none on the host that serves the names, or cairnfs "
                                   "metadata promote on the standby, and then mount this one",
                                   directory.shared_path()));
    }
    if (known->Primary().node != directory.uuid() && position != kv::Position()) {
      return MakeError(ErrorCode::kCorrupt, fmt::format("node {} serves the names of this cluster: remove {}",
                                                        known->Primary().node, directory.shared_path()));
    }
  }
  return {};
}

Status ClusterStore::OpenNamesHost(const DataDirectory& directory, const Config& config,
                                   const admission::Credentials* credentials) {
  CAIRNFS_RETURN_IF_ERROR(OpenEngine(directory, config));
  CAIRNFS_RETURN_IF_ERROR(CheckVote(directory));
  kv::NamesHost::Options options;
  options.self = {directory.uuid(), config.serve_metadata};
  options.has_names_at_first = config.serve_metadata == hosts_.front();
  options.reach = [this](const kv::Member& member) { return Reach(member); };
  options.hosting.keeps_room = true;
  auto host = kv::NamesHost::Open(*engine_, std::move(options));
  if (!host.ok()) return ExplainOpening(host.error(), "cannot read the shared metadata", directory.shared_path());
  names_host_ = *std::move(host);
  auto server = kvnet::KvServer::Start(*names_host_, config.serve_metadata, GuardOf(config, credentials));
  if (!server.ok()) return server.error().WithContext("serve_metadata");
  server_ = *std::move(server);
  spdlog::info("one of three hosts for the cluster's metadata, at {}", server_->address());
  return {};
}

kvnet::KvServer::Guard ClusterStore::GuardOf(const Config& config, const admission::Credentials* credentials) const {
  kvnet::KvServer::Guard guard;
  if (credentials == nullptr) {
    guard.is_trusted = TrustIn(config.trusted_network);
    return guard;
  }
  guard.tls = credentials->tls();
  guard.check_member = [this](const std::string& node) { return CheckMember(node); };
  return guard;
}

kv::NamesHost::Options::Remote ClusterStore::Reach(const kv::Member& member) {
  MutexLock lock(reached_mutex_);
  std::shared_ptr<kvnet::RemoteNames>& reached = reached_[{member.node, member.address}];
  if (reached == nullptr) {
    kvnet::RemoteOptions options = remote_options_;
    options.retry.answers = nullptr;  // a host that stops goes on with what others wait for
    reached = kvnet::RemoteNames::To(member, options);
  }
  return {reached, reached};
}

kv::NameRoomUser* ClusterStore::room_user() {
  if (names_host_ != nullptr) return names_host_.get();
  return hosted_.get();
}

std::vector<kv::NamesHost::Description> ClusterStore::DescribeHosts(const Context& context) const {
  std::vector<kv::NamesHost::Description> descriptions;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    const auto options = kvnet::OptionsOf(remote_options_, host_nodes_[i]);
    auto description = kvnet::DescribeNames(context, hosts_[i], options, kDescribeWait);
    if (description.ok()) descriptions.push_back(*std::move(description));
  }
  return descriptions;
}

Status ClusterStore::CheckMember(const std::string& node) const {
  const auto id = cluster::NodeId::FromHex(node);
  if (!id) return MakeError(ErrorCode::kPermission, "\"" + node + "\" is no node");
  kv::HostedStore* const hosted = names_host_ != nullptr ? names_host_->serving() : hosted_.get();
  if (hosted == nullptr) return {};  // who may be a node is known where the names are, and nothing else is told here
  const auto removed = hosted->Get({}, cluster::KeyOf(cluster::MemberKey::kRemoved, *id));
  // One that may not be the one that serves the names says so to each call that asks for them.
  if (!removed.ok()) return removed.error().code == ErrorCode::kUnavailable ? Status() : Status(removed.error());
  return *removed ? Status(cluster::WasRemoved(*id)) : Status();
}

// The server waits for its calls.
ClusterStore::~ClusterStore() {
  if (names_host_ != nullptr) names_host_->Stop();
}

Status ClusterStore::Housekeep(const Context& context, kvnet::Compacts compacts) {
  auto* etcd = dynamic_cast<kvnet::EtcdStore*>(remote_.get());
  return etcd == nullptr ? Status() : etcd->Housekeep(context, compacts);
}

Result<std::optional<std::string>> ClusterStore::FindOverlap(std::string_view header) {
  auto* etcd = dynamic_cast<kvnet::EtcdStore*>(remote_.get());
  return etcd == nullptr ? std::optional<std::string>() : etcd->FindOverlap({}, header);
}

}  // namespace cairnfs::daemon
