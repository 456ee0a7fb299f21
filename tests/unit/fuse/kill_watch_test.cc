#include "fuse/kill_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>

#include "../../support/eventually.h"

namespace cairnfs::fuse {
namespace {

using std::chrono::hours;

class KillWatchTest : public testing::Test {
 protected:
  static constexpr pid_t kGone = 13;
  std::atomic<pid_t> killed_{0};
  std::atomic<int> asked_{0}, asked_of_gone_{0};
  KillWatch watch_{[this](pid_t thread) {
    asked_++;
    if (thread == kGone) asked_of_gone_++;
    return thread == killed_;
  }};
};

TEST_F(KillWatchTest, AContextIsOverOnceTheCallerThatWasInterruptedIsKilled) {
  void *id = nullptr, *other_id = nullptr;
  const Context context = watch_.MakeContext(12, &id), other = watch_.MakeContext(14, &other_id);
  EXPECT_NE(id, other_id);
  watch_.NoteInterrupted(id);
  watch_.NoteInterrupted(other_id);
  EXPECT_TRUE(Eventually([&] { return asked_ > 4; })) << "a signal that is no kill may be followed by one";
  EXPECT_FALSE(context.Expired());
  killed_ = 12;
  EXPECT_FALSE(context.Sleep(hours(1)));
  EXPECT_FALSE(other.Expired());
}

TEST_F(KillWatchTest, NobodyIsLookedAtWhoWasNotInterrupted) {
  void* id = nullptr;
  const Context context = watch_.MakeContext(12, &id);
  killed_ = 12;
  void* other_id = nullptr;
  const Context other = watch_.MakeContext(12, &other_id);
  watch_.NoteInterrupted(other_id);
  EXPECT_FALSE(other.Sleep(hours(1)));
  EXPECT_FALSE(context.Expired());
}

TEST_F(KillWatchTest, ARequestForWhichNobodyWaitsIsForgotten) {
  void* id = nullptr;
  std::optional<Context> context = watch_.MakeContext(12, &id);
  const Context copy = context->WithTimeout(hours(1));
  context.reset();
  watch_.NoteInterrupted(id);
  EXPECT_TRUE(Eventually([&] { return asked_ > 0; })) << "a context made of it is left";

  std::optional<Context> gone = watch_.MakeContext(kGone, &id);
  watch_.NoteInterrupted(id);
  EXPECT_TRUE(Eventually([&] { return asked_of_gone_ > 0; }));
  gone.reset();
  watch_.NoteInterrupted(id);
  // A look that runs may have begun before. Two later, none asks of it.
  const int of_a_look = asked_;
  EXPECT_TRUE(Eventually([&] { return asked_ >= of_a_look + 3; }));
  const int of_gone = asked_of_gone_, before = asked_;
  EXPECT_TRUE(Eventually([&] { return asked_ >= before + 3; }));
  EXPECT_EQ(asked_of_gone_, of_gone);
}

TEST(KillWatch, AContextMayOutliveTheWatch) {
  std::optional<Context> context;
  {
    KillWatch watch([](pid_t) { return false; });
    void* id = nullptr;
    context = watch.MakeContext(12, &id);
    watch.NoteInterrupted(id);
  }
  EXPECT_FALSE(context->Expired());
  context.reset();
}

}  // namespace
}  // namespace cairnfs::fuse
