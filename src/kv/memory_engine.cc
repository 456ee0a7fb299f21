// The engine in memory, for tests and as the model that RocksDB is compared with.
//
// Every key has its versions, oldest first, each with the sequence number of the write that made it. Versions that no
// snapshot can see are dropped when the key is written again; without snapshots each key has one version.
#include <map>
#include <mutex>
#include <set>
#include <shared_mutex>

#include "kv/engine.h"

namespace cairnfs::kv {
namespace {

class MemoryEngine;

class MemorySnapshot final : public EngineSnapshot {
 public:
  MemorySnapshot(MemoryEngine& engine, uint64_t sequence) : engine_(engine), sequence_(sequence) {}
  ~MemorySnapshot() override;
  uint64_t sequence() const { return sequence_; }

 private:
  MemoryEngine& engine_;
  const uint64_t sequence_;
};

class MemoryEngine final : public KvEngine {
 public:
  Result<std::optional<std::string>> Get(std::string_view key, const EngineSnapshot* snapshot) override {
    std::shared_lock lock(mutex_);
    auto found = map_.find(key);
    const std::string* value = found == map_.end() ? nullptr : VisibleAt(found->second, SequenceOf(snapshot));
    if (value == nullptr) return std::optional<std::string>();
    return std::optional<std::string>(*value);
  }

  Status Scan(std::string_view begin, std::string_view end, const EngineSnapshot* snapshot,
              const std::function<bool(std::string_view key, std::string_view value)>& visit) override {
    // The lock is not held while visiting, so that a visitor may call the engine.
    std::unique_ptr<EngineSnapshot> own = snapshot == nullptr ? GetSnapshot() : nullptr;
    uint64_t sequence = SequenceOf(own ? own.get() : snapshot);
    std::vector<std::pair<std::string, std::string>> batch;
    std::string next(begin);
    for (bool more = true; more;) {
      more = CopyBatch(next, end, sequence, batch);
      for (const auto& [key, value] : batch) {
        if (!visit(key, value)) return {};
      }
    }
    return {};
  }

  Status Write(const std::vector<EngineWrite>& writes, WriteMode /*mode*/) override {
    std::unique_lock lock(mutex_);
    ++sequence_;
    for (const EngineWrite& write : writes) Apply(write);
    return {};
  }

  std::unique_ptr<EngineSnapshot> GetSnapshot() override {
    std::unique_lock lock(mutex_);
    snapshots_.insert(sequence_);
    return std::make_unique<MemorySnapshot>(*this, sequence_);
  }

  void Drop(uint64_t sequence) {
    std::unique_lock lock(mutex_);
    snapshots_.erase(snapshots_.find(sequence));
  }

 private:
  struct Version {
    uint64_t sequence;
    std::optional<std::string> value;
  };
  using Versions = std::vector<Version>;
  static constexpr size_t kScanBatch = 256;

  static uint64_t SequenceOf(const EngineSnapshot* snapshot) {
    return snapshot == nullptr ? UINT64_MAX : static_cast<const MemorySnapshot*>(snapshot)->sequence();
  }

  static const std::string* VisibleAt(const Versions& versions, uint64_t sequence) {
    for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
      if (version->sequence <= sequence) return version->value ? &*version->value : nullptr;
    }
    return nullptr;
  }

  // Fills `batch` with the next entries from `next` on and moves `next` past them. False at the end of the range.
  bool CopyBatch(std::string& next, std::string_view end, uint64_t sequence,
                 std::vector<std::pair<std::string, std::string>>& batch) {
    batch.clear();
    std::shared_lock lock(mutex_);
    for (auto it = map_.lower_bound(next); it != map_.end() && (end.empty() || it->first < end); ++it) {
      if (batch.size() == kScanBatch) {
        next = it->first;
        return true;
      }
      if (const std::string* value = VisibleAt(it->second, sequence)) batch.emplace_back(it->first, *value);
    }
    return false;
  }

  void Apply(const EngineWrite& write) {
    if (snapshots_.empty()) {
      if (write.value) {
        map_[write.key] = Versions{Version{sequence_, write.value}};
      } else {
        map_.erase(write.key);
      }
      return;
    }
    Versions& versions = map_[write.key];
    uint64_t oldest = *snapshots_.begin();
    size_t unseen = 0;  // leading versions that a later one hides even from the oldest snapshot
    while (unseen + 1 < versions.size() && versions[unseen + 1].sequence <= oldest) ++unseen;
    versions.erase(versions.begin(), versions.begin() + static_cast<ptrdiff_t>(unseen));
    versions.push_back(Version{sequence_, write.value});
  }

  std::shared_mutex mutex_;  // guards everything below
  std::map<std::string, Versions, std::less<>> map_;
  std::multiset<uint64_t> snapshots_;
  uint64_t sequence_ = 0;
};

MemorySnapshot::~MemorySnapshot() { engine_.Drop(sequence_); }

}  // namespace

std::unique_ptr<KvEngine> OpenMemoryEngine() { return std::make_unique<MemoryEngine>(); }

}  // namespace cairnfs::kv
