// A disk in memory, for unit tests, with a power cut.
//
// The fault model of Crash, which is what a real disk is taken to do:
//  - All that a file's DataSync covered is there afterwards, its size included. So are the names that SyncDirectory
//    covered. The two are independent: a synced file whose name was not synced is lost.
//  - Of the writes that no DataSync covered, any set of 512-byte sectors is there; a sector is never half-written.
//    Changes of size that no DataSync covered are there up to some point in their order.
//  - Of the creations, renames and removals since the last SyncDirectory, those up to some point in their order are
//  there.
//  - Bytes of a file that were never written are zero.
//  - A write is covered by the first DataSync that began after the write called back.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "io/file.h"

namespace cairnfs::io {

class MemoryDisk final : public Disk {
 public:
  struct Options {
    uint64_t size_bytes = 4 * kGiB;  // more than this gives kNoSpace
    bool direct = true;              // files say so, and assert the alignment
    unsigned thread_count = 2;       // operations in flight at once are carried out in any order
  };
  MemoryDisk() : MemoryDisk(Options()) {}
  explicit MemoryDisk(const Options& options);
  ~MemoryDisk() override;

  Result<std::unique_ptr<File>> Create(const std::string& name) override;
  Result<std::unique_ptr<File>> Open(const std::string& name) override;
  Status Remove(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<std::vector<std::string>> List() override;
  Status SyncDirectory() override;
  Result<Space> GetSpace() override;

  // A power cut. Files that are open fail every later operation with kIo; the disk can be used on at once, as it would
  // be found after a restart. The same seed after the same operations leaves the same bytes.
  void Crash(uint64_t seed) EXCLUDES_LOCK(mutex_);

  // For tests that look at or damage what is stored, synced or not. Nullopt or false: no such file or byte.
  std::optional<std::string> Contents(const std::string& name) EXCLUDES_LOCK(mutex_);
  bool FlipBit(const std::string& name, uint64_t bit) EXCLUDES_LOCK(mutex_);

 private:
  friend class MemoryFile;
  struct Change;
  struct Node;
  struct NameChange;
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  std::unique_ptr<File> MakeFile(const std::string& name, std::shared_ptr<Node> node) REQUIRES_LOCK(mutex_);
  static void Apply(const NameChange& change, Names& names);
  void ChangeNames(NameChange change) REQUIRES_LOCK(mutex_);
  static void CrashNode(Node& node, std::mt19937_64& random);
  // Makes room for a file to grow to `size`.
  Status Grow(Node& node, uint64_t size) REQUIRES_LOCK(mutex_);

  const Options options_;
  Mutex mutex_;  // a leaf
  Names names_ GUARDED_BY(mutex_);
  Names synced_names_ GUARDED_BY(mutex_);
  std::vector<NameChange> unsynced_names_ GUARDED_BY(mutex_);
  uint64_t epoch_ GUARDED_BY(mutex_) = 0;  // count of crashes
  std::atomic<uint64_t> open_files_{0};
  TaskQueue queue_;  // a task for each operation in flight, which has memory of its caller's
};

}  // namespace cairnfs::io
