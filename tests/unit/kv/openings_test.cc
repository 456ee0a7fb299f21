#include "kv/openings.h"

#include <gtest/gtest.h>

#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

constexpr size_t kBytesEach = 16;

std::string Recorded(KvEngine& engine) {
  auto text = engine.Get(kOpeningsKey);
  EXPECT_TRUE(text.ok() && text->has_value());
  return text.ok() ? text->value_or("") : "";
}

TEST(Openings, AStateIsKnownByTheOpeningThatMadeIt) {
  auto engine = OpenMemoryEngine();
  auto first = Openings::Begin(*engine, 10), second = Openings::Begin(*engine, 20);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->current(), second->current());
  EXPECT_TRUE(second->Contain(first->current(), 15));
  EXPECT_TRUE(second->Contain(first->current(), 20));
  EXPECT_FALSE(second->Contain(first->current(), 21)) << "the next one began before";
  EXPECT_TRUE(second->Contain(second->current(), 1000));
  EXPECT_FALSE(second->Contain(second->current() + 1, 15));
  EXPECT_FALSE(Openings().Contain(first->current(), 15));
}

TEST(Openings, TheOldestAreForgotten) {
  auto engine = OpenMemoryEngine();
  auto first = Openings::Begin(*engine, 1);
  ASSERT_TRUE(first.ok());
  Result<Openings> last = *first;
  for (size_t i = 1; i < Openings::kKept; ++i) last = Openings::Begin(*engine, 1 + i);
  ASSERT_TRUE(last.ok());
  EXPECT_TRUE(last->Contain(first->current(), 1));
  last = Openings::Begin(*engine, 1000);
  ASSERT_TRUE(last.ok());
  EXPECT_FALSE(last->Contain(first->current(), 1));
  EXPECT_EQ(Recorded(*engine).size(), Openings::kKept * kBytesEach);
}

// At the end of an opening it is a list of fewer: an engine keeps a value as a whole, or not.
TEST(Openings, ARecordThatIsCutShortIsRefused) {
  auto engine = OpenMemoryEngine();
  for (uint64_t revision : {10, 20, 30}) ASSERT_TRUE(Openings::Begin(*engine, revision).ok());
  const std::string text = Recorded(*engine);
  ASSERT_EQ(text.size(), 3 * kBytesEach);
  for (size_t size = 0; size < text.size(); ++size) {
    const EngineWrite cut{std::string(kOpeningsKey), text.substr(0, size)};
    ASSERT_TRUE(engine->Write({cut}, WriteMode::kSynced).ok());
    auto begun = Openings::Begin(*engine, 40);
    EXPECT_EQ(begun.ok(), size % kBytesEach == 0) << size;
    if (begun.ok()) {
      EXPECT_EQ(Recorded(*engine).size(), size + kBytesEach);
    } else {
      EXPECT_EQ(begun.error().code, ErrorCode::kCorrupt);
      EXPECT_EQ(Recorded(*engine), *cut.value) << "nothing is written over it";
    }
  }
}

}  // namespace
}  // namespace cairnfs::kv
