// A whole filesystem in memory, without a mount: memory disk and memory engine below fs::FileSystem.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>
#include <random>
#include <thread>

#include "../../support/draw_text.h"
#include "../../support/eventually.h"
#include "base/clock.h"
#include "chunking/digest.h"
#include "fs/attributes.h"
#include "fs/filesystem.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/reader.h"
#include "fs/writer.h"
#include "io/faulty_disk.h"
#include "io/memory_disk.h"
#include "kv/local_store_format.h"
#include "meta/records.h"
#include "store/chunk_index_format.h"

namespace cairnfs::fs {

inline std::string RandomText(std::mt19937_64& random, size_t size) { return DrawText(random, size); }

inline std::string RandomText(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  return RandomText(random, size);
}

inline io::Slice SliceOf(io::BufferPool& pool, std::string_view bytes) {
  io::Slice slice;
  slice.owner = pool.Acquire();
  std::memcpy(slice.owner.payload(), bytes.data(), bytes.size());
  slice.data = slice.owner.payload();
  slice.size = bytes.size();
  return slice;
}

inline meta::CreateParams WithMode(uint32_t mode) {
  meta::CreateParams params;
  params.mode = mode;
  return params;
}

// An engine on a disk that can be full, and whose scans of directory entries, reads of a chunk's index entry and writes
// of a file's record can be held up.
class FullableEngine final : public kv::KvEngine {
 public:
  std::atomic<bool> full{false};
  std::atomic<int> writes_until_full{-1};                // below zero: none of them makes it full
  Status verified;                                       // what is found on its disk
  std::atomic<bool> index_unreadable{false};             // the chunk index's part of it: nothing can be put
  std::atomic<int> name_scans_until_hold{-1};            // below zero: never
  std::atomic<bool> holding{false};                      // a scan or a read waits; set to false to let it go on
  std::atomic<uint64_t> held_bytes{0}, needed_bytes{0};  // of the disk, as it is told
  std::atomic<uint64_t> gets_total{0}, scans_total{0}, writes_total{0}, written_keys_total{0};
  void AwaitHold() const {
    while (!holding) Clock::SleepFor(std::chrono::milliseconds(1));
  }
  // The next put of the chunk with these bytes waits.
  void HoldPutOf(std::string_view bytes) {
    held_digest_ = chunking::ComputeDigest(AsBytes(bytes));
    holds_put_ = true;
  }
  // The next write of the file's record waits.
  void HoldRecordOf(InodeId inode) {
    held_record_ = kv::EngineKey(meta::FileKey(inode));
    holds_record_ = true;
  }
  // Nothing is held any more, nor ever again: for the end of a test that may have failed.
  void LetGo() {
    lets_go_ = true;
    holding = false;
  }
  Result<std::optional<std::string>> Get(std::string_view key, const kv::EngineSnapshot* snapshot) override {
    gets_total++;
    if (holds_put_ && key == store::ChunkKey(held_digest_) && holds_put_.exchange(false)) Hold();
    if (index_unreadable && !key.starts_with('K')) return MakeError(ErrorCode::kFailed, "the index is closed");
    return memory_->Get(key, snapshot);
  }
  Status Scan(std::string_view begin, std::string_view end, const kv::EngineSnapshot* snapshot,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    scans_total++;
    if (begin == "KE" && name_scans_until_hold-- == 0) Hold();
    return memory_->Scan(begin, end, snapshot, visit);
  }
  Status Write(const std::vector<kv::EngineWrite>& writes, kv::WriteMode mode) override {
    writes_total++;
    written_keys_total += writes.size();
    if (holds_record_ && HasHeldRecord(writes) && holds_record_.exchange(false)) Hold();
    if (writes_until_full-- == 0) full = true;
    if (full) return MakeError(ErrorCode::kNoSpace, "the disk is full");
    return memory_->Write(writes, mode);
  }
  std::unique_ptr<kv::EngineSnapshot> GetSnapshot() override { return memory_->GetSnapshot(); }
  Status Verify(const Context& /*context*/) override { return verified; }
  kv::DiskUse GetDiskUse() override { return {held_bytes, needed_bytes}; }

 private:
  void Hold() {
    holding = true;  // perhaps for a minute: each look moves the time by as much only
    while (holding && !lets_go_) Clock::SleepFor(std::chrono::milliseconds(50));
  }

  std::unique_ptr<kv::KvEngine> memory_ = kv::OpenMemoryEngine();
  bool HasHeldRecord(const std::vector<kv::EngineWrite>& writes) const {
    return std::any_of(writes.begin(), writes.end(), [this](const auto& write) { return write.key == held_record_; });
  }

  std::atomic<bool> holds_put_{false}, holds_record_{false}, lets_go_{false};
  Digest held_digest_;
  std::string held_record_;
};

class World {
 public:
  explicit World(size_t pool_bytes = 64 * kMiB) {
    auto pool_or = io::BufferPool::Create({.size_bytes_max = pool_bytes, .reserved_count = 4});
    EXPECT_TRUE(pool_or.ok());
    pool = std::move(*pool_or);
    store_options.segment_bytes = 4 * kMiB;
    fs_options.flush_interval_ms = 50;
    Remake();
  }
  ~World() { Close(); }

  // An empty filesystem on an empty disk, with the options as they are now.
  void Remake() {
    Close();
    engine = std::make_unique<FullableEngine>();
    disk = std::make_unique<io::MemoryDisk>(disk_options);
    Open(true);
  }
  // The same on a disk that can be made to fail. It is valid until the next Remake or the world's end.
  io::FaultyDisk& RemakeOnFaultyDisk() {
    Close();
    engine = std::make_unique<FullableEngine>();
    disk.reset();  // before the one below it
    disk_below = std::make_unique<io::MemoryDisk>(disk_options);
    auto faulty = std::make_unique<io::FaultyDisk>(*disk_below);
    io::FaultyDisk& handle = *faulty;
    disk = std::move(faulty);
    Open(true);
    return handle;
  }
  void Open(bool format) {
    auto kv_or = kv::LocalKvStore::Open(*engine);
    ASSERT_TRUE(kv_or.ok());
    kv = std::move(*kv_or);
    auto chunks_or = store::LocalChunkStore::Open(*disk, *engine, *pool, store_options);
    ASSERT_TRUE(chunks_or.ok()) << chunks_or.error().message;
    chunks = std::move(*chunks_or);
    names = std::make_unique<meta::Namespace>(
        *kv, [this](const std::vector<kv::KvWrite>& writes) { return kv->CommitDurable(writes); });
    if (format) {
      meta::FilesystemHeader header;
      header.uuid = std::string(16, 'u');
      header.chunk_params = params.Encode();
      ASSERT_TRUE(names->Format({}, header, 0, 0).ok());
    }
    FileSystem::Parts parts{.pool = *pool,
                            .kv = *kv,
                            .local_kv = kv.get(),
                            .engines = {engine.get()},
                            .names = *names,
                            .chunks = *chunks,
                            .local_chunks = *chunks,
                            .chunk_params = params};
    parts.dedup = dedup;
    auto fs_or = FileSystem::Start(parts, fs_options);
    ASSERT_TRUE(fs_or.ok());
    fs = std::move(*fs_or);
  }
  void Close() {
    if (fs) {
      EXPECT_TRUE(fs->Stop().ok());
    }
    fs.reset();
    chunks.reset();
    names.reset();
    kv.reset();
  }
  void Reopen() {
    Close();
    Open(false);
  }

  // Blocking forms.
  template <typename T, typename Start>
  static Result<T> Await(Start start) {
    auto promise = std::make_shared<std::promise<Result<T>>>();
    auto future = promise->get_future();
    start([promise](Result<T> result) { promise->set_value(std::move(result)); });
    return future.get();
  }
  FileSystem::Created Create(std::string_view name, uint32_t uid = 0) {
    meta::CreateParams params_of_files;
    params_of_files.mode = S_IFREG | 0644;
    params_of_files.uid = uid;
    auto created = fs->open_files().Create({}, kRootInode, name, params_of_files, {.read = true, .write = true});
    EXPECT_TRUE(created.ok());
    return *created;
  }
  Status Write(const FileSystem::Created& file, uint64_t offset, std::string_view bytes, const Caller& caller = {}) {
    while (!bytes.empty()) {
      std::string_view part = bytes.substr(0, kMiB);
      FileSystem::WriteRequest request;
      request.handle = file.handle;
      request.inode = file.attr.inode;
      request.offset = offset;
      request.data = SliceOf(*pool, part);
      request.caller = caller;
      auto written = Await<size_t>([&](Done<size_t> done) { fs->writer().Write(std::move(request), std::move(done)); });
      if (!written.ok()) return written.error();
      offset += part.size();
      bytes.remove_prefix(part.size());
    }
    return {};
  }
  // Stores through a mapping, as the kernel sends them.
  Status WriteBackPages(const FileSystem::Created& file, uint64_t offset, std::string_view bytes,
                        const Caller& caller = {}) {
    FileSystem::WriteRequest request;
    request.handle = file.handle;
    request.inode = file.attr.inode;
    request.offset = offset;
    request.from_page_cache = true;
    request.caller = caller;
    request.data = SliceOf(*pool, bytes);
    auto written = Await<size_t>([&](Done<size_t> done) { fs->writer().Write(std::move(request), done); });
    return written.ok() ? Status() : Status(written.error());
  }
  Result<std::string> Read(const FileSystem::Created& file, uint64_t offset, size_t size) {
    auto read = Await<FileSystem::ReadResult>([&](Done<FileSystem::ReadResult> done) {
      fs->reader().Read(file.handle, file.attr.inode, offset, size, std::move(done));
    });
    if (!read.ok()) return read.error();
    std::string text;
    for (const io::Slice& slice : read->slices) text += AsText(slice.bytes());
    EXPECT_EQ(text.size(), read->size);
    return text;
  }
  Status Truncate(const FileSystem::Created& file, uint64_t size) {
    SetAttrRequest request;
    request.size = size;
    auto result =
        Await<meta::Attr>([&](Done<meta::Attr> done) { fs->attributes().SetAttr(file.attr.inode, request, done); });
    return result.ok() ? Status() : Status(result.error());
  }
  Status Fallocate(const FileSystem::Created& file, const FallocateRequest& request) {
    return Await<void>([&](Done<void> done) { fs->writer().Fallocate(file.handle, request, std::move(done)); });
  }
  Status Punch(const FileSystem::Created& file, uint64_t offset, uint64_t length) {
    return Fallocate(file, {.offset = offset, .length = length, .keep_size = true, .punch_hole = true});
  }
  Status Fsync(const FileSystem::Created& file) {
    return Await<void>([&](Done<void> done) { fs->open_files().Fsync(file.handle, file.attr.inode, done); });
  }
  void CloseFile(const FileSystem::Created& file) {
    EXPECT_TRUE(Await<void>([&](Done<void> done) { fs->open_files().Flush({file.handle}, std::move(done)); }).ok());
    fs->open_files().Release(file.handle);
  }
  FileSystem::Created OpenByName(std::string_view name) {
    FileSystem::Created file;
    auto attr = fs->names().Lookup({}, kRootInode, name);
    EXPECT_TRUE(attr.ok());
    file.attr = *attr;
    auto handle = Await<HandleId>([&](Done<HandleId> done) {
      fs->open_files().Open(attr->inode, {.read = true, .write = true}, std::move(done));
    });
    EXPECT_TRUE(handle.ok());
    file.handle = *handle;
    return file;
  }

  io::MemoryDisk::Options disk_options;
  store::StoreOptions store_options;
  FsOptions fs_options;
  meta::Dedup dedup = meta::Dedup::kMount;
  std::unique_ptr<io::BufferPool> pool;
  std::unique_ptr<FullableEngine> engine;
  std::unique_ptr<io::MemoryDisk> disk_below;  // of a faulty one
  std::unique_ptr<io::Disk> disk;
  std::unique_ptr<kv::LocalKvStore> kv;
  std::unique_ptr<store::LocalChunkStore> chunks;
  std::unique_ptr<meta::Namespace> names;
  chunking::ChunkParams params{.size_bytes_min = 4096, .size_bytes_max = 32768, .mask_bits = 0};
  std::unique_ptr<FileSystem> fs;
};

}  // namespace cairnfs::fs
