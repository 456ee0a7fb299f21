// A KvEngine in memory that forgets, at a crash, some of what was not synced: a suffix of the batches written since the
// last synced one. And a disk that counts operations and cuts the power at the N-th.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <random>

#include "io/file.h"
#include "kv/engine.h"

namespace cairnfs::store {

// Calls `cut` once, before the N-th operation counted.
class PowerSwitch {
 public:
  void Arm(uint64_t operations, std::function<void()> cut) {
    cut_ = std::move(cut);
    left_.store(static_cast<int64_t>(operations));
  }
  void Disarm() { left_.store(INT64_MAX); }
  void Count() {
    if (left_.fetch_sub(1) == 1) cut_();
  }

 private:
  std::atomic<int64_t> left_{INT64_MAX};
  std::function<void()> cut_;
};

class CrashEngine final : public kv::KvEngine {
 public:
  explicit CrashEngine(PowerSwitch& power) : power_(power) {}

  Result<std::optional<std::string>> Get(std::string_view key, const kv::EngineSnapshot* snapshot) override {
    std::lock_guard lock(mutex_);
    const Map& map = MapOf(snapshot);
    auto found = map.find(key);
    if (found == map.end()) return std::optional<std::string>{};
    return std::optional<std::string>{found->second};
  }
  Status Scan(std::string_view begin, std::string_view end, const kv::EngineSnapshot* snapshot,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    std::unique_lock lock(mutex_);
    Map copy;
    const Map& map = MapOf(snapshot);
    for (auto at = map.lower_bound(begin); at != map.end() && (end.empty() || at->first < end); ++at) {
      copy.insert(copy.end(), *at);
      if (copy.size() > 1000 && snapshot == nullptr) break;
    }
    lock.unlock();
    for (const auto& [key, value] : copy) {
      if (!visit(key, value)) break;
    }
    return {};
  }
  Status Write(const std::vector<kv::EngineWrite>& writes, kv::WriteMode mode) override {
    power_.Count();
    std::lock_guard lock(mutex_);
    if (down_) return MakeError(ErrorCode::kIo, "the power is off");
    Apply(writes, map_);
    unsynced_.push_back(writes);
    if (mode == kv::WriteMode::kSynced) {
      for (const auto& batch : unsynced_) Apply(batch, durable_);
      unsynced_.clear();
    }
    return {};
  }
  std::unique_ptr<kv::EngineSnapshot> GetSnapshot() override {
    std::lock_guard lock(mutex_);
    auto snapshot = std::make_unique<Snapshot>();
    snapshot->map = map_;
    return snapshot;
  }

  // Keeps a random count of the unsynced batches, and refuses writes until Restart.
  void Crash(uint64_t seed) {
    std::lock_guard lock(mutex_);
    if (down_) return;
    std::mt19937_64 random(seed);
    size_t kept = random() % (unsynced_.size() + 1);
    for (size_t i = 0; i < kept; ++i) Apply(unsynced_[i], durable_);
    unsynced_.clear();
    map_ = durable_;
    down_ = true;
  }
  void Restart() {
    std::lock_guard lock(mutex_);
    down_ = false;
  }

 private:
  using Map = std::map<std::string, std::string, std::less<>>;
  struct Snapshot final : kv::EngineSnapshot {
    Map map;
  };
  const Map& MapOf(const kv::EngineSnapshot* snapshot) const {
    return snapshot == nullptr ? map_ : static_cast<const Snapshot*>(snapshot)->map;
  }
  static void Apply(const std::vector<kv::EngineWrite>& writes, Map& map) {
    for (const kv::EngineWrite& write : writes) {
      if (write.value) {
        map[write.key] = *write.value;
      } else {
        map.erase(write.key);
      }
    }
  }

  PowerSwitch& power_;
  std::mutex mutex_;
  Map map_, durable_;
  std::vector<std::vector<kv::EngineWrite>> unsynced_;
  bool down_ = false;
};

class SwitchedFile final : public io::File {
 public:
  SwitchedFile(std::unique_ptr<io::File> base, PowerSwitch& power) : base_(std::move(base)), power_(power) {}
  void ReadAsync(uint64_t offset, MutableByteSpan data, io::IoCallback done) override {
    base_->ReadAsync(offset, data, std::move(done));
  }
  void WriteAsync(uint64_t offset, ByteSpan data, io::IoCallback done) override {
    power_.Count();
    base_->WriteAsync(offset, data, std::move(done));
  }
  Status DataSync() override { return power_.Count(), base_->DataSync(); }
  Status Allocate(uint64_t size) override { return power_.Count(), base_->Allocate(size); }
  Status Truncate(uint64_t size) override { return power_.Count(), base_->Truncate(size); }
  Result<uint64_t> Size() override { return base_->Size(); }
  bool direct() const override { return base_->direct(); }
  const std::string& path() const override { return base_->path(); }

 private:
  std::unique_ptr<io::File> base_;
  PowerSwitch& power_;
};

class SwitchedDisk final : public io::Disk {
 public:
  SwitchedDisk(io::Disk& base, PowerSwitch& power) : base_(base), power_(power) {}
  // What ran before a crash must not touch the disk after it.
  void Refuse(bool refuse) { refuse_ = refuse; }

  Result<std::unique_ptr<io::File>> Create(const std::string& name) override { return Wrap(&io::Disk::Create, name); }
  Result<std::unique_ptr<io::File>> Open(const std::string& name) override { return Wrap(&io::Disk::Open, name); }
  Status Remove(const std::string& name) override { return Refused() ? Off() : base_.Remove(name); }
  Status Rename(const std::string& from, const std::string& to) override {
    return Refused() ? Off() : base_.Rename(from, to);
  }
  Result<std::vector<std::string>> List() override { return base_.List(); }
  Status SyncDirectory() override { return Refused() ? Off() : base_.SyncDirectory(); }
  Result<Space> GetSpace() override { return base_.GetSpace(); }

 private:
  bool Refused() {
    power_.Count();
    return refuse_.load();
  }
  static Status Off() { return MakeError(ErrorCode::kIo, "the power is off"); }
  Result<std::unique_ptr<io::File>> Wrap(Result<std::unique_ptr<io::File>> (io::Disk::*open)(const std::string&),
                                         const std::string& name) {
    if (Refused()) return Off().error();
    CAIRNFS_ASSIGN_OR_RETURN(auto file, (base_.*open)(name));
    return std::unique_ptr<io::File>(std::make_unique<SwitchedFile>(std::move(file), power_));
  }

  io::Disk& base_;
  PowerSwitch& power_;
  std::atomic<bool> refuse_{false};
};

}  // namespace cairnfs::store
