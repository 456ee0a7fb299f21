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

// A watch that broke off goes on within seconds; one that asks for older changes reads its range anew.
constexpr uint64_t kRevisionsKept = 100'000;
constexpr uint64_t kCommandWaitMs = 15'000;

Status CheckReadable(const std::string& path) {
  if (access(path.c_str(), R_OK) == 0) return {};
  return ErrnoError(errno, "cannot read " + path + ", of tls_ca, tls_certificate or tls_key");
}

bool IsNode(const std::string& url) { return kvnet::StoreAddress::KindOf(url) == kvnet::StoreAddress::Kind::kNode; }

}  // namespace

Result<std::unique_ptr<ClusterStore>> ClusterStore::Open(const DataDirectory* directory, const Config& config,
                                                         Serve serve, const admission::Credentials* credentials) {
  auto opened = std::unique_ptr<ClusterStore>(new ClusterStore());
  if (!config.serve_metadata.empty()) {
    CAIRNFS_RETURN_IF_ERROR(opened->OpenOwn(*directory, config, serve, credentials));
    return opened;
  }
  kvnet::RemoteOptions options;
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
  kv::RocksOptions options;
  options.path = path;
  options.create_if_missing = directory.filesystem().empty();  // a crash may have left an empty directory
  options.block_cache_bytes = config.metadata_cache_size;
  auto engine = OpenEngineMakingRoom(directory, config, options);
  if (!engine.ok()) return ExplainOpening(engine.error(), "cannot open the shared metadata", path);
  engine_ = *std::move(engine);
  kv::HostedStoreOptions hosting;
  hosting.keeps_room = serve == Serve::kYes;
  auto hosted = kv::HostedStore::Open(*engine_, hosting);
  if (!hosted.ok()) return ExplainOpening(hosted.error(), "cannot read the shared metadata", path);
  hosted_ = *std::move(hosted);
  if (serve == Serve::kNo) return {};
  kvnet::KvServer::Guard guard;
  if (credentials != nullptr) {
    guard.tls = credentials->tls();
    guard.check_member = [this](const std::string& node) { return CheckMember(node); };
  } else {
    guard.is_trusted = TrustIn(config.trusted_network);
  }
  auto server = kvnet::KvServer::Start(*hosted_, config.serve_metadata, std::move(guard));
  if (!server.ok()) return server.error().WithContext("serve_metadata");
  server_ = *std::move(server);
  spdlog::info("serving the cluster's metadata at {}", server_->address());
  return {};
}

Status ClusterStore::CheckMember(const std::string& node) const {
  const auto id = cluster::NodeId::FromHex(node);
  if (!id) return MakeError(ErrorCode::kPermission, "\"" + node + "\" is no node");
  CAIRNFS_ASSIGN_OR_RETURN(const auto removed, hosted_->Get({}, cluster::KeyOf(cluster::MemberKey::kRemoved, *id)));
  return removed ? Status(cluster::WasRemoved(*id)) : Status();
}

ClusterStore::~ClusterStore() = default;

Status ClusterStore::CompactHistory(const Context& context) {
  auto* etcd = dynamic_cast<kvnet::EtcdStore*>(remote_.get());
  return etcd == nullptr ? Status() : etcd->CompactHistory(context, kRevisionsKept);
}

Result<std::optional<std::string>> ClusterStore::FindOverlap(std::string_view header) {
  auto* etcd = dynamic_cast<kvnet::EtcdStore*>(remote_.get());
  return etcd == nullptr ? std::optional<std::string>() : etcd->FindOverlap({}, header);
}

}  // namespace cairnfs::daemon
