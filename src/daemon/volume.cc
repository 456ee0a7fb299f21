#include "daemon/volume.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/user.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_volume.h"
#include "daemon/dedup.h"
#include "daemon/grow.h"
#include "daemon/names_dump.h"

namespace cairnfs::daemon {
namespace {

Failpoint fail_after_header("daemon.header_written", Failpoint::Kind::kKill);

}  // namespace

Result<std::unique_ptr<Volume>> Volume::Open(DataDirectory& directory, const Config& config, Purpose purpose) {
  auto volume = std::unique_ptr<Volume>(new Volume(directory, config));
  if (auto opened = volume->OpenParts(purpose); !opened.ok()) return ExplainDenied(opened.error(), directory.path());
  return volume;
}

Result<std::unique_ptr<AnyVolume>> OpenVolume(DataDirectory& directory, const Config& config) {
  if (config.InCluster()) {
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<AnyVolume> volume, ClusterVolume::Open(directory, config));
    return volume;
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<AnyVolume> volume, Volume::Open(directory, config));
  return volume;
}

Status Volume::OpenParts(Purpose purpose) {
  CAIRNFS_RETURN_IF_ERROR(SettleGrowth(directory_, config_));
  if (!directory_.filesystem().empty()) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} belongs to filesystem {} of a cluster, and here it is to be opened by a host alone: "
                    "use a configuration that says where the cluster's metadata is (cairnfs cluster join "
                    "writes one, and so does a cairnfs cluster init that was cut short when it is called again), or "
                    "give another data directory",
                    directory_.path(), directory_.filesystem()));
  }
  const bool only_reads = config_.read_only || purpose == Purpose::kCheck;
  CAIRNFS_RETURN_IF_ERROR(OpenLowerParts(only_reads ? Storage::WhenFull::kOpenForReading : Storage::WhenFull::kRefuse));
  CAIRNFS_RETURN_IF_ERROR(MakeOrReadHeader());
  if (storage_->is_open_for_reading()) CAIRNFS_RETURN_IF_ERROR(RefuseOrphans());
  CAIRNFS_RETURN_IF_ERROR(storage_->OpenChunks(purpose));
  return MakeGate();
}

Status Volume::MakeGate() {
  gate_engine_ = kv::OpenMemoryEngine();
  CAIRNFS_ASSIGN_OR_RETURN(gate_store_, kv::HostedStore::Open(*gate_engine_));
  control::RankGate::Options gate{*gate_store_, *gate_store_,
                                  [](const Context&) -> Result<kv::LeaseId> { return kv::LeaseId{0}; },
                                  NodeName(config_)};
  // The rank that renames has its call in this process, so its end is noticed. Its rename waits for data, then for
  // names.
  gate.rename_wait_max = 2 * std::chrono::milliseconds(config_.commit_wait_max_ms) + std::chrono::hours(1);
  gate_ = std::make_unique<control::RankGate>(std::move(gate));
  return {};
}

Status Volume::OpenLowerParts(Storage::WhenFull when_full) {
  CAIRNFS_ASSIGN_OR_RETURN(storage_, Storage::Open(directory_, config_, when_full));
  auto kv = kv::LocalKvStore::Open(storage_->engine());
  if (!kv.ok()) return ExplainOpening(kv.error(), "cannot read the metadata", directory_.metadata_path());
  kv_ = std::move(kv).value();
  names_ = std::make_unique<meta::Namespace>(
      *kv_, [store = kv_.get()](const std::vector<kv::KvWrite>& writes) { return store->CommitDurable(writes); });
  return {};
}

// A start removes orphans, and so has to write.
Status Volume::RefuseOrphans() {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<InodeId> orphans, names_->ListOrphans({}));
  if (orphans.empty()) return {};
  return MakeError(ErrorCode::kNoSpace,
                   fmt::format("{} holds {} files that were deleted while open, and there is no space to remove them; "
                               "make room on that disk first",
                               directory_.path(), orphans.size()));
}

Status Volume::MakeOrReadHeader() {
  const std::string uuid = *FromHex(directory_.uuid());
  if (directory_.is_new()) {
    meta::FilesystemHeader header;
    header.uuid = uuid;
    header.created = Clock::WallTime();
    header.chunk_params = chunk_params_.Encode();
    header.dedup = ChosenDedup(config_);
    CAIRNFS_RETURN_IF_ERROR(names_->Format({}, header, geteuid(), getegid()));
    CAIRNFS_RETURN_IF_ERROR(kv_->Sync({}));
    fail_after_header.Pass();
    CAIRNFS_RETURN_IF_ERROR(directory_.FinishMaking());
    spdlog::info("made a new filesystem in {}, uuid {}", directory_.path(), directory_.uuid());
  }
  auto header = names_->ReadHeader({});
  if (!header.ok()) {
    if (header.error().code == ErrorCode::kNotFound) {
      return MakeError(ErrorCode::kCorrupt, fmt::format("the metadata in {} has no filesystem header; restore the "
                                                        "directory from a copy",
                                                        directory_.metadata_path()));
    }
    return ExplainOpening(header.error(), "cannot read the filesystem header", directory_.metadata_path());
  }
  if (header->uuid != uuid) {
    return MakeError(ErrorCode::kCorrupt, fmt::format("{}/format and {} belong to different filesystems",
                                                      directory_.path(), directory_.metadata_path()));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckDedup(config_, header->dedup, directory_.path()));
  dedup_ = header->dedup;
  CAIRNFS_ASSIGN_OR_RETURN(chunk_params_, chunking::ChunkParams::Decode(header->chunk_params));
  return chunk_params_.Validate();
}

Result<store::RebuildResult> Volume::RebuildIndex(DataDirectory& directory, const Config& config) {
  Volume volume(directory, config);
  CAIRNFS_RETURN_IF_ERROR(volume.OpenLowerParts(Storage::WhenFull::kRefuse));
  return store::LocalChunkStore::RebuildIndex(volume.storage_->disk(), volume.storage_->engine(),
                                              volume.storage_->pool());
}

fs::FileSystem::Parts Volume::Parts() {
  return {.pool = storage_->pool(),
          .kv = *kv_,
          .local_kv = kv_.get(),
          .engines = {&storage_->engine()},
          .names = *names_,
          .chunks = storage_->chunks(),
          .local_chunks = storage_->chunks(),
          .chunk_params = chunk_params_,
          .dedup = dedup_};
}

fs::FsOptions Volume::FileSystemOptions() const {
  return daemon::FileSystemOptions(config_, storage_->chunks().cache_bytes_max());
}

Result<control::HoldReply> Volume::DumpNames(const Context& context, std::chrono::seconds hold,
                                             const meta::DumpWriter::Sink& sink) {
  if (hold != std::chrono::seconds(0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "this host is alone: its dump cannot be loaded, so its chunks are not held; call without --hold");
  }
  CAIRNFS_RETURN_IF_ERROR(daemon::DumpNames(context, *kv_, meta::DumpHead::Of::kHostAlone, sink));
  return control::HoldReply();
}

Status Volume::MayTake(const Config& config) const {
  if (config.read_only || !storage_->is_open_for_reading()) return {};
  return MakeError(
      ErrorCode::kNoSpace,
      "its metadata was opened for reading alone, on a full disk: make room, unmount it and mount it again");
}

fs::FsOptions FileSystemOptions(const Config& config, size_t cache_bytes_max) {
  fs::FsOptions options;
  options.durability = config.durability == "local" ? fs::Durability::kLocal : fs::Durability::kReplicated;
  options.durable_file_rename = config.rename == "durable";
  options.worker_threads = static_cast<unsigned>(config.worker_threads);
  options.waiting_threads = static_cast<unsigned>(config.waiting_threads);
  const auto& words = config.mount_options;
  options.trash_ms = config.trash_ms;
  options.update_atime = !config.read_only && std::find(words.begin(), words.end(), "noatime") == words.end();
  options.read_only = config.read_only;
  options.flush_interval_ms = static_cast<unsigned>(config.flush_interval_ms);
  options.metadata_wait_ms = static_cast<unsigned>(config.metadata_wait_ms);
  const auto commit_wait =
      std::chrono::ceil<std::chrono::seconds>(std::chrono::milliseconds(config.commit_wait_max_ms));
  options.commit_wait_seconds_max = static_cast<unsigned>(commit_wait.count());
  // Chunks that are fetched for several readers must not drive each other out.
  const uint64_t share_bytes = std::max<uint64_t>(cache_bytes_max / 16, 2 * kMiB);
  options.read_ahead_bytes = std::min<uint64_t>(config.read_ahead, share_bytes);
  if (config.collect_after != 0) options.collect_after_bytes = config.collect_after;
  options.collect_bytes_per_second_max = config.collect_rate;
  options.collect_delay_ms = static_cast<unsigned>(config.collect_delay_ms);
  return options;
}

}  // namespace cairnfs::daemon
