// KvEngine: an ordered map of bytes on one node. RocksDB, or memory. No revisions, no transactions: KvStore adds those.
// The chunk index of a node uses an engine directly, because it is bulk data of that node alone.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/result.h"

namespace cairnfs::kv {

struct EngineWrite {
  std::string key;
  std::optional<std::string> value;  // nullopt deletes
};

// Bytes of the disk.
struct DiskUse {
  uint64_t held_bytes = 0;
  // What the engine may take beside that for a while, for writes that are done: entries of the log become tables before
  // the log goes, and a compaction writes its tables before the old ones go.
  uint64_t needed_bytes = 0;
};

// A frozen view. Engines keep it valid until it is destroyed.
class EngineSnapshot {
 public:
  virtual ~EngineSnapshot() = default;
};

enum class WriteMode { kUnsynced, kSynced };
inline WriteMode SyncedIf(bool condition) { return condition ? WriteMode::kSynced : WriteMode::kUnsynced; }

class KvEngine {
 public:
  virtual ~KvEngine() = default;
  // All functions may be called from any thread at once. kCorrupt: a stored block failed its checksum.
  // `snapshot` null: the newest state.
  virtual Result<std::optional<std::string>> Get(std::string_view key, const EngineSnapshot* snapshot = nullptr) = 0;
  // Visits keys in [begin, end) in byte order until `visit` returns false. `end` empty: to the end of the map.
  virtual Status Scan(std::string_view begin, std::string_view end, const EngineSnapshot* snapshot,
                      const std::function<bool(std::string_view key, std::string_view value)>& visit) = 0;
  // Applies all writes atomically, in order. Writes become durable in the order of the calls. With kSynced, this one
  // and all before it are durable on return. After a failed synced write the engine refuses writes (kFailed) until
  // reopened, except after kNoSpace, from which it recovers once there is room, or descriptors.
  virtual Status Write(const std::vector<EngineWrite>& writes, WriteMode mode) = 0;
  virtual std::unique_ptr<EngineSnapshot> GetSnapshot() = 0;
  virtual DiskUse GetDiskUse() { return {}; }  // any thread; cheap
  // Gives back the room of deleted entries, and recovers after a full disk, also when nobody writes. To be called every
  // few seconds; mostly does nothing.
  virtual void Tidy() {}
  // Reads every table on the disk anew, past what is cached, beside everything else. kCorrupt names those that are
  // damaged; kInterrupted once `context` expires. In memory there is nothing to read.
  virtual Status Verify(const Context&) { return {}; }
};

std::unique_ptr<KvEngine> OpenMemoryEngine();

// The advice in the error of an engine whose files are damaged (kCorrupt). Code that adds to the error need not repeat
// it.
inline constexpr std::string_view kDamageAdvice = "restore the data directory from a copy";

inline constexpr int kRocksFilesOpenMax = 128;  // tables, of each engine

struct RocksOptions {
  std::string path;  // directory; created if absent when create_if_missing
  bool create_if_missing = true;
  bool read_only = false;
  size_t block_cache_bytes = 64 << 20;
  size_t write_buffer_bytes = 32 << 20;
};
// kBusy when another process holds it; kCorrupt with RocksDB's words when files are damaged or missing. kNotFound:
// there is no database, nor a part of one, and none is to be made.
Result<std::unique_ptr<KvEngine>> OpenRocksEngine(const RocksOptions& options);

// For `cairnfs check`: reads every block of every file and verifies its checksum. kNotFound as above.
Status VerifyRocksChecksums(const std::string& path);

}  // namespace cairnfs::kv
