#include "kv/rocks_support.h"

#include <rocksdb/cache.h>
#include <rocksdb/convenience.h>
#include <rocksdb/env.h>
#include <rocksdb/file_checksum.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/table_properties_collectors.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>

#include "base/user.h"
#include "kv/log_files.h"

namespace cairnfs::kv {
namespace {

constexpr size_t kDeletionWindow = 1024;  // entries in a row

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

// "; that file belongs to root (uid 0)" when `words` are RocksDB's "...: FILE: Permission denied"; else empty.
std::string OwnerOfDeniedFile(const std::string& words) {
  size_t end = words.find(": Permission denied");
  if (end == std::string::npos) return {};
  size_t begin = words.rfind(": ", end - 1);
  if (begin == std::string::npos) return {};
  std::string file = words.substr(begin + 2, end - begin - 2);
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return {};
  return "; that file belongs to " + UserName(info.st_uid);
}

// Whether `words` are RocksDB's of a log that it synced: "...: While fdatasync: FILE: ...". FILE may lie anywhere.
bool IsOfLogSync(const std::string& words) {
  const size_t begin = words.find("While ");
  if (begin == std::string::npos) return false;
  const size_t end = std::min(words.find(": ", begin), words.size());
  return Contains(words.substr(begin, end - begin), "sync") && Contains(words.substr(end), ".log");
}

rocksdb::CompressionType BestCompression() {
  std::vector<rocksdb::CompressionType> supported = rocksdb::GetSupportedCompressions();
  bool has_lz4 = std::find(supported.begin(), supported.end(), rocksdb::kLZ4Compression) != supported.end();
  return has_lz4 ? rocksdb::kLZ4Compression : rocksdb::kNoCompression;
}

// The write-ahead log, a flush and a compaction take the size of some write buffers for a while. So the buffers are
// small on a small disk.
size_t WriteBufferBytes(const RocksOptions& options) {
  struct statvfs info;
  if (statvfs(options.path.c_str(), &info) != 0) return options.write_buffer_bytes;
  const uint64_t disk_bytes = uint64_t{info.f_blocks} * info.f_frsize;
  return std::clamp<size_t>(disk_bytes / 256, 1 << 20, std::max<size_t>(options.write_buffer_bytes, 1 << 20));
}

rocksdb::BlockBasedTableOptions MakeTableOptions(const RocksOptions& options) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(options.block_cache_bytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = true;  // so that the cache bounds the memory
  table.cache_index_and_filter_blocks_with_high_priority = true;
  table.pin_l0_filter_and_index_blocks_in_cache = true;
  table.max_auto_readahead_size = 1 << 20;  // long scans read ahead by themselves
  // Readers of later formats parse index blocks as the properties block says and take defaults when that block is
  // damaged; version 2 does not depend on it, so damage there cannot give wrong answers.
  table.format_version = 2;
  return table;
}

}  // namespace

Error ToError(const rocksdb::Status& status, const std::string& path) {
  const std::string words = status.ToString();
  if (status.IsNoSpace() || Contains(words, "No space left") || Contains(words, "Disk quota")) {
    return MakeError(ErrorCode::kNoSpace, "metadata in " + path + ": no space left on the device (" + words + ")");
  }
  if (status.IsCorruption() || status.IsNotSupported() || status.IsInvalidArgument() || status.IsIncomplete()) {
    return MakeError(ErrorCode::kCorrupt, "the database in " + path + " is damaged: " + words + "; " +
                                              std::string(kDamageAdvice) +
                                              ": the names and attributes are nowhere else");
  }
  if (Contains(words, "Permission denied") || Contains(words, "Read-only file system")) {
    return MakeError(ErrorCode::kPermission, "database in " + path + ": " + words + OwnerOfDeniedFile(words));
  }
  return MakeError(ErrorCode::kIo, "database in " + path + ": " + words);
}

bool LacksDescriptors(const std::string& words) { return Contains(words, "Too many open files"); }

Error NoDescriptors(const Error& error) {
  return MakeError(ErrorCode::kNoSpace, error.message + "; raise the limit on open files (LimitNOFILE=, fs.file-max)");
}

Error ToWriteError(const rocksdb::Status& status, const std::string& path) {
  Error error = ToError(status, path);
  if (LacksDescriptors(error.message)) error = NoDescriptors(error);
  if (error.code != ErrorCode::kNoSpace) return error;
  // After a failed sync, unlike a failed append, it is unknown how much of the log is on the disk. Opened again, the
  // database may have replayed this very write.
  if (IsOfLogSync(status.ToString())) error.code = ErrorCode::kIo;
  return error;
}

rocksdb::Options MakeRocksOptions(const RocksOptions& options) {
  rocksdb::Options rocks;
  rocks.env = LogEnv();
  rocks.create_if_missing = options.create_if_missing;
  rocks.table_factory.reset(rocksdb::NewBlockBasedTableFactory(MakeTableOptions(options)));
  rocks.compression = BestCompression();
  rocks.bottommost_compression = rocks.compression;

  // Integrity. The recovery mode is point in time because a power cut may leave anything behind the last sync: bytes
  // that end early, but also zeros or sectors of a later record after missing ones. kTolerateCorruptedTailRecords
  // refuses the second kind (a record that is all there and does not check), kAbsoluteConsistency both. Point in time
  // forgives damage to synced records too; the sync mark finds that (sync_mark.h).
  rocks.paranoid_checks = true;
  rocks.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  rocks.file_checksum_gen_factory = rocksdb::GetFileChecksumGenCrc32cFactory();
  rocks.max_bgerror_resume_count = 0;  // the engine recovers itself, after no-space errors only

  // Sizes and pace: small files, few descriptors, no stalls while the database is small.
  rocks.write_buffer_size = WriteBufferBytes(options);
  rocks.max_write_buffer_number = 4;
  rocks.max_total_wal_size = 4 * rocks.write_buffer_size;
  rocks.target_file_size_base = rocks.write_buffer_size;
  rocks.max_bytes_for_level_base = 8 * rocks.write_buffer_size;
  rocks.max_compaction_bytes = 16 * rocks.target_file_size_base;
  // Tables full of deletions are compacted at once, so that the room of deleted entries comes back.
  rocks.table_properties_collector_factories = {rocksdb::NewCompactOnDeletionCollectorFactory(
      kDeletionWindow, /*deletion_trigger=*/kDeletionWindow / 2, /*deletion_ratio=*/0.5)};
  rocks.max_open_files = kRocksFilesOpenMax;
  rocks.max_background_jobs = 2;
  rocks.level0_slowdown_writes_trigger = 40;
  rocks.level0_stop_writes_trigger = 80;
  rocks.soft_pending_compaction_bytes_limit = 0;
  rocks.hard_pending_compaction_bytes_limit = 0;
  rocks.manifest_preallocation_size = 64 << 10;
  rocks.max_manifest_file_size = 1 << 20;
  rocks.skip_stats_update_on_db_open = true;

  rocks.info_log = MakeInfoLog(options.path);
  rocks.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  rocks.stats_dump_period_sec = 0;
  rocks.stats_persist_period_sec = 0;
  return rocks;
}

Result<std::unique_ptr<RocksLock>> RocksLock::Take(const std::string& path) {
  rocksdb::FileLock* lock = nullptr;
  rocksdb::Status status = rocksdb::Env::Default()->LockFile(path + "/LOCK", &lock);
  if (status.ok()) return std::unique_ptr<RocksLock>(new RocksLock(lock));
  const std::string words = status.ToString();
  if (Contains(words, "Resource temporarily unavailable") || Contains(words, "current process")) {
    return MakeError(ErrorCode::kBusy, "the database in " + path + " is in use by another process: stop it first");
  }
  return ToError(status, path);
}

RocksLock::~RocksLock() { rocksdb::Env::Default()->UnlockFile(lock_).PermitUncheckedError(); }

}  // namespace cairnfs::kv
