// Which files of a round go into one transaction.
#include "fs/publish_items.h"

#include <gtest/gtest.h>

namespace cairnfs::fs {
namespace {

std::vector<PublishItem> Items(size_t count, size_t recipe_bytes) {
  std::vector<PublishItem> items(count);
  for (PublishItem& item : items) {
    item.session = 1;
    item.record.emplace();
    item.record->recipe.resize(recipe_bytes);
  }
  return items;
}

TEST(PublishItems, ABatchHasAsManyFilesAsTheStoreTakes) {
  const kv::KvLimits limits{.operations_per_transaction_max = 128, .transaction_bytes_max = 1 << 20};
  auto items = Items(100, 100);
  EXPECT_EQ(CountOfBatch(items, limits), 24u);  // (128 - 2 - 2) / 5
  for (PublishItem& item : items) item.usage = kv::KvWrite{meta::UsageKey(InodeId{9}), std::nullopt};
  EXPECT_EQ(CountOfBatch(items, limits), 20u) << "those that count for a quota write one key more";
}

TEST(PublishItems, DeadMarksCountToo) {
  const kv::KvLimits limits{.operations_per_transaction_max = 128, .transaction_bytes_max = 1 << 20};
  auto items = Items(100, 100);
  items[0].clears.resize(10);
  EXPECT_EQ(CountOfBatch(items, limits), 20u);
}

TEST(PublishItems, ABatchHasFewBytes) {
  const kv::KvLimits limits{.operations_per_transaction_max = 128, .transaction_bytes_max = 1 << 20};
  EXPECT_EQ(CountOfBatch(Items(100, 100 * kKiB), limits), 4u);
  EXPECT_EQ(CountOfBatch(Items(3, 2 * kMiB), limits), 1u) << "one goes in any case";
}

TEST(PublishItems, ABatchIsOfOneSession) {
  const kv::KvLimits limits{.operations_per_transaction_max = 128, .transaction_bytes_max = 1 << 20};
  auto items = Items(5, 100);
  items[3].session = 2;
  EXPECT_EQ(CountOfBatch(items, limits), 3u);
  EXPECT_EQ(CountOfBatch(std::span(items).subspan(3), limits), 1u);
}

}  // namespace
}  // namespace cairnfs::fs
