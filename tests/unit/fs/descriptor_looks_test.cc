// Looks at the descriptors of processes, some of which never end.
#include "fs/descriptor_looks.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "../../support/eventually.h"
#include "../../support/virtual_time.h"

namespace cairnfs::fs {
namespace {

// What the threads that look use.
struct SlowProc {
  static constexpr uint32_t kCloses = 10, kWrites = 11, kHangs = 12, kAsksForDescriptors = 13;  // threads

  bool Look(uint32_t thread) {
    if (thread == kAsksForDescriptors) return fcntl(0, F_GETFD) >= 0 || errno != EBADF;
    if (thread != kHangs) return thread == kWrites;
    std::unique_lock lock(mutex);
    hanging++;
    changed.wait(lock, [this] { return !hangs; });
    hanging--;
    return false;
  }
  void Release() {
    const std::lock_guard lock(mutex);
    hangs = false;
    changed.notify_all();
  }
  unsigned Hanging() {
    const std::lock_guard lock(mutex);
    return hanging;
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool hangs = true;
  unsigned hanging = 0;
};

class DescriptorLooksTest : public testing::Test {
 protected:
  static constexpr uint32_t kHonest = 1, kStranger = 2;  // users
  static constexpr uint32_t kCloses = SlowProc::kCloses, kWrites = SlowProc::kWrites, kHangs = SlowProc::kHangs;
  ~DescriptorLooksTest() override {
    looks_.Stop();
    proc_->Release();
    EXPECT_TRUE(Eventually([this] { return proc_->Hanging() == 0; }));
  }
  // Appends to `told`: whether it was told that the process has closed the file.
  void Check(uint32_t uid, uint32_t thread, std::vector<Status>& told, const Context& context = {}) {
    Caller caller;
    caller.uid = uid;
    caller.pid = thread;
    caller.context = context;
    looks_.CheckClosed(caller, InodeId{7}, [this, &told](const Status& closed) {
      MutexLock lock(mutex_);
      told.push_back(closed);
    });
  }
  bool IsTold(const std::vector<Status>& told, size_t count) {
    return Eventually([&] {
      MutexLock lock(mutex_);
      return told.size() == count;
    });
  }

  VirtualTime time_;
  const std::shared_ptr<SlowProc> proc_ = std::make_shared<SlowProc>();
  Mutex mutex_;
  Waits waits_;
  TaskQueue waiters_{"test-waiter", 1};
  DescriptorLooks looks_{{waits_, waiters_}, [proc = proc_](uint32_t thread, InodeId) { return proc->Look(thread); }};
};

TEST_F(DescriptorLooksTest, WhatIsSeenIsTold) {
  std::vector<Status> closes, writes;
  Check(kHonest, kCloses, closes);
  Check(kHonest, kWrites, writes);
  ASSERT_TRUE(IsTold(closes, 1) && IsTold(writes, 1));
  EXPECT_TRUE(closes[0].ok());
  EXPECT_EQ(writes[0].error().code, ErrorCode::kBusy);
}

TEST_F(DescriptorLooksTest, LooksThatHangHoldUpTheirUserAlone) {
  const auto began = Clock::Now();
  constexpr size_t kMany = 3 * DescriptorLooks::kThreads;
  std::vector<Status> hanging, others;
  for (size_t i = 0; i < kMany; i++) Check(kStranger, kHangs, hanging);
  ASSERT_TRUE(Eventually([&] { return proc_->Hanging() == DescriptorLooks::kThreadsOfUser; }));
  for (size_t i = 0; i < kMany; i++) Check(kHonest, kCloses, others);
  ASSERT_TRUE(IsTold(others, kMany));
  EXPECT_LT(Clock::Now(), began + DescriptorLooks::kLookMax);
  for (const Status& told : others) EXPECT_TRUE(told.ok());
  ASSERT_TRUE(IsTold(hanging, kMany));
  EXPECT_GE(Clock::Now(), began + DescriptorLooks::kLookMax);
  for (const Status& told : hanging) EXPECT_EQ(told.error().code, ErrorCode::kBusy) << "nobody could tell in time";
  EXPECT_EQ(proc_->Hanging(), DescriptorLooks::kThreadsOfUser);

  std::vector<Status> later;
  proc_->Release();
  ASSERT_TRUE(Eventually([this] { return proc_->Hanging() == 0; }));
  Check(kStranger, kCloses, later);
  ASSERT_TRUE(IsTold(later, 1));
  EXPECT_TRUE(later[0].ok()) << "its threads are back";
}

TEST_F(DescriptorLooksTest, WhoIsKilledWaitsNoLonger) {
  std::stop_source killed;
  std::vector<Status> told;
  const auto began = Clock::Now();
  Check(kStranger, kHangs, told, Context(killed.get_token()));
  killed.request_stop();
  ASSERT_TRUE(IsTold(told, 1));
  EXPECT_EQ(told[0].error().code, ErrorCode::kInterrupted);
  EXPECT_LT(Clock::Now(), began + DescriptorLooks::kLookMax);
}

TEST_F(DescriptorLooksTest, AThreadThatHangsHoldsNoDescriptors) {
  std::vector<Status> told;
  Check(kHonest, SlowProc::kAsksForDescriptors, told);
  ASSERT_TRUE(IsTold(told, 1));
  EXPECT_TRUE(told[0].ok());
  EXPECT_GE(fcntl(0, F_GETFD), 0) << "all others have theirs";
}

}  // namespace
}  // namespace cairnfs::fs
