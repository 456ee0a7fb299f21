#include "daemon/storage.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "base/log.h"
#include "base/user.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// Each of RocksDB's memtables, of which four may exist.
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

// Such files may be closed to this process; to root none are.
bool HoldsFilesOfOthers(const std::string& path) {
  const uid_t self = geteuid();
  if (self == 0) return false;
  std::error_code error;
  const auto options = stdfs::directory_options::skip_permission_denied;
  for (stdfs::recursive_directory_iterator entry(path, options, error), end; !error && entry != end;
       entry.increment(error)) {
    struct stat info;
    const bool is_others = lstat(entry->path().c_str(), &info) == 0 && info.st_uid != self;
    // Root's own, at the top of a filesystem of its own; nobody opens it.
    if (is_others && entry->path().filename() != "lost+found") return true;
  }
  return false;
}

io::BufferPool::Options PoolOptions(const Config& config) {
  io::BufferPool::Options options;
  options.size_bytes_max = config.pool_size != 0 ? config.pool_size : DefaultPoolSize();
  options.touches_all = config.touch_pool;
  return options;
}

}  // namespace

Error ExplainOpening(const Error& error, const std::string& what, const std::string& path) {
  Error explained = error.WithContext(fmt::format("{} in {}", what, path));
  if (error.code == ErrorCode::kNotFound) {
    explained.code = ErrorCode::kCorrupt;
    explained.message += fmt::format("; there was one, and its files are gone: {}", kv::kDamageAdvice);
  } else if (error.code == ErrorCode::kCorrupt && error.message.find(kv::kDamageAdvice) == std::string::npos) {
    explained.message += fmt::format("; {}", kv::kDamageAdvice);
  } else if (error.code == ErrorCode::kNoSpace) {
    explained.message += "; make room on that disk first";
  }
  return explained;
}

Error ExplainDenied(Error error, const std::string& path) {
  if (error.code == ErrorCode::kPermission && HoldsFilesOfOthers(path)) {
    error.message += fmt::format("; give everything in the directory to one user, as root: chown -R {} {}",
                                 UserWord(geteuid()), path);
  }
  return error;
}

Result<std::unique_ptr<Storage>> Storage::Open(const DataDirectory& directory, const Config& config,
                                               WhenFull when_full) {
  auto storage = std::unique_ptr<Storage>(new Storage(directory, config));
  CAIRNFS_RETURN_IF_ERROR(storage->OpenParts(when_full));
  return storage;
}

Status Storage::OpenParts(WhenFull when_full) {
  CAIRNFS_ASSIGN_OR_RETURN(pool_, io::BufferPool::Create(PoolOptions(config_)));
  CAIRNFS_ASSIGN_OR_RETURN(disk_, io::OpenDisk(SegmentDiskOptions(directory_, config_)));
  auto engine = OpenEngine(when_full);
  if (!engine.ok()) return ExplainOpening(engine.error(), "cannot open the metadata", directory_.metadata_path());
  engine_ = std::move(engine).value();
  return {};
}

Result<std::unique_ptr<kv::KvEngine>> OpenEngineMakingRoom(const DataDirectory& directory, const Config& config,
                                                           const kv::RocksOptions& options) {
  auto engine = kv::OpenRocksEngine(options);
  if (engine.ok() || engine.error().code != ErrorCode::kNoSpace || directory.is_new()) return engine;
  CAIRNFS_ASSIGN_OR_RETURN(const auto disk, io::OpenDisk(SegmentDiskOptions(directory, config)));
  auto removed = store::LocalChunkStore::RemoveUnusedFiles(*disk);
  if (!removed.ok() || *removed == 0) return engine;
  spdlog::warn("the disk is full: gave up {} unused segment files for the metadata", *removed);
  return kv::OpenRocksEngine(options);
}

Result<std::unique_ptr<kv::KvEngine>> Storage::OpenEngine(WhenFull when_full) {
  kv::RocksOptions options = EngineOptions(directory_, config_);
  auto engine = OpenEngineMakingRoom(directory_, config_, options);
  if (engine.ok() || engine.error().code != ErrorCode::kNoSpace) return engine;
  if (when_full == WhenFull::kRefuse || directory_.is_new()) return engine;
  spdlog::warn("the disk is full: the metadata is opened for reading alone");
  options.read_only = is_open_for_reading_ = true;
  return kv::OpenRocksEngine(options);
}

Status Storage::OpenChunks(Purpose purpose, kv::KvEngine* engine_beside) {
  store::StoreOptions options;
  options.engine_beside = engine_beside;
  options.tolerate_damage = purpose == Purpose::kCheck;
  options.segment_bytes = config_.segment_size;
  options.free_segments_bytes_max = config_.free_segments_max;
  options.reserve_bytes = config_.reserve;
  options.log_bytes_max = LogBytesMaxOn(directory_.segments_path());
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

}  // namespace cairnfs::daemon
