// What LocalKvStore adds to KvStore: the layers, and what reaches the engine when.
#include <thread>

#include "support.h"

namespace cairnfs::kv {
namespace {

class WriteBehind : public testing::Test {
 protected:
  uint64_t Put(const std::string& key, const std::string& value) {
    return Must(store_->Commit({}, Transaction().Put(key, value)));
  }
  std::string Value(LocalKvStore& store, const std::string& key) {
    std::optional<KvEntry> entry = Must(store.Get({}, key));
    return entry ? entry->value : "absent";
  }
  std::string Value(const std::string& key) { return Value(*store_, key); }
  // What the key would be after a crash now.
  std::string Durable(const std::string& key) { return Value(*Must(LocalKvStore::Open(*memory_)), key); }

  std::unique_ptr<KvEngine> memory_ = OpenMemoryEngine();
  FailingEngine engine_{*memory_};
  std::unique_ptr<LocalKvStore> store_ = Must(LocalKvStore::Open(engine_));
};

TEST_F(WriteBehind, NothingReachesTheEngineBeforeAFlush) {
  Put("a", "1");
  EXPECT_TRUE(store_->HasUnflushed());
  EXPECT_GT(store_->UnflushedBytes(), 0u);
  EXPECT_TRUE(store_->Freeze());
  EXPECT_EQ(Durable("a"), "absent");
  EXPECT_EQ(Value("a"), "1");
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(Durable("a"), "1");
  EXPECT_FALSE(store_->HasUnflushed());
  EXPECT_EQ(store_->UnflushedBytes(), 0u);
  EXPECT_FALSE(store_->Freeze());
}

TEST_F(WriteBehind, AWatcherHearsWhatChanged) {
  Put("Da", "1");
  std::vector<std::string> heard;
  uint64_t last = 0;
  auto text = [](const std::optional<std::string>& value) { return value.value_or("absent"); };
  store_->Watch('D', [&](std::string_view key, const std::optional<std::string>& before,
                         const std::optional<std::string>& after, uint64_t revision) {
    heard.push_back(std::string(key) + ": " + text(before) + " to " + text(after));
    EXPECT_GT(revision, last);
    last = revision;
  });
  Put("a", "1");
  Put("Db", "1");
  ASSERT_TRUE(store_->Freeze());
  MustSucceed(store_->FlushFrozen());
  Put("Dc", "1");
  store_->BeginFrozen();
  store_->CommitLate({{"a", "2"}, {"Da", "2"}});
  Must(store_->Commit({}, Transaction().Delete("Db").Put("a", "3")));
  store_->CommitLate({{"Db", "late, and so below the deletion"}});
  EXPECT_FALSE(store_->Commit({}, Transaction().IfAbsent("Da").Put("Da", "3")).ok());
  MustSucceed(store_->FlushFrozen());
  store_->Watch('D', {});
  Put("Da", "4");
  EXPECT_EQ(heard, (std::vector<std::string>{"Db: absent to 1", "Dc: absent to 1", "Da: 1 to 2", "Db: 1 to absent"}));
}

TEST_F(WriteBehind, CommitsAfterTheFreezeStayBehind) {
  Put("a", "1");
  Put("b", "1");
  ASSERT_TRUE(store_->Freeze());
  Put("a", "2");
  Must(store_->Commit({}, Transaction().Delete("b")));
  Put("c", "1");
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(Durable("a"), "1");
  EXPECT_EQ(Durable("b"), "1");
  EXPECT_EQ(Durable("c"), "absent");
  EXPECT_EQ(Value("a"), "2");
  EXPECT_EQ(Value("b"), "absent");
  MustSucceed(store_->Sync({}));
  EXPECT_EQ(Durable("a"), "2");
  EXPECT_EQ(Durable("b"), "absent");
  EXPECT_EQ(Durable("c"), "1");
}

TEST_F(WriteBehind, LateCommitsBelongToTheFrozenLayer) {
  Put("file", "old");
  Put("both", "old");
  ASSERT_TRUE(store_->Freeze());
  uint64_t active = Put("both", "active");
  store_->CommitLate({KvWrite{"file", "late"}, KvWrite{"both", "late"}, KvWrite{"new", "late"}});
  EXPECT_EQ(Value("file"), "late");
  EXPECT_EQ(Value("both"), "active");
  EXPECT_EQ(Must(store_->Get({}, "both"))->revision, active);
  EXPECT_GT(Must(store_->Get({}, "file"))->revision, active);
  EXPECT_EQ(Must(store_->Range({}, "", "", 0)).entries.size(), 3u);
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(Durable("file"), "late");
  EXPECT_EQ(Durable("both"), "late");
  EXPECT_EQ(Durable("new"), "late");
  EXPECT_EQ(Value("both"), "active");
  MustSucceed(store_->Sync({}));
  EXPECT_EQ(Durable("both"), "active");
}

TEST_F(WriteBehind, LateCommitsDefeatTransactionsThatReadBefore) {
  uint64_t revision = Put("file", "old");
  ASSERT_TRUE(store_->Freeze());
  store_->CommitLate({KvWrite{"file", "late"}});
  Result<uint64_t> result = store_->Commit({}, Transaction().IfRevision("file", revision).Put("file", "lost"));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  store_->CommitLate({KvWrite{"file", std::nullopt}});
  Must(store_->Commit({}, Transaction().IfAbsent("file").Put("file", "new")));
}

TEST_F(WriteBehind, BeginFrozenNeedsNoCommit) {
  store_->BeginFrozen();
  EXPECT_FALSE(store_->HasUnflushed());
  store_->CommitLate({KvWrite{"a", "late"}});
  EXPECT_TRUE(store_->HasUnflushed());
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(Durable("a"), "late");
  MustSucceed(store_->FlushFrozen());  // nothing is frozen: nothing to do
}

TEST_F(WriteBehind, FailedFlushKeepsTheLayerAndIsRepeated) {
  Put("a", "1");
  ASSERT_TRUE(store_->Freeze());
  engine_.fail_writes = true;
  EXPECT_EQ(store_->FlushFrozen().error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Value("a"), "1");
  Put("b", "1");
  store_->CommitLate({KvWrite{"c", "late"}});
  EXPECT_FALSE(store_->Sync({}).ok());
  engine_.fail_writes = false;
  EXPECT_EQ(Durable("a"), "absent");
  MustSucceed(store_->Sync({}));
  for (const char* key : {"a", "b", "c"}) EXPECT_NE(Durable(key), "absent") << key;
}

TEST_F(WriteBehind, ReadersSeeTheFrozenLayerWhileItIsWritten) {
  Put("a", "1");
  ASSERT_TRUE(store_->Freeze());
  int calls = 0;
  engine_.before_write = [&] {
    ++calls;
    EXPECT_EQ(Value("a"), "1");
    EXPECT_EQ(Must(store_->Range({}, "", "", 0)).entries.size(), 1u);
    Must(store_->Commit({}, Transaction().IfExists("a").Put("a", "2")));
  };
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Durable("a"), "1");
  EXPECT_EQ(Value("a"), "2");
}

TEST_F(WriteBehind, CommitDurableGoesStraightToTheEngine) {
  Put("a", "1");
  MustSucceed(store_->CommitDurable({KvWrite{"next", "65536"}}));
  EXPECT_EQ(Durable("next"), "65536");
  EXPECT_EQ(Durable("a"), "absent");
  EXPECT_EQ(Value("next"), "65536");
  uint64_t revision = Must(store_->Get({}, "next"))->revision;
  EXPECT_EQ(revision, 2u);
  EXPECT_EQ(Must(Must(LocalKvStore::Open(*memory_))->Range({}, "", "", 0)).revision, revision);
  EXPECT_EQ(Put("b", "1"), revision + 1);
  MustSucceed(store_->CommitDurable({KvWrite{"next", std::nullopt}}));
  EXPECT_EQ(Value("next"), "absent");
}

TEST_F(WriteBehind, CommitDurableDoesNotLetTheRevisionGoBack) {
  Put("a", "1");
  ASSERT_TRUE(store_->Freeze());
  Put("b", "1");
  MustSucceed(store_->CommitDurable({KvWrite{"next", "1"}}));
  uint64_t revision = Must(store_->Range({}, "", "", 0)).revision;
  MustSucceed(store_->FlushFrozen());
  EXPECT_EQ(Must(Must(LocalKvStore::Open(*memory_))->Range({}, "", "", 0)).revision, revision);
}

TEST_F(WriteBehind, FailedCommitDurableShowsNothing) {
  engine_.fail_writes = true;
  EXPECT_FALSE(store_->CommitDurable({KvWrite{"next", "1"}}).ok());
  EXPECT_EQ(Value("next"), "absent");
}

// A transaction that was evaluated before a flush dropped its key's layer must not go by what the engine said then.
TEST_F(WriteBehind, CompareDuringAFlushIsNotFooled) {
  std::atomic<bool> done{false};
  Put("counter", "0");
  std::jthread flusher([&] {
    while (!done) {
      if (store_->Freeze()) MustSucceed(store_->FlushFrozen());
    }
  });
  std::vector<std::jthread> threads;
  constexpr int kThreads = 3, kIncrements = 2000;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kIncrements;) {
        KvEntry entry = *Must(store_->Get({}, "counter"));
        std::string next = std::to_string(std::stoi(entry.value) + 1);
        i += store_->Commit({}, Transaction().IfRevision("counter", entry.revision).Put("counter", next)).ok();
      }
    });
  }
  threads.clear();
  done = true;
  flusher.join();
  EXPECT_EQ(Value("counter"), std::to_string(kThreads * kIncrements));
}

// Whatever layer, engine or cache of the engine's values it comes from.
TEST_F(WriteBehind, AReadNeverGoesBackDuringFlushes) {
  std::atomic<uint64_t> committed{Must(store_->Commit({}, Transaction().Put("key", "value")))};
  std::atomic<bool> stop{false};
  std::jthread flusher([&] {
    while (!stop) MustSucceed(store_->Sync({}));
  });
  std::vector<std::jthread> readers;
  std::atomic<int> stale{0};
  for (int i = 0; i < 2; i++) {
    readers.emplace_back([&] {
      while (!stop) {
        const uint64_t at_least = committed;
        auto entry = Must(store_->Get({}, "key"));
        stale += !entry || entry->revision < at_least;
      }
    });
  }
  for (int i = 0; i < 3'000; i++) {
    committed = Must(store_->Commit({}, Transaction().Put("key", std::to_string(i))));
    if (i % 16 == 0) std::this_thread::yield();
  }
  stop = true;
  readers.clear();
  EXPECT_EQ(stale, 0);
}

TEST_F(WriteBehind, ConcurrentSyncsMakeEverythingDurable) {
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        std::string key = std::to_string(t) + "/" + std::to_string(i);
        Must(store_->Commit({}, Transaction().Put(key, "x")));
        MustSucceed(store_->Sync({}));
        EXPECT_TRUE(Must(memory_->Get("K" + key)).has_value());
      }
    });
  }
}

// One operation id from two threads at once is carried out once, and both get its result.
TEST_F(WriteBehind, ConcurrentCommitsOfOneOperation) {
  for (int round = 0; round < 300; ++round) {
    Transaction create = Transaction().IfAbsent("k" + std::to_string(round)).Put("k" + std::to_string(round), "");
    create.operation_id = "op" + std::to_string(round);
    uint64_t results[2] = {0, 0};
    {
      std::jthread other([&] { results[0] = Must(store_->Commit({}, create)); });
      results[1] = Must(store_->Commit({}, create));
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

// The worked example of docs/formats/kv.md.
TEST_F(WriteBehind, EngineLayoutIsAsDocumented) {
  Must(store_->Commit({}, Transaction().Put("a", "xyz").Put("b", "")));
  Must(store_->Commit({}, Transaction().Delete("b")));
  MustSucceed(store_->Sync({}));
  std::vector<std::pair<std::string, std::string>> entries;
  MustSucceed(memory_->Scan("", "", nullptr, [&](std::string_view key, std::string_view value) {
    entries.emplace_back(key, value);
    return true;
  }));
  std::vector<std::pair<std::string, std::string>> expected = {
      {"Ka", std::string("\1\0\0\0\0\0\0\0xyz", 11)},
      {"R", std::string("\2\0\0\0\0\0\0\0", 8)},
  };
  EXPECT_EQ(entries, expected);
}

// Some keys lie in the engine, some in a layer, some in both, deleted in one or the other, and more than are copied of
// the layers at once.
TEST_F(WriteBehind, AVisitGoesThroughAllLayers) {
  constexpr size_t kKeys = 30'000;
  auto change = [&](size_t first, size_t every, bool deletes) {
    Transaction transaction;
    for (size_t i = first; i < kKeys; i += every) {
      const std::string key = "k" + std::to_string(100'000 + i);
      deletes ? transaction.Delete(key) : transaction.Put(key, std::to_string(first));
      if (transaction.writes.size() < 100) continue;
      Must(store_->Commit({}, transaction));
      transaction = {};
    }
    Must(store_->Commit({}, transaction));
  };
  change(0, 2, false);
  MustSucceed(store_->Sync({}));
  change(1, 5, false);
  change(2, 4, true);
  ASSERT_TRUE(store_->Freeze());
  change(0, 3, true);
  change(3, 7, false);
  std::vector<std::string> visited, expected;
  MustSucceed(store_->VisitRange({}, "k", "l", [&](const KvEntryView& entry) {
    visited.push_back(std::string(entry.key).append("=").append(entry.value));
    return true;
  }));
  for (const KvEntry& entry : Must(store_->Range({}, "k", "l", 0)).entries)
    expected.push_back(entry.key + "=" + entry.value);
  EXPECT_EQ(visited, expected);
  EXPECT_GT(visited.size(), 10'000u);
  MustSucceed(store_->FlushFrozen());
}

TEST_F(WriteBehind, OtherKeysOfTheEngineAreNotSeen) {
  MustSucceed(
      memory_->Write({EngineWrite{"C123", "chunk"}, EngineWrite{"L", "x"}, EngineWrite{"J", "x"}}, WriteMode::kSynced));
  Put("a", "1");
  EXPECT_EQ(Must(store_->Range({}, "", "", 0)).entries.size(), 1u);
  MustSucceed(store_->Sync({}));
  EXPECT_EQ(Must(store_->Range({}, "", "", 0)).entries.size(), 1u);
}

TEST_F(WriteBehind, DamagedValuesAreReported) {
  MustSucceed(
      memory_->Write({EngineWrite{"Kshort", "1234567"}, EngineWrite{"R", std::string(8, '\0')}}, WriteMode::kSynced));
  EXPECT_EQ(store_->Get({}, "short").error().code, ErrorCode::kCorrupt);
  EXPECT_NE(store_->Get({}, "short").error().message.find("Kshort"), std::string::npos);
  EXPECT_EQ(store_->Range({}, "", "", 0).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(store_->Commit({}, Transaction().IfExists("short")).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(store_->Commit({}, Transaction().IfRangeEmpty("", "")).error().code, ErrorCode::kCorrupt);
  for (size_t size = 0; size < 8; ++size) {
    MustSucceed(memory_->Write({EngineWrite{"R", std::string(size, '\0')}}, WriteMode::kSynced));
    EXPECT_EQ(LocalKvStore::Open(*memory_).error().code, ErrorCode::kCorrupt);
  }
  MustSucceed(memory_->Write({EngineWrite{"R", std::nullopt}}, WriteMode::kSynced));
  EXPECT_EQ(LocalKvStore::Open(*memory_).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace cairnfs::kv
