#include "daemon/cluster_store.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/log.h"
#include "daemon/cluster_config.h"
#include "daemon/network.h"
#include "daemon/storage.h"
#include "kvnet/open.h"

namespace cairnfs::daemon {
namespace {

// A watch that broke off goes on within seconds; one that asks for older changes reads its range anew.
constexpr uint64_t kRevisionsKept = 100'000;

}  // namespace

Result<std::unique_ptr<ClusterStore>> ClusterStore::Open(const DataDirectory* directory, const Config& config,
                                                         Serve serve) {
  auto opened = std::unique_ptr<ClusterStore>(new ClusterStore());
  if (!config.serve_metadata.empty()) {
    CAIRNFS_RETURN_IF_ERROR(opened->OpenOwn(*directory, config, serve));
    return opened;
  }
  kvnet::RemoteOptions options;
  options.retry.give_up_after = std::chrono::milliseconds(config.metadata_wait_ms);
  options.lease_timeout_all = std::chrono::milliseconds(config.lease_ms * 3 / 4);  // the first begins after a fifth
  opened->answers_ = options.retry.answers = std::make_shared<kv::AnswerWatch>();
  CAIRNFS_ASSIGN_OR_RETURN(opened->remote_, kvnet::OpenSharedStore(config.metadata, options));
  return opened;
}

Status ClusterStore::OpenOwn(const DataDirectory& directory, const Config& config, Serve serve) {
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
  auto engine = kv::OpenRocksEngine(options);
  if (!engine.ok()) return ExplainOpening(engine.error(), "cannot open the shared metadata", path);
  engine_ = *std::move(engine);
  auto hosted = kv::HostedStore::Open(*engine_);
  if (!hosted.ok()) return ExplainOpening(hosted.error(), "cannot read the shared metadata", path);
  hosted_ = *std::move(hosted);
  if (serve == Serve::kNo) return {};
  auto server = kvnet::KvServer::Start(*hosted_, config.serve_metadata, {}, TrustIn(config.trusted_network));
  if (!server.ok()) return server.error().WithContext("serve_metadata");
  server_ = *std::move(server);
  spdlog::info("serving the cluster's metadata at {}", server_->address());
  return {};
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
