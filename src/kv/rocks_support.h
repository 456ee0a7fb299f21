// What the files of the RocksDB engine share: its options, its errors, its checks before opening. Room-internal.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/options.h>

#include <functional>
#include <memory>
#include <string>

#include "base/context.h"
#include "base/result.h"
#include "kv/engine.h"
#include "kv/sync_mark.h"

namespace cairnfs::kv {

// An Error whose message names `path`. Corruption -> kCorrupt with advice; no space -> kNoSpace; the rest -> kIo and so
// on.
Error ToError(const rocksdb::Status& status, const std::string& path);

// Whether the error is that no descriptor was left: it passes, as a full disk does.
bool LacksDescriptors(const std::string& words);
// That error as one that passes, with what to do about it.
Error NoDescriptors(const Error& error);

// As ToError, for a write, and for what RocksDB's own threads write. kNoSpace only where the write certainly did not
// run, also where no descriptor was left; kIo for a sync of the log that found no space.
Error ToWriteError(const rocksdb::Status& status, const std::string& path);

rocksdb::Options MakeRocksOptions(const RocksOptions& options);

// Logs RocksDB's warnings of the database in `path`. Loses lines that find no room.
std::shared_ptr<rocksdb::Logger> MakeInfoLog(const std::string& path);

// RocksDB's own LOCK file, held by this process to keep a second one out.
class RocksLock {
 public:
  // kBusy when somebody holds it, in this process or another.
  static Result<std::unique_ptr<RocksLock>> Take(const std::string& path);
  ~RocksLock();
  RocksLock(const RocksLock&) = delete;

 private:
  explicit RocksLock(rocksdb::FileLock* lock) : lock_(lock) {}
  rocksdb::FileLock* const lock_;
};

// Opens without changing anything: recovers in memory, and fails with kCorrupt when that ends before the sync mark.
// REQUIRES (unchecked): the lock is held, or nobody writes.
Result<std::unique_ptr<rocksdb::DB>> OpenUnchanged(const rocksdb::Options& options, const std::string& path);

// True when `path` holds a database, false when it holds none and one may be made. kCorrupt when one was there and its
// CURRENT file is gone: RocksDB would make an empty database over it.
Result<bool> DatabaseExists(const std::string& path);

// Removes the empty logs that a half-done making left: RocksDB makes no database beside a log.
// REQUIRES (unchecked): DatabaseExists said false.
void RemoveHalfMade(const std::string& path);

// Makes a new directory's own name durable.
Status SyncParentDirectory(const std::string& path);

// Removes the tables that a crash left half-made. RocksDB removes them only once it has recovered, which needs room.
// REQUIRES (unchecked): nobody has the database open.
void RemoveUnnamedTables(const rocksdb::Options& options, const std::string& path);

struct TableBytes {
  uint64_t all = 0;
  uint64_t compaction_max = 0;  // what a compaction may write before it removes anything
};
TableBytes MeasureTables(rocksdb::DB& db);

// Whether opening the database, which writes what its logs hold into tables, will find room. An estimate.
bool HasRoomToRecover(const std::string& path, size_t write_buffer_bytes);

// KvEngine::Verify, of the database that `current` gives, which is asked for anew when it is needed.
Status VerifyTables(const std::function<std::shared_ptr<rocksdb::DB>()>& current, const std::string& path,
                    const Context& context);

// Records the manifest as it is now in `mark`.
void NoteManifest(rocksdb::DB& db, const std::string& path, SyncMark& mark);

}  // namespace cairnfs::kv
