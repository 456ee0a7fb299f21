// An engine that passes everything on, counts the snapshots that live, tells of the disk what a test says, and lets a
// test refuse writes or do something beside a read.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "kv/engine.h"

namespace cairnfs::store {

class HookedEngine final : public kv::KvEngine {
 public:
  explicit HookedEngine(kv::KvEngine& base) : base_(base) {}
  // Asked before each write; an error is the write's.
  void SetWriteHook(std::function<Status()> hook) { hook_ = std::move(hook); }
  // Asked before each Get, with its key; an error is the Get's. Set while nothing is read.
  void SetReadHook(std::function<Status(std::string_view)> hook) { read_hook_ = std::move(hook); }
  // Called once, before and after the next Get. Set while nothing is read.
  std::function<void()> before_get, after_get;
  kv::DiskUse use;             // set while nobody asks
  std::atomic<int> tidied{0};  // how often
  int live_snapshots() const { return live_snapshots_.load(); }

  Result<std::optional<std::string>> Get(std::string_view key, const kv::EngineSnapshot* snapshot) override {
    if (before_get) std::exchange(before_get, nullptr)();
    if (read_hook_) CAIRNFS_RETURN_IF_ERROR(read_hook_(key));
    auto value = base_.Get(key, BaseOf(snapshot));
    if (after_get) std::exchange(after_get, nullptr)();
    return value;
  }
  Status Scan(std::string_view begin, std::string_view end, const kv::EngineSnapshot* snapshot,
              const std::function<bool(std::string_view, std::string_view)>& visit) override {
    return base_.Scan(begin, end, BaseOf(snapshot), visit);
  }
  Status Write(const std::vector<kv::EngineWrite>& writes, kv::WriteMode mode) override {
    if (hook_) CAIRNFS_RETURN_IF_ERROR(hook_());
    return base_.Write(writes, mode);
  }
  std::unique_ptr<kv::EngineSnapshot> GetSnapshot() override {
    return std::make_unique<Snapshot>(base_.GetSnapshot(), live_snapshots_);
  }
  kv::DiskUse GetDiskUse() override { return use; }
  void Tidy() override { ++tidied; }

 private:
  struct Snapshot final : kv::EngineSnapshot {
    Snapshot(std::unique_ptr<kv::EngineSnapshot> base_in, std::atomic<int>& live_in)
        : base(std::move(base_in)), live(live_in) {
      ++live;
    }
    ~Snapshot() override { --live; }
    const std::unique_ptr<kv::EngineSnapshot> base;
    std::atomic<int>& live;
  };
  static const kv::EngineSnapshot* BaseOf(const kv::EngineSnapshot* snapshot) {
    return snapshot == nullptr ? nullptr : static_cast<const Snapshot*>(snapshot)->base.get();
  }

  kv::KvEngine& base_;
  std::function<Status()> hook_;
  std::function<Status(std::string_view)> read_hook_;
  std::atomic<int> live_snapshots_{0};
};

}  // namespace cairnfs::store
