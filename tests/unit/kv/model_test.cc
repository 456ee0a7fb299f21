// Random transactions against a std::map, on every setup; and the two engines against each other.
#include <deque>
#include <map>
#include <utility>

#include "support.h"

namespace cairnfs::kv {
namespace {

struct ModelValue {
  std::string value;
  uint64_t revision;
  bool operator==(const ModelValue&) const = default;
};
using Map = std::map<std::string, ModelValue>;

// The state of a store as one std::map, and what each operation must answer.
class Model {
 public:
  bool Holds(const Compare& compare) const {
    auto found = map_.find(compare.key);
    uint64_t revision = found == map_.end() ? 0 : found->second.revision;
    if (compare.kind == Compare::Kind::kExists) return revision != 0;
    if (compare.kind == Compare::Kind::kRevisionIs) return revision == compare.revision;
    bool wants_empty = compare.kind == Compare::Kind::kRangeEmpty;
    for (const auto& [key, value] : map_) {
      bool inside = key >= compare.key && (compare.range_end.empty() || key < compare.range_end);
      if (inside && (wants_empty || value.revision > compare.revision)) return false;
    }
    return true;
  }

  std::optional<uint64_t> Commit(const Transaction& transaction) {
    for (const Compare& compare : transaction.compares) {
      if (!Holds(compare)) return std::nullopt;
    }
    if (!transaction.writes.empty()) ++revision_;
    for (const KvWrite& write : transaction.writes) {
      if (write.value) map_[write.key] = ModelValue{*write.value, revision_};
      if (!write.value) map_.erase(write.key);
    }
    return revision_;
  }

  const Map& map() const { return map_; }
  uint64_t revision() const { return revision_; }

 private:
  Map map_;
  uint64_t revision_ = 0;
};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  std::string Key() { return std::string(1, static_cast<char>('a' + Below(3))) + std::to_string(Below(8)); }
  std::string Bound() { return Below(8) == 0 ? "" : Key(); }

  Transaction NextTransaction(const Model& model) {
    Transaction transaction;
    for (uint64_t i = Below(3); i > 0; --i) AddCompare(transaction, model);
    for (uint64_t i = Below(4); i > 0; --i) {
      if (Below(3) == 0) {
        transaction.Delete(Key());
      } else {
        transaction.Put(Key(), std::string(Below(40), static_cast<char>('A' + Below(26))));
      }
    }
    return transaction;
  }

 private:
  // Mostly such that it holds.
  void AddCompare(Transaction& transaction, const Model& model) {
    std::string key = Key();
    auto found = model.map().find(key);
    switch (Below(4)) {
      case 0:
        transaction.IfRevision(key, found == model.map().end() ? 0 : found->second.revision - Below(20) / 19);
        break;
      case 1: found == model.map().end() ? transaction.IfAbsent(key) : transaction.IfExists(key); break;
      case 2:
        transaction.IfRangeUnchanged(key, Bound(), model.revision() - std::min(model.revision(), Below(4)));
        break;
      default: transaction.IfRangeEmpty(key, key + "~"); break;
    }
  }
  std::mt19937_64 random_;
};

Map ToMap(const KvRange& range) {
  Map map;
  for (const KvEntry& entry : range.entries) map[entry.key] = ModelValue{entry.value, entry.revision};
  return map;
}

class KvModel : public testing::TestWithParam<Setup> {};
INSTANTIATE_TEST_SUITE_P(All, KvModel, kAllSetups,
                         [](const testing::TestParamInfo<Setup>& info) { return SetupName(info.param); });

TEST_P(KvModel, RandomTransactions) {
  Generator generator(TestSeed());
  StoreUnderTest store(GetParam());
  Model model;
  const int steps = GetParam() == Setup::kRocksReopen ? 80 : 2500;
  int committed = 0;
  for (int step = 0; step < steps; ++step) {
    Transaction transaction = generator.NextTransaction(model);
    std::optional<uint64_t> expected = model.Commit(transaction);
    Result<uint64_t> result = store.Commit({}, transaction);
    ASSERT_EQ(result.ok(), expected.has_value()) << "step " << step;
    if (result.ok()) {
      ASSERT_EQ(*result, *expected) << "step " << step;
    }
    committed += result.ok();

    std::string key = generator.Key();
    std::optional<KvEntry> entry = Must(store.Get({}, key));
    auto found = model.map().find(key);
    ASSERT_EQ(entry.has_value(), found != model.map().end()) << "step " << step << " key " << key;
    if (entry) {
      ASSERT_EQ((ModelValue{entry->value, entry->revision}), found->second) << "step " << step;
    }

    std::string begin = generator.Key(), end = generator.Bound();
    size_t limit = generator.Below(6);
    KvRange range = Must(store.Range({}, begin, end, limit));
    Map part;
    bool more = false;
    for (const auto& [model_key, value] : model.map()) {
      if (model_key < begin || (!end.empty() && model_key >= end)) continue;
      more = limit != 0 && part.size() == limit;
      if (more) break;
      part[model_key] = value;
    }
    ASSERT_EQ(ToMap(range), part) << "step " << step;
    ASSERT_EQ(range.more, more) << "step " << step;
    ASSERT_EQ(range.revision, model.revision()) << "step " << step;
  }
  EXPECT_GT(committed, steps / 2);
  MustSucceed(store.Sync({}));
  store.Reopen();
  EXPECT_EQ(ToMap(Must(store.Range({}, "", "", 0))), model.map());
}

// A store beside models of it: as it is, at its freeze points, as frozen, and on the disk.
class FrozenInParts {
 public:
  FrozenInParts(Generator& generator, Model& model) : generator_(generator), model_(model), durable_(model) {}

  void Step(LocalKvStore& store) {
    const Transaction transaction = generator_.NextTransaction(model_);
    ASSERT_EQ(store.Commit({}, transaction).ok(), model_.Commit(transaction).has_value());
    ChangePoints(store);
    if (!frozen_ && generator_.Below(6) == 0) {
      Freeze(store);
    } else if (frozen_ && generator_.Below(3) == 0) {
      MustSucceed(store.FlushFrozen());
      durable_ = *std::exchange(frozen_, std::nullopt);
    }
    ASSERT_EQ(store.freeze_points(), points_.size());
    ASSERT_EQ(ToMap(Must(store.Range({}, "", "", 0))), model_.map());
    ASSERT_EQ(store.UnflushedBytes() == 0, !store.HasUnflushed());
  }

  const Model& durable() const { return durable_; }
  int frozen_to_point() const { return frozen_to_point_; }

 private:
  void ChangePoints(LocalKvStore& store) {
    if (generator_.Below(3) == 0) {
      store.AddFreezePoint();
      points_.push_back(model_);
    }
    if (!points_.empty() && generator_.Below(6) == 0) {
      const size_t index = generator_.Below(points_.size());
      store.DropFreezePoint(index);
      points_.erase(points_.begin() + static_cast<ptrdiff_t>(index));
    }
  }

  void Freeze(LocalKvStore& store) {
    if (points_.empty() || generator_.Below(6) == 0) {
      if (store.Freeze()) frozen_ = model_;
      if (frozen_) points_.clear();
      return;
    }
    store.BeginFrozenToPoint();
    frozen_ = points_.front();
    points_.pop_front();
    frozen_to_point_++;
  }

  Generator& generator_;
  Model& model_;
  Model durable_;
  std::optional<Model> frozen_;
  std::deque<Model> points_;
  int frozen_to_point_ = 0;
};

// A store that is dropped unflushed comes back as it was at one of its flushes: a prefix of the commits.
TEST(KvCrash, LeavesThePrefixUpToTheLastFlush) {
  Generator generator(TestSeed());
  TemporaryDirectory directory;
  int frozen_to_point = 0;
  for (bool rocks : {false, true}) {
    std::unique_ptr<KvEngine> engine = rocks ? MustOpenRocks(directory.path() + "/db") : OpenMemoryEngine();
    Model model;
    for (int round = 0; round < 40; ++round) {
      std::unique_ptr<LocalKvStore> store = Must(LocalKvStore::Open(*engine));
      ASSERT_EQ(ToMap(Must(store->Range({}, "", "", 0))), model.map());
      FrozenInParts parts(generator, model);
      for (uint64_t step = generator.Below(120); step > 0; --step) {
        parts.Step(*store);
        if (HasFatalFailure()) return;
      }
      frozen_to_point += parts.frozen_to_point();
      model = parts.durable();
      store.reset();
      if (rocks && round % 4 == 0) {
        engine.reset();
        engine = MustOpenRocks(directory.path() + "/db");
      }
      // The revision in the engine may be later than the prefix's last: what matters is that it never goes back.
      store = Must(LocalKvStore::Open(*engine));
      uint64_t revision = Must(store->Range({}, "", "", 0)).revision;
      ASSERT_GE(revision, model.revision());
      while (model.revision() < revision) model.Commit(Transaction().Delete("none"));
    }
  }
  EXPECT_GT(frozen_to_point, 50);
}

TEST(KvEngines, AgreeOnRandomOperations) {
  Generator generator(TestSeed());
  TemporaryDirectory directory;
  std::unique_ptr<KvEngine> memory = OpenMemoryEngine();
  std::unique_ptr<KvEngine> rocks = MustOpenRocks(directory.path() + "/db");
  std::vector<std::pair<std::unique_ptr<EngineSnapshot>, std::unique_ptr<EngineSnapshot>>> snapshots;
  snapshots.emplace_back(nullptr, nullptr);
  auto scan = [](KvEngine& engine, const std::string& begin, const std::string& end, const EngineSnapshot* snapshot) {
    std::string text;
    MustSucceed(engine.Scan(begin, end, snapshot, [&](std::string_view key, std::string_view value) {
      text.append(key).append("=").append(value).append("\n");
      return true;
    }));
    return text;
  };
  for (int step = 0; step < 3000; ++step) {
    std::vector<EngineWrite> writes;
    for (uint64_t i = generator.Below(4); i > 0; --i) {
      writes.push_back(EngineWrite{generator.Key(), std::nullopt});
      if (generator.Below(3) != 0) writes.back().value = std::to_string(step);
    }
    MustSucceed(memory->Write(writes, WriteMode::kUnsynced));
    MustSucceed(rocks->Write(writes, SyncedIf(generator.Below(10) == 0)));
    if (generator.Below(20) == 0) snapshots.emplace_back(memory->GetSnapshot(), rocks->GetSnapshot());
    if (snapshots.size() > 4) snapshots.erase(snapshots.begin() + 1 + static_cast<ptrdiff_t>(generator.Below(3)));
    const auto& [of_memory, of_rocks] = snapshots[generator.Below(snapshots.size())];
    std::string key = generator.Key(), begin = generator.Key(), end = generator.Bound();
    ASSERT_EQ(Must(memory->Get(key, of_memory.get())), Must(rocks->Get(key, of_rocks.get()))) << "step " << step;
    ASSERT_EQ(scan(*memory, begin, end, of_memory.get()), scan(*rocks, begin, end, of_rocks.get())) << "step " << step;
    if (step % 1000 == 999) {
      snapshots.resize(1);
      rocks.reset();
      rocks = MustOpenRocks(directory.path() + "/db");
    }
  }
}

}  // namespace
}  // namespace cairnfs::kv
