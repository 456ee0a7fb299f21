// The sync mark: a small file beside RocksDB's own that says how much of the database is known to be durable.
//
// RocksDB recovers the write-ahead log up to the first record that does not check, and takes the rest for the torn tail
// of a power cut. It cannot tell that from damage to records that were synced long ago. The mark can: it holds a lower
// bound of the sequence numbers that a sync has covered, so a recovery that ends below it has lost synced data. It also
// holds a checksum of the manifest's synced prefix.
//
// The mark is written after the sync that it tells of, and is not synced itself. So after a power cut it may be old,
// which makes the check weaker; it never claims too much. The layout is in docs/formats/kv.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/thread_annotations.h"

namespace rocksdb {
class RandomRWFile;
}

namespace cairnfs::kv {

struct SyncMarkRecord {
  static constexpr size_t kBytes = 48;
  uint64_t sequence = 0;         // all writes up to this RocksDB sequence number are durable
  uint64_t manifest_number = 0;  // 0: nothing known of the manifest
  uint64_t manifest_bytes = 0;
  uint32_t manifest_crc32c = 0;  // of the manifest's first manifest_bytes bytes

  std::string Encode() const;
  static std::optional<SyncMarkRecord> Decode(std::string_view text);
};

uint32_t Crc32c(std::string_view bytes);

class SyncMark {
 public:
  static constexpr const char* kFileName = "cairnfs.synced";
  SyncMark();
  ~SyncMark();

  // The record in `directory`; nullopt when there is none that decodes.
  static std::optional<SyncMarkRecord> Read(const std::string& directory);

  // Opens the file to be written, and makes it, durably, if need be. Before this nothing is recorded.
  Status Open(const std::string& directory);
  // Any thread. The mark never goes back. Failures are ignored: an old mark is a weaker check, not a wrong one.
  void RaiseSequence(uint64_t sequence);
  void SetManifest(uint64_t number, uint64_t bytes, uint32_t crc32c);

 private:
  void WriteRecord() REQUIRES_LOCK(mutex_);

  Mutex mutex_;
  SyncMarkRecord record_ GUARDED_BY(mutex_);
  std::unique_ptr<rocksdb::RandomRWFile> file_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::kv
