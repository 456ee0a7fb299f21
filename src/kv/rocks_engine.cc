#include <rocksdb/db.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "kv/rocks_support.h"

namespace cairnfs::kv {
namespace {

Failpoint before_write("kv.before_write", Failpoint::Kind::kKill);
Failpoint wal_sync("kv.wal_sync", Failpoint::Kind::kSkippable);
Failpoint after_write("kv.after_write", Failpoint::Kind::kKill);

rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }

std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

// RocksDB makes folder and files as the umask says. What lies in them is for the owner alone. What cannot be made is
// told by RocksDB.
Status MakePrivate(const std::string& path, bool may_make) {
  if (may_make) static_cast<void>(mkdir(path.c_str(), S_IRWXU));
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return {};
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return {};
  if (chmod(path.c_str(), S_IRWXU) == 0) {
    spdlog::warn("others could enter {}: from now on its owner alone can", path);
    return {};
  }
  return ErrnoError(errno,
                    "others may enter " + path + ", and this cannot be changed: run chmod 700 on it as its owner");
}

// Holds the database that it is of, which cannot be reopened meanwhile.
class RocksSnapshot final : public EngineSnapshot {
 public:
  explicit RocksSnapshot(std::shared_ptr<rocksdb::DB> db)
      : db_(std::move(db)), snapshot_(db_ == nullptr ? nullptr : db_->GetSnapshot()) {}
  ~RocksSnapshot() override {
    if (db_ != nullptr) db_->ReleaseSnapshot(snapshot_);
  }
  const rocksdb::Snapshot* get() const { return snapshot_; }
  const std::shared_ptr<rocksdb::DB>& db() const { return db_; }

 private:
  const std::shared_ptr<rocksdb::DB> db_;
  const rocksdb::Snapshot* const snapshot_;
};

// The time between two flushes of deletions, and how many deletions are worth a flush.
constexpr std::chrono::seconds kDeletionsFlushedAfter{10};
constexpr uint64_t kDeletionsWorthAFlush = 100;

// What RocksDB's own threads report. Self-synchronised.
struct Background {
  SyncMark mark;
  std::atomic<uint64_t> table_bytes{0}, compaction_bytes_max{0};  // TableBytes
  std::atomic<bool> found_no_room{false};                         // since the database was opened
};

// Notes the sizes of the tables as they change, and keeps RocksDB from recovering by itself.
class Listener final : public rocksdb::EventListener {
 public:
  Listener(std::string path, Background& background) : path_(std::move(path)), background_(background) {}
  void OnFlushCompleted(rocksdb::DB* db, const rocksdb::FlushJobInfo& /*info*/) override { NoteTables(*db); }
  void OnCompactionCompleted(rocksdb::DB* db, const rocksdb::CompactionJobInfo& /*info*/) override { NoteTables(*db); }
  void OnBackgroundError(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status* error) override {
    if (ToWriteError(*error, path_).code == ErrorCode::kNoSpace) background_.found_no_room.store(true);
  }
  // RocksDB would poll for space from a thread of its own.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason /*reason*/, rocksdb::Status /*error*/,
                            bool* auto_recovery) override {
    *auto_recovery = false;
  }
  void NoteTables(rocksdb::DB& db) {
    NoteManifest(db, path_, background_.mark);
    const TableBytes tables = MeasureTables(db);
    background_.table_bytes.store(tables.all);
    background_.compaction_bytes_max.store(tables.compaction_max);
  }

 private:
  const std::string path_;
  Background& background_;
};

// After a full disk, or a lack of descriptors, the database is closed and opened again before the next write:
// RocksDB 7.8's Resume leaves a log writer in place that refuses every later write. Opening keeps all writes, synced or
// not, because they are in the log files; the sequence number is compared to be sure.
class RocksEngine final : public KvEngine {
 public:
  explicit RocksEngine(std::string path, rocksdb::Options options)
      : path_(std::move(path)), options_(std::move(options)) {}
  ~RocksEngine() override;

  Status OpenForWriting();
  Status OpenForReading();

  Result<std::optional<std::string>> Get(std::string_view key, const EngineSnapshot* snapshot) override;
  Status Scan(std::string_view begin, std::string_view end, const EngineSnapshot* snapshot,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) override;
  Status Write(const std::vector<EngineWrite>& writes, WriteMode mode) override;
  Status Verify(const Context& context) override {
    return VerifyTables([this] { return CurrentDb(); }, path_, context);
  }
  std::unique_ptr<EngineSnapshot> GetSnapshot() override { return std::make_unique<RocksSnapshot>(CurrentDb()); }
  DiskUse GetDiskUse() override;
  void Tidy() override;

 private:
  std::shared_ptr<rocksdb::DB> CurrentDb();
  // The database that a read with `snapshot` goes to; null when it could not be opened again.
  std::shared_ptr<rocksdb::DB> DbOf(const EngineSnapshot* snapshot);
  Result<std::shared_ptr<rocksdb::DB>> OpenDb();
  Status WriteOnce(rocksdb::WriteBatch& batch, WriteMode mode);
  Status Reopen();
  Error NoSpaceError() const {
    return MakeError(ErrorCode::kNoSpace, "metadata in " + path_ + ": no space left on the device");
  }
  // Why it is to be opened again: the disk was full, or descriptors ran out.
  Error Shortage();
  void NoteShortage(const Error& why);
  // Waits until nobody uses the database, and takes it: nobody else gets it then. Null when somebody uses it for long.
  std::shared_ptr<rocksdb::DB> TakeUnusedDb() REQUIRES_LOCK(db_mutex_);
  bool IsUnused() {
    MutexLock lock(db_mutex_);
    return db_.use_count() == 1;
  }
  Error Fail(const Error& error);
  Error Failure();

  const std::string path_;
  rocksdb::Options options_;              // constant once open
  Background background_;                 // outlives db_, whose threads use it
  std::shared_ptr<Listener> listener_;    // constant once open
  std::unique_ptr<RocksLock> read_lock_;  // held when open for reading; RocksDB holds it otherwise

  std::atomic<bool> has_failed_{false};
  std::atomic<bool> must_reopen_{false};
  std::atomic<uint64_t> deletions_{0};        // written and perhaps not flushed
  std::atomic<uint64_t> in_memory_bytes_{0};  // of GetDiskUse, as last asked

  Mutex tidy_mutex_;  // taken before db_mutex_
  Clock::time_point flushed_at_ GUARDED_BY(tidy_mutex_){};
  Mutex reopen_mutex_;  // taken before db_mutex_ and failure_mutex_
  Mutex db_mutex_;
  std::shared_ptr<rocksdb::DB> db_ GUARDED_BY(db_mutex_);  // null: it could not be opened again
  uint64_t sequence_before_ GUARDED_BY(db_mutex_) = 0;     // of the database that was closed to be opened again
  Mutex failure_mutex_;
  Error failure_ GUARDED_BY(failure_mutex_){};
  std::optional<Error> shortage_ GUARDED_BY(failure_mutex_);
};

rocksdb::ReadOptions MakeReadOptions(const EngineSnapshot* snapshot) {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.total_order_seek = true;
  if (snapshot != nullptr) options.snapshot = static_cast<const RocksSnapshot*>(snapshot)->get();
  return options;
}

RocksEngine::~RocksEngine() {
  std::shared_ptr<rocksdb::DB> db = CurrentDb();
  if (db == nullptr || read_lock_ != nullptr || has_failed_.load() || must_reopen_.load()) return;
  // A clean end leaves nothing unsynced, so the mark can show damage to any of it.
  uint64_t sequence = db->GetLatestSequenceNumber();
  if (db->SyncWAL().ok()) background_.mark.RaiseSequence(sequence);
}

Result<std::shared_ptr<rocksdb::DB>> RocksEngine::OpenDb() {
  // Without room to finish, an opening would only take more of the room.
  if (!HasRoomToRecover(path_, options_.write_buffer_size)) {
    RemoveUnnamedTables(options_, path_);
    if (!HasRoomToRecover(path_, options_.write_buffer_size)) return NoSpaceError();
  }
  rocksdb::DB* raw = nullptr;
  rocksdb::Status status = rocksdb::DB::Open(options_, path_, &raw);
  std::shared_ptr<rocksdb::DB> db(raw);
  if (status.ok()) return db;
  Result<std::unique_ptr<RocksLock>> lock = RocksLock::Take(path_);
  if (!lock.ok() && lock.error().code == ErrorCode::kBusy) return lock.error();
  return ToError(status, path_);
}

Status RocksEngine::OpenForWriting() {
  CAIRNFS_ASSIGN_OR_RETURN(bool exists, DatabaseExists(path_));
  CAIRNFS_RETURN_IF_ERROR(MakePrivate(path_, !exists && options_.create_if_missing));
  if (exists) {
    // RocksDB drops what follows a bad record of the log when it opens: look before anything is changed.
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<RocksLock> lock, RocksLock::Take(path_));
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> unchanged, OpenUnchanged(options_, path_));
  } else if (!options_.create_if_missing) {
    return MakeError(ErrorCode::kNotFound, "no database in " + path_);
  } else {
    RemoveHalfMade(path_);
  }
  listener_ = std::make_shared<Listener>(path_, background_);
  options_.listeners.push_back(listener_);
  CAIRNFS_ASSIGN_OR_RETURN(std::shared_ptr<rocksdb::DB> db, OpenDb());
  if (!exists) CAIRNFS_RETURN_IF_ERROR(SyncParentDirectory(path_));
  CAIRNFS_RETURN_IF_ERROR(background_.mark.Open(path_));
  listener_->NoteTables(*db);
  options_.create_if_missing = false;
  MutexLock lock(db_mutex_);
  db_ = std::move(db);
  return {};
}

Status RocksEngine::OpenForReading() {
  CAIRNFS_ASSIGN_OR_RETURN(bool exists, DatabaseExists(path_));
  if (!exists) return MakeError(ErrorCode::kNotFound, "no database in " + path_);
  CAIRNFS_ASSIGN_OR_RETURN(read_lock_, RocksLock::Take(path_));
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> db, OpenUnchanged(options_, path_));
  MutexLock lock(db_mutex_);
  db_ = std::move(db);
  return {};
}

std::shared_ptr<rocksdb::DB> RocksEngine::CurrentDb() {
  MutexLock lock(db_mutex_);
  return db_;
}

std::shared_ptr<rocksdb::DB> RocksEngine::DbOf(const EngineSnapshot* snapshot) {
  return snapshot != nullptr ? static_cast<const RocksSnapshot*>(snapshot)->db() : CurrentDb();
}

Result<std::optional<std::string>> RocksEngine::Get(std::string_view key, const EngineSnapshot* snapshot) {
  std::shared_ptr<rocksdb::DB> db = DbOf(snapshot);
  if (db == nullptr) return Failure();
  std::string value;
  rocksdb::Status status = db->Get(MakeReadOptions(snapshot), ToSlice(key), &value);
  if (status.IsNotFound()) return std::optional<std::string>();
  if (!status.ok()) return ToError(status, path_);
  return std::optional<std::string>(std::move(value));
}

Status RocksEngine::Scan(std::string_view begin, std::string_view end, const EngineSnapshot* snapshot,
                         const std::function<bool(std::string_view key, std::string_view value)>& visit) {
  if (!end.empty() && end <= begin) return {};
  std::shared_ptr<rocksdb::DB> db = DbOf(snapshot);
  if (db == nullptr) return Failure();
  rocksdb::ReadOptions options = MakeReadOptions(snapshot);
  rocksdb::Slice upper = ToSlice(end);
  if (!end.empty()) options.iterate_upper_bound = &upper;
  std::unique_ptr<rocksdb::Iterator> iterator(db->NewIterator(options));
  for (iterator->Seek(ToSlice(begin)); iterator->Valid(); iterator->Next()) {
    if (!visit(ToView(iterator->key()), ToView(iterator->value()))) return {};
  }
  if (!iterator->status().ok()) return ToError(iterator->status(), path_);
  return {};
}

Status RocksEngine::Write(const std::vector<EngineWrite>& writes, WriteMode mode) {
  if (read_lock_ != nullptr) {
    return MakeError(ErrorCode::kPermission, "the database in " + path_ + " is open read-only");
  }
  rocksdb::WriteBatch batch;
  uint64_t deletions = 0;
  for (const EngineWrite& write : writes) {
    if (!write.value) ++deletions;
    rocksdb::Status status = write.value ? batch.Put(write.key, *write.value) : batch.Delete(write.key);
    if (!status.ok()) return MakeError(ErrorCode::kTooLarge, "database in " + path_ + ": " + status.ToString());
  }
  before_write.Pass();
  if (mode == WriteMode::kSynced && wal_sync.PassOrSkip()) mode = WriteMode::kUnsynced;
  Status status;
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (has_failed_.load()) return Failure();
    if (must_reopen_.load()) CAIRNFS_RETURN_IF_ERROR(Reopen());
    status = WriteOnce(batch, mode);
    if (status.ok() || status.error().code != ErrorCode::kNoSpace) break;
  }
  if (!status.ok()) return status;
  deletions_ += deletions;
  after_write.Pass();
  return {};
}

Status RocksEngine::WriteOnce(rocksdb::WriteBatch& batch, WriteMode mode) {
  std::shared_ptr<rocksdb::DB> db = CurrentDb();
  if (db == nullptr) return Failure();
  // Another thread may have found the disk full since, and the database may be open for reading alone.
  if (must_reopen_.load()) return Shortage();
  const bool is_synced = mode == WriteMode::kSynced;
  // Everything that is visible now is in the log before this batch, so the sync covers it and the batch.
  const uint64_t sequence = db->GetLatestSequenceNumber() + static_cast<uint64_t>(batch.Count());
  rocksdb::Status status;
  if (batch.Count() != 0) {
    rocksdb::WriteOptions options;
    options.sync = is_synced;
    status = db->Write(options, &batch);
  } else if (is_synced) {
    status = db->SyncWAL();
  }
  if (status.ok()) {
    if (is_synced) background_.mark.RaiseSequence(sequence);
    return {};
  }
  Error error = ToWriteError(status, path_);
  if (error.code != ErrorCode::kNoSpace) return Fail(error);
  NoteShortage(error);
  return error;
}

Status RocksEngine::Reopen() {
  MutexLock reopen_lock(reopen_mutex_);
  if (!must_reopen_.load()) return {};  // another thread did it
  if (has_failed_.load()) return Failure();
  if (!HasRoomToRecover(path_, options_.write_buffer_size)) return NoSpaceError();
  MutexLock lock(db_mutex_);
  if (db_ != nullptr) {
    const std::shared_ptr<rocksdb::DB> old = TakeUnusedDb();
    if (old == nullptr) return Shortage();
    // One that was opened for reading meanwhile may have recovered less.
    sequence_before_ = std::max(sequence_before_, old->GetLatestSequenceNumber());
  }
  background_.found_no_room.store(false);
  Result<std::shared_ptr<rocksdb::DB>> opened = OpenDb();
  if (!opened.ok()) {
    const Error& why = opened.error();
    const bool lacks_descriptors = LacksDescriptors(why.message);
    if (lacks_descriptors) NoteShortage(NoDescriptors(why));
    // The room is gone again. Opened for reading, the data can at least be read.
    Result<std::unique_ptr<rocksdb::DB>> unchanged = OpenUnchanged(options_, path_);
    if (unchanged.ok()) db_ = std::move(*unchanged);
    // Without descriptors that may fail as well. Then nothing can be read until the next try.
    if (!unchanged.ok() && !LacksDescriptors(unchanged.error().message)) return Fail(unchanged.error());
    if (lacks_descriptors) return Shortage();
    return why.code == ErrorCode::kNoSpace ? why : Fail(why);
  }
  db_ = std::move(*opened);
  if (db_->GetLatestSequenceNumber() < sequence_before_) {
    return Fail(MakeError(ErrorCode::kIo,
                          "the database in " + path_ + " lost writes when the disk was full, or descriptors ran out"));
  }
  listener_->NoteTables(*db_);
  MutexLock told(failure_mutex_);
  must_reopen_.store(false);
  shortage_.reset();
  return {};
}

DiskUse RocksEngine::GetDiskUse() {
  // While the database is opened again, what was known last: an answer that keeps a lease alive asks this.
  if (db_mutex_.TryLock()) {
    const std::shared_ptr<rocksdb::DB> db = db_;
    db_mutex_.Unlock();
    uint64_t bytes = 0;
    if (db != nullptr && db->GetIntProperty(rocksdb::DB::Properties::kCurSizeAllMemTables, &bytes)) {
      in_memory_bytes_.store(bytes);
    }
  }
  const uint64_t in_memory_bytes = in_memory_bytes_.load();
  return {background_.table_bytes.load() + in_memory_bytes, background_.compaction_bytes_max.load() + in_memory_bytes};
}

void RocksEngine::Tidy() {
  if (read_lock_ != nullptr || has_failed_.load()) return;
  // After a compaction that found no room writes go on, but nothing is compacted any more until the database is opened
  // anew. Not while somebody reads: writes would have to wait for the reader.
  if (background_.found_no_room.load() && HasRoomToRecover(path_, options_.write_buffer_size) && IsUnused()) {
    must_reopen_.store(true);
  }
  if (must_reopen_.load()) return static_cast<void>(Reopen().ok());
  const uint64_t deletions = deletions_.load();
  if (deletions < kDeletionsWorthAFlush) return;
  const auto now = Clock::Now();
  MutexLock lock(tidy_mutex_);
  if (now - flushed_at_ < kDeletionsFlushedAfter) return;
  flushed_at_ = now;
  std::shared_ptr<rocksdb::DB> db = CurrentDb();
  if (db == nullptr) return;
  rocksdb::FlushOptions options;
  options.wait = false;
  if (db->Flush(options).ok()) deletions_ -= deletions;
}

std::shared_ptr<rocksdb::DB> RocksEngine::TakeUnusedDb() {
  // Nobody can take a new reference while the mutex is held; reads in progress end soon.
  for (int wait = 0; wait < 200; ++wait) {
    if (db_.use_count() == 1) return std::exchange(db_, nullptr);
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
  return nullptr;
}

Error RocksEngine::Fail(const Error& error) {
  MutexLock lock(failure_mutex_);
  if (!has_failed_.load()) {
    failure_ = MakeError(ErrorCode::kFailed,
                         "an earlier write failed, and what is on the disk is unknown until the daemon is started "
                         "again: " +
                             error.message);
    has_failed_.store(true);
  }
  return error;
}

Error RocksEngine::Shortage() {
  MutexLock lock(failure_mutex_);
  return shortage_ ? *shortage_ : NoSpaceError();
}

void RocksEngine::NoteShortage(const Error& why) {
  MutexLock lock(failure_mutex_);
  shortage_ = why;
  must_reopen_.store(true);
}

Error RocksEngine::Failure() {
  MutexLock lock(failure_mutex_);
  if (has_failed_.load()) return failure_;
  return MakeError(ErrorCode::kUnavailable, "the database in " + path_ + " is being opened again");
}

}  // namespace

Result<std::unique_ptr<KvEngine>> OpenRocksEngine(const RocksOptions& options) {
  auto engine = std::make_unique<RocksEngine>(options.path, MakeRocksOptions(options));
  try {
    CAIRNFS_RETURN_IF_ERROR(options.read_only ? engine->OpenForReading() : engine->OpenForWriting());
  } catch (const std::exception& exception) {  // damaged files can make RocksDB ask for absurd sizes
    return ToError(rocksdb::Status::Corruption(exception.what()), options.path);
  }
  return std::unique_ptr<KvEngine>(std::move(engine));
}

Status VerifyRocksChecksums(const std::string& path) {
  RocksOptions options;
  options.path = path;
  try {
    CAIRNFS_ASSIGN_OR_RETURN(bool exists, DatabaseExists(path));
    if (!exists) return MakeError(ErrorCode::kNotFound, "no database in " + path);
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<RocksLock> lock, RocksLock::Take(path));
    CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<rocksdb::DB> db, OpenUnchanged(MakeRocksOptions(options), path));
    rocksdb::Status status = db->VerifyChecksum();
    if (status.ok()) status = db->VerifyFileChecksums(rocksdb::ReadOptions());
    if (!status.ok()) return ToError(status, path);
  } catch (const std::exception& exception) {
    return ToError(rocksdb::Status::Corruption(exception.what()), path);
  }
  return {};
}

}  // namespace cairnfs::kv
