// Storage: the parts of a node on its own disk, opened in the order in which they need each other. The filesystem of a
// host alone and that of a cluster's host stand on it.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "io/buffer_pool.h"
#include "io/file.h"
#include "kv/engine.h"
#include "store/local_chunk_store.h"

namespace cairnfs::daemon {

class Storage {
 public:
  enum class Purpose { kMount, kCheck };  // kCheck: missing and damaged segments are left for the check to report
  // What to do where the disk is so full that the metadata cannot be opened for writing.
  enum class WhenFull { kRefuse, kOpenForReading };

  // Pool, disk and metadata engine. `directory` is locked by the caller and outlives the storage. The message of an
  // error names the part of the directory that is wrong and what would help.
  static Result<std::unique_ptr<Storage>> Open(const DataDirectory& directory, const Config& config,
                                               WhenFull when_full = WhenFull::kRefuse);
  // Opens the chunks. To be called once the parts before them are known to be right. `engine_beside`:
  // StoreOptions::engine_beside.
  Status OpenChunks(Purpose purpose, kv::KvEngine* engine_beside = nullptr);

  io::BufferPool& pool() { return *pool_; }
  io::Disk& disk() { return *disk_; }
  kv::KvEngine& engine() { return *engine_; }
  store::LocalChunkStore& chunks() { return *chunks_; }
  // True: the disk is full, and the engine was opened for reading, as WhenFull allowed. Writes to it fail.
  bool is_open_for_reading() const { return is_open_for_reading_; }

 private:
  Storage(const DataDirectory& directory, const Config& config) : directory_(directory), config_(config) {}
  Status OpenParts(WhenFull when_full);
  Result<std::unique_ptr<kv::KvEngine>> OpenEngine(WhenFull when_full);

  const DataDirectory& directory_;
  const Config config_;
  bool is_open_for_reading_ = false;  // constant once open
  // Destroyed from the last to the first.
  std::unique_ptr<io::BufferPool> pool_;
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<io::Disk> disk_;
  std::unique_ptr<store::LocalChunkStore> chunks_;
};

// Opens an engine below the directory, which needs room to recover. Where there is none, segments that are kept for
// reuse are given up. REQUIRES (unchecked): no chunk store has the directory open.
Result<std::unique_ptr<kv::KvEngine>> OpenEngineMakingRoom(const DataDirectory& directory, const Config& config,
                                                           const kv::RocksOptions& options);

// "what in path: ..." with what helps against damage and against a full disk. kNotFound becomes kCorrupt.
// REQUIRES (unchecked): a database that is not made now was there before.
Error ExplainOpening(const Error& error, const std::string& what, const std::string& path);
// Adds what helps when files in the directory are closed to its owner: another user, mostly root, left them there.
Error ExplainDenied(Error error, const std::string& path);

}  // namespace cairnfs::daemon
