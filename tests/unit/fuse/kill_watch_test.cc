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
  std::atomic<pid_t> killed_{0};
  std::atomic<int> asked_{0};
  KillWatch watch_{[this](pid_t thread) {
    asked_++;
    return thread == killed_;
  }};
};

TEST_F(KillWatchTest, AContextIsOverOnceTheCallerThatWasInterruptedIsKilled) {
  uint64_t id = 0, other_id = 0;
  const Context context = watch_.MakeContext(12, &id), other = watch_.MakeContext(13, &other_id);
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
  uint64_t id = 0;
  const Context context = watch_.MakeContext(12, &id);
  killed_ = 12;
  uint64_t other_id = 0;
  const Context other = watch_.MakeContext(12, &other_id);
  watch_.NoteInterrupted(other_id);
  EXPECT_FALSE(other.Sleep(hours(1)));
  EXPECT_FALSE(context.Expired());
}

TEST_F(KillWatchTest, ARequestForWhichNobodyWaitsIsForgotten) {
  uint64_t id = 0;
  std::optional<Context> context = watch_.MakeContext(12, &id);
  const Context copy = context->WithTimeout(hours(1));
  context.reset();
  watch_.NoteInterrupted(id);
  EXPECT_TRUE(Eventually([&] { return asked_ > 0; })) << "a context made of it is left";
  std::optional<Context> gone = watch_.MakeContext(13, &id);
  gone.reset();
  killed_ = 13;
  watch_.NoteInterrupted(id);
  EXPECT_FALSE(copy.IsStopped());
}

TEST(KillWatch, AContextMayOutliveTheWatch) {
  std::optional<Context> context;
  {
    KillWatch watch([](pid_t) { return false; });
    uint64_t id = 0;
    context = watch.MakeContext(12, &id);
    watch.NoteInterrupted(id);
  }
  EXPECT_FALSE(context->Expired());
  context.reset();
}

}  // namespace
}  // namespace cairnfs::fuse
