#include "daemon/volume.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/failpoint.h"
#include "base/log.h"
#include "base/user.h"

namespace cairnfs::daemon {
namespace {

Failpoint fail_after_header("daemon.header_written", Failpoint::Kind::kKill);

// Open files of RocksDB and segments, beside buffers in flight: the least that a mount works with.
constexpr uint64_t kMetadataWriteBufferBytes = 32 * kMiB;

kv::RocksOptions EngineOptions(const DataDirectory& directory, const Config& config) {
  kv::RocksOptions options;
  options.path = directory.metadata_path();
  options.create_if_missing = directory.is_new();
  options.block_cache_bytes = config.metadata_cache_size;
  options.write_buffer_bytes = kMetadataWriteBufferBytes;
  return options;
}

io::DiskOptions SegmentDiskOptions(const DataDirectory& directory, const Config& config) {
  io::DiskOptions options;
  options.path = directory.segments_path();
  options.direct = config.direct_io;
  options.use_io_uring = config.io_uring;
  return options;
}

io::BufferPool::Options PoolOptions(const Config& config) {
  io::BufferPool::Options options;
  options.size_bytes_max = config.pool_size != 0 ? config.pool_size : DefaultPoolSize();
  return options;
}

Result<std::string> BytesOfHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

Error Explain(const Error& error, const std::string& what, const std::string& path) {
  Error explained = error.WithContext(fmt::format("{} in {}", what, path));
  if (error.code == ErrorCode::kCorrupt && error.message.find("restore the data directory") == std::string::npos) {
    explained.message += "; restore the data directory from a copy";
  } else if (error.code == ErrorCode::kNoSpace) {
    explained.message += "; make room on that disk first";
  }
  return explained;
}

// What helps when files in the directory are closed to its owner: another user, mostly root, left them there.
Error ExplainDenied(Error error, const std::string& path) {
  if (error.code == ErrorCode::kPermission && error.message.find(std::strerror(EACCES)) != std::string::npos) {
    error.message += fmt::format("; give everything in the directory to one user, as root: chown -R {} {}",
                                 UserWord(geteuid()), path);
  }
  return error;
}

}  // namespace

Result<std::unique_ptr<Volume>> Volume::Open(DataDirectory& directory, const Config& config, Purpose purpose) {
  auto volume = std::unique_ptr<Volume>(new Volume(directory, config));
  if (auto opened = volume->OpenParts(purpose); !opened.ok()) return ExplainDenied(opened.error(), directory.path());
  return volume;
}

Status Volume::OpenParts(Purpose purpose) {
  CAIRNFS_RETURN_IF_ERROR(OpenLowerParts());
  CAIRNFS_RETURN_IF_ERROR(MakeOrReadHeader());

  store::StoreOptions options;
  options.tolerate_damage = purpose == Purpose::kCheck;
  options.segment_bytes = config_.segment_size;
  options.free_segments_bytes_max = config_.free_segments_max;
  options.reserve_bytes = config_.reserve;
  options.cache_bytes_max = config_.cache_size;
  options.verify_threads = static_cast<unsigned>(config_.verify_threads);
  auto chunks = store::LocalChunkStore::Open(*disk_, *engine_, *pool_, options);
  if (!chunks.ok()) {
    Error error = chunks.error().WithContext("cannot open the chunks in " + directory_.segments_path());
    if (error.code == ErrorCode::kNoSpace) error.message += "; make room on that disk first";
    return error;
  }
  chunks_ = std::move(chunks).value();
  return {};
}

Status Volume::OpenLowerParts() {
  CAIRNFS_ASSIGN_OR_RETURN(pool_, io::BufferPool::Create(PoolOptions(config_)));
  CAIRNFS_ASSIGN_OR_RETURN(disk_, io::OpenDisk(SegmentDiskOptions(directory_, config_)));
  auto engine = OpenEngine();
  if (!engine.ok()) return Explain(engine.error(), "cannot open the metadata", directory_.metadata_path());
  engine_ = std::move(engine).value();
  auto kv = kv::LocalKvStore::Open(*engine_);
  if (!kv.ok()) return Explain(kv.error(), "cannot read the metadata", directory_.metadata_path());
  kv_ = std::move(kv).value();
  names_ = std::make_unique<meta::Namespace>(
      *kv_, [store = kv_.get()](const std::vector<kv::KvWrite>& writes) { return store->CommitDurable(writes); },
      meta::SystemClock());
  return {};
}

// The metadata needs room to recover, which segments kept for reuse may take.
Result<std::unique_ptr<kv::KvEngine>> Volume::OpenEngine() {
  auto engine = kv::OpenRocksEngine(EngineOptions(directory_, config_));
  if (engine.ok() || engine.error().code != ErrorCode::kNoSpace) return engine;
  auto removed = store::LocalChunkStore::RemoveUnusedFiles(*disk_);
  if (!removed.ok() || *removed == 0) return engine;
  spdlog::warn("the disk is full: gave up {} unused segment files for the metadata", *removed);
  return kv::OpenRocksEngine(EngineOptions(directory_, config_));
}

Status Volume::MakeOrReadHeader() {
  if (directory_.is_new()) {
    meta::FilesystemHeader header;
    CAIRNFS_ASSIGN_OR_RETURN(header.uuid, BytesOfHex(directory_.uuid()));
    header.created = meta::SystemClock().Now();
    header.chunk_params = chunk_params_.Encode();
    CAIRNFS_RETURN_IF_ERROR(names_->Format(header, geteuid(), getegid()));
    CAIRNFS_RETURN_IF_ERROR(kv_->Sync());
    fail_after_header.Pass();
    CAIRNFS_RETURN_IF_ERROR(directory_.FinishMaking());
    spdlog::info("made a new filesystem in {}, uuid {}", directory_.path(), directory_.uuid());
  }
  auto header = names_->ReadHeader();
  if (!header.ok()) {
    if (header.error().code == ErrorCode::kNotFound) {
      return MakeError(ErrorCode::kCorrupt, fmt::format("the metadata in {} has no filesystem header; restore the "
                                                        "directory from a copy",
                                                        directory_.metadata_path()));
    }
    return Explain(header.error(), "cannot read the filesystem header", directory_.metadata_path());
  }
  CAIRNFS_ASSIGN_OR_RETURN(std::string uuid, BytesOfHex(directory_.uuid()));
  if (header->uuid != uuid) {
    return MakeError(ErrorCode::kCorrupt, fmt::format("{}/format and {} belong to different filesystems",
                                                      directory_.path(), directory_.metadata_path()));
  }
  CAIRNFS_ASSIGN_OR_RETURN(chunk_params_, chunking::ChunkParams::Decode(header->chunk_params));
  return chunk_params_.Validate();
}

Result<store::RebuildResult> Volume::RebuildIndex(DataDirectory& directory, const Config& config) {
  Volume volume(directory, config);
  CAIRNFS_RETURN_IF_ERROR(volume.OpenLowerParts());
  return store::LocalChunkStore::RebuildIndex(*volume.disk_, *volume.engine_, *volume.pool_);
}

fs::FileSystem::Parts Volume::Parts() {
  return {*pool_, *kv_, *engine_, *names_, *chunks_, meta::SystemClock(), chunk_params_};
}

fs::FsOptions Volume::FileSystemOptions() const {
  fs::FsOptions options;
  options.durable_file_rename = config_.rename == "durable";
  options.worker_threads = static_cast<unsigned>(config_.worker_threads);
  options.waiting_threads = static_cast<unsigned>(config_.waiting_threads);
  const auto& words = config_.mount_options;
  options.update_atime = !config_.read_only && std::find(words.begin(), words.end(), "noatime") == words.end();
  options.flush_interval_ms = static_cast<unsigned>(config_.flush_interval_ms);
  options.commit_wait_seconds_max = static_cast<unsigned>((config_.commit_wait_max_ms + 999) / 1000);
  // What is fetched for several readers must not drive out each other's.
  const uint64_t share_bytes = std::max<uint64_t>(chunks_->cache_bytes_max() / 16, 2 * kMiB);
  options.read_ahead_bytes = std::min<uint64_t>(config_.read_ahead, share_bytes);
  if (config_.collect_after != 0) options.collect_after_bytes = config_.collect_after;
  options.collect_bytes_per_second_max = config_.collect_rate;
  options.collect_delay_ms = static_cast<unsigned>(config_.collect_delay_ms);
  return options;
}

}  // namespace cairnfs::daemon
