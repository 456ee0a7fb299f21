// What LocalLocks do beyond what every FileLocks does: tries that a close may let in.
#include "coherence/local_locks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../support/eventually.h"

namespace cairnfs::coherence {
namespace {

using Outcome = LockOutcome;
constexpr InodeId kFile{100};

class LocalLocksTest : public testing::Test {
 protected:
  static FileLocks::Request Flock(uint64_t handle, LockType type = LockType::kExclusive) {
    FileLocks::Request request;
    request.inode = kFile;
    request.kind = LockKind::kFlock;
    request.handle = handle;
    request.type = type;
    return request;
  }
  struct Tried {
    std::atomic<bool> is_over{false};
    std::atomic<Outcome> outcome{Outcome::kInterrupted};
    std::thread::id answered_by;
  };
  std::shared_ptr<Tried> Try(uint64_t handle, LockType type = LockType::kExclusive) {
    auto tried = std::make_shared<Tried>();
    locks_.TryLock(Flock(handle, type), [tried](const Result<Outcome>& outcome) {
      EXPECT_TRUE(outcome.ok());
      if (outcome.ok()) tried->outcome = *outcome;
      tried->answered_by = std::this_thread::get_id();
      tried->is_over = true;
    });
    return tried;
  }
  static bool Ends(const Tried& tried) {
    return Eventually([&] { return tried.is_over.load(); });
  }

  LocalLocks locks_;
};

TEST_F(LocalLocksTest, ATryAfterTheCloseGetsWhatTheCloseFrees) {
  EXPECT_EQ(Try(1)->outcome, Outcome::kGranted);
  locks_.NoteClosed(kFile, 1);
  const auto tried = Try(2);
  EXPECT_FALSE(tried->is_over);
  locks_.ReleaseHandle(kFile, 1);
  EXPECT_TRUE(tried->is_over) << "the release answers it";
  EXPECT_EQ(tried->outcome, Outcome::kGranted);
  EXPECT_EQ(Try(3)->outcome, Outcome::kWouldBlock);
}

TEST_F(LocalLocksTest, WithoutACloseATryIsRefusedAtOnce) {
  EXPECT_EQ(Try(1)->outcome, Outcome::kGranted);
  const auto tried = Try(2);
  EXPECT_TRUE(tried->is_over);
  EXPECT_EQ(tried->outcome, Outcome::kWouldBlock);
}

// As the processes do that a shell with the lock runs: each has a copy of the descriptor, and closes it as it exits.
TEST_F(LocalLocksTest, ATryIsRefusedInTimeHoweverManyCopiesAreClosed) {
  EXPECT_EQ(Try(1)->outcome, Outcome::kGranted);
  locks_.NoteClosed(kFile, 1);
  const auto begun = Clock::Now();
  std::vector<std::shared_ptr<Tried>> all;
  for (uint64_t handle = 2; handle < 100; handle++) all.push_back(Try(handle));
  while (!all.back()->is_over && Clock::Now() < begun + std::chrono::seconds(10)) {
    locks_.NoteClosed(kFile, 1);
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
  EXPECT_LE(Clock::Now() - begun, 2 * LocalLocks::kTryFor);  // by the clock of the test
  for (const auto& tried : all) {
    ASSERT_TRUE(Ends(*tried));
    EXPECT_EQ(tried->outcome, Outcome::kWouldBlock);
    EXPECT_NE(tried->answered_by, std::this_thread::get_id()) << "who asked does not wait";
  }
  locks_.ReleaseHandle(kFile, 1);
  EXPECT_EQ(Try(2)->outcome, Outcome::kGranted) << "those that were refused left nothing";
}

size_t CountThreadsOfLocks() {
  size_t count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(thread.path() / "comm");
    std::string name;
    count += std::getline(file, name) && name == "locks" ? 1 : 0;
  }
  return count;
}

TEST_F(LocalLocksTest, NoThreadIsThereBeforeSomebodyWaits) {
  EXPECT_EQ(Try(1)->outcome, Outcome::kGranted);
  EXPECT_EQ(Try(2)->outcome, Outcome::kWouldBlock);
  EXPECT_EQ(CountThreadsOfLocks(), 0U);
  auto waited = std::make_shared<std::atomic<bool>>(false);
  const auto ticket = locks_.Lock(Flock(3), [waited](const Result<Outcome>&) { *waited = true; });
  EXPECT_TRUE(Eventually([] { return CountThreadsOfLocks() == 1; }));
  locks_.Cancel(kFile, ticket);
  EXPECT_TRUE(Eventually([&] { return waited->load(); }));
}

TEST_F(LocalLocksTest, ATryThatWaitsStandsInNobodysWay) {
  EXPECT_EQ(Try(1, LockType::kShared)->outcome, Outcome::kGranted);
  locks_.NoteClosed(kFile, 1);
  const auto writer = Try(2);
  EXPECT_FALSE(writer->is_over);
  EXPECT_EQ(Try(3, LockType::kShared)->outcome, Outcome::kGranted);
  locks_.EndWaits();
  EXPECT_EQ(writer->outcome, Outcome::kInterrupted);
}

}  // namespace
}  // namespace cairnfs::coherence
