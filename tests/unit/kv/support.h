// What the tests of kv share: temporary directories, failing engines, and every way to run a LocalKvStore.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "kv/local_store.h"

namespace cairnfs::kv {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "kv-test-XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Keys in the order of their numbers.
inline std::string Counted(int i) { return "key" + std::to_string(100'000 + i); }

// A seed from the environment variable CAIRNFS_SEED, or a random one; printed so that a failure can be replayed.
inline uint64_t TestSeed() {
  const char* text = getenv("CAIRNFS_SEED");
  uint64_t seed = text != nullptr ? strtoull(text, nullptr, 10) : std::random_device()();
  printf("replay with CAIRNFS_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

template <typename T>
T Must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << ErrorCodeName(result.error().code) << ": " << result.error().message;
    abort();
  }
  return std::move(result).value();
}

inline void MustSucceed(const Status& status) {
  EXPECT_TRUE(status.ok()) << ErrorCodeName(status.error().code) << ": " << status.error().message;
}

inline std::unique_ptr<KvEngine> MustOpenRocks(const std::string& path) {
  RocksOptions options;
  options.path = path;
  options.block_cache_bytes = 1 << 20;
  options.write_buffer_bytes = 1 << 20;
  return Must(OpenRocksEngine(options));
}

// Passes everything on, until it is told to fail.
class FailingEngine final : public KvEngine {
 public:
  explicit FailingEngine(KvEngine& engine) : engine_(engine) {}
  std::atomic<bool> fail_writes{false};
  std::atomic<bool> fail_reads{false};  // of single keys, with kIo
  std::atomic<ErrorCode> write_error{ErrorCode::kNoSpace};
  std::function<void()> before_write;  // called in each Write
  std::atomic<size_t> visits{0};       // keys that scans came to

  Result<std::optional<std::string>> Get(std::string_view key, const EngineSnapshot* snapshot) override {
    if (fail_reads) return MakeError(ErrorCode::kIo, "planted");
    return engine_.Get(key, snapshot);
  }
  Status Scan(std::string_view begin, std::string_view end, const EngineSnapshot* snapshot,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) override {
    return engine_.Scan(begin, end, snapshot, [&](std::string_view key, std::string_view value) {
      ++visits;
      return visit(key, value);
    });
  }
  Status Write(const std::vector<EngineWrite>& writes, WriteMode mode) override {
    if (before_write) before_write();
    if (fail_writes) return MakeError(write_error, "planted");
    return engine_.Write(writes, mode);
  }
  std::unique_ptr<EngineSnapshot> GetSnapshot() override { return engine_.GetSnapshot(); }

 private:
  KvEngine& engine_;
};

// How many of Counted(0), Counted(1), ... are there. Fails when they are no prefix.
inline int PrefixLength(KvEngine& engine) {
  int count = 0;
  MustSucceed(engine.Scan("key", "kez", nullptr, [&](std::string_view key, std::string_view) {
    EXPECT_EQ(key, Counted(count));
    ++count;
    return true;
  }));
  return count;
}

inline std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Where the records of a log of RocksDB end, which stand before zeros. The last byte of the last one must not be zero.
inline size_t LogEnd(const std::string& path) { return Bytes(path).find_last_not_of('\0') + 1; }

enum class Setup {
  kMemory,
  kMemoryLayers,  // every third commit freezes, every third flushes: keys lie in all three places
  kRocks,
  kRocksLayers,
  kRocksSync,    // each commit is synced
  kRocksReopen,  // each commit is synced, and the database opened anew
};

inline const char* SetupName(Setup setup) {
  switch (setup) {
    case Setup::kMemory: return "Memory";
    case Setup::kMemoryLayers: return "MemoryLayers";
    case Setup::kRocks: return "Rocks";
    case Setup::kRocksLayers: return "RocksLayers";
    case Setup::kRocksSync: return "RocksSync";
    case Setup::kRocksReopen: return "RocksReopen";
  }
  return "";
}

inline const auto kAllSetups = testing::Values(Setup::kMemory, Setup::kMemoryLayers, Setup::kRocks, Setup::kRocksLayers,
                                               Setup::kRocksSync, Setup::kRocksReopen);

// A KvStore that does to a LocalKvStore, after each commit, what the setup says. One thread at a time when it layers or
// reopens.
class StoreUnderTest final : public KvStore {
 public:
  explicit StoreUnderTest(Setup setup) : setup_(setup) { Open(); }

  Result<std::optional<KvEntry>> Get(const Context& context, std::string_view key) override {
    return store_->Get(context, key);
  }
  Result<KvRange> Range(const Context& context, std::string_view begin, std::string_view end, size_t limit) override {
    return store_->Range(context, begin, end, limit);
  }
  Result<KvSnapshot> Read(const Context& context, std::span<const KvSpan> spans) override {
    return store_->Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const Transaction& transaction) override {
    Result<uint64_t> revision = store_->Commit(context, transaction);
    AfterCommit();
    return revision;
  }
  Status Sync(const Context& context) override { return store_->Sync(context); }
  KvLimits limits() const override { return store_->limits(); }
  LocalKvStore& local() { return *store_; }

  // Closes all and opens it again, flushed or not.
  void Reopen() {
    store_.reset();
    frozen_ = false;
    if (setup_ != Setup::kMemory && setup_ != Setup::kMemoryLayers) engine_.reset();
    Open();
  }

 private:
  void Open() {
    if (engine_ == nullptr) {
      bool memory = setup_ == Setup::kMemory || setup_ == Setup::kMemoryLayers;
      engine_ = memory ? OpenMemoryEngine() : MustOpenRocks(directory_.path() + "/db");
    }
    store_ = Must(LocalKvStore::Open(*engine_));
  }

  void AfterCommit() {
    switch (setup_) {
      case Setup::kMemory:
      case Setup::kRocks: return;
      case Setup::kMemoryLayers:
      case Setup::kRocksLayers:
        if (++commits_ % 3 == 0 && !frozen_) frozen_ = store_->Freeze();
        if (commits_ % 3 == 2 && frozen_) {
          MustSucceed(store_->FlushFrozen());
          frozen_ = false;
        }
        return;
      case Setup::kRocksSync: MustSucceed(store_->Sync({})); return;
      case Setup::kRocksReopen:
        MustSucceed(store_->Sync({}));
        Reopen();
        return;
    }
  }

  const Setup setup_;
  TemporaryDirectory directory_;
  std::unique_ptr<KvEngine> engine_;
  std::unique_ptr<LocalKvStore> store_;
  uint64_t commits_ = 0;
  bool frozen_ = false;
};

}  // namespace cairnfs::kv
