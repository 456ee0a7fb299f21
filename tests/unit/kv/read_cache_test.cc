#include "kv/read_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace cairnfs::kv {
namespace {

using Known = ReadCache::Known;

TEST(ReadCache, KnowsWhatWasRead) {
  ReadCache cache(1 << 20);
  EXPECT_FALSE(cache.Find("a").has_value());
  cache.Insert("a", Known{7, "value"}, cache.epoch());
  cache.Insert("b", Known{}, cache.epoch());
  ASSERT_TRUE(cache.Find("a").has_value());
  EXPECT_EQ(cache.Find("a")->value, "value");
  EXPECT_EQ(cache.FindRevision("a"), 7u);
  ASSERT_TRUE(cache.Find("b").has_value()) << "that a key is absent is known too";
  EXPECT_FALSE(cache.Find("b")->value.has_value());
  EXPECT_EQ(cache.FindRevision("b"), 0u);
}

TEST(ReadCache, RefusesWhatWasReadBeforeTheEngineChanged) {
  ReadCache cache(1 << 20);
  const uint64_t before = cache.epoch();
  cache.BeginEpoch();
  cache.Insert("a", Known{1, "old"}, before);
  EXPECT_FALSE(cache.Find("a").has_value());
  cache.Insert("a", Known{2, "new"}, cache.epoch());
  EXPECT_EQ(cache.FindRevision("a"), 2u);
}

TEST(ReadCache, FollowsTheEngine) {
  ReadCache cache(1 << 20);
  cache.Insert("a", Known{1, "old"}, cache.epoch());
  cache.BeginEpoch();
  cache.Update("a", 2, "new");
  EXPECT_EQ(cache.Find("a")->value, "new");
  cache.BeginEpoch();
  cache.Update("a", 3, std::nullopt);
  EXPECT_FALSE(cache.Find("a").has_value()) << "to be asked for again";
}

TEST(ReadCache, KeepsWhatWasUsedLastWithinItsBound) {
  ReadCache cache(256 << 10);
  const std::string value(200, 'v');
  const auto key = [](int i) { return "key-" + std::to_string(i); };
  for (int i = 0; i < 10'000; i++) {
    cache.Insert(key(i), Known{1, value}, cache.epoch());
    ASSERT_TRUE(cache.Find(key(0)).has_value()) << "asked for all the time, gone after " << i;
  }
  int found = 0;
  for (int i = 0; i < 10'000; i++) found += cache.Find(key(i)).has_value();
  EXPECT_LE(found * (value.size() + 8), 256u << 10);
  EXPECT_GT(found, 300);
  EXPECT_TRUE(cache.Find(key(9'999)).has_value());
}

TEST(ReadCache, ALargeValueIsNotKeptNorTheOneBeforeIt) {
  ReadCache cache(1 << 20);
  cache.Insert("a", Known{1, "small"}, cache.epoch());
  cache.BeginEpoch();
  cache.Update("a", 2, std::string(100'000, 'x'));
  EXPECT_FALSE(cache.Find("a").has_value());
}

// What stands for the engine is changed by one thread, as it is by flushes. No reader may find what was over before it
// began to look.
TEST(ReadCache, NothingStaleIsFoundWhileTheEngineChanges) {
  ReadCache cache(1 << 20);
  std::atomic<uint64_t> engine{1}, told{1};
  std::atomic<bool> stop{false}, stale{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; i++) {
    readers.emplace_back([&] {
      while (!stop) {
        const uint64_t at_least = told;
        const uint64_t epoch = cache.epoch();
        auto revision = cache.FindRevision("key");
        if (!revision) {
          revision = engine.load();
          std::this_thread::yield();
          cache.Insert("key", Known{*revision, "v"}, epoch);
        }
        if (*revision < at_least) stale = true;
      }
    });
  }
  for (uint64_t revision = 2; revision < 20'000; revision++) {
    engine = revision;
    cache.BeginEpoch();
    cache.Update("key", revision, revision % 2 == 0 ? std::optional<std::string>() : "v");
    told = revision;
    if (revision % 64 == 0) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_FALSE(stale);
}

}  // namespace
}  // namespace cairnfs::kv
