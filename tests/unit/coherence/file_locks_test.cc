// What every FileLocks does: those of a host alone, and those of one host of a cluster.
#include "coherence/file_locks.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <thread>

#include "coherence/local_locks.h"
#include "locks_fixture.h"

namespace cairnfs::coherence {
namespace {

constexpr InodeId kOther{101};

class World {
 public:
  virtual ~World() = default;
  virtual FileLocks& locks() = 0;
};

class LocalWorld final : public World {
 public:
  FileLocks& locks() override { return locks_; }

 private:
  LocalLocks locks_;
};

class ClusterWorld final : public World {
 public:
  ClusterWorld() {
    engine_ = kv::OpenMemoryEngine();
    store_ = *kv::HostedStore::Open(*engine_);
    cluster::MembershipOptions options;
    options.self.id.bytes[0] = std::byte{1};
    options.self.name = "host";
    options.lease = std::chrono::minutes(10);
    options.renew_every = std::chrono::minutes(3);
    membership_ = *cluster::Membership::Join(*store_, options);
    fenced_ = MakeFencedStore(*store_, *membership_);
    locks_ = std::make_unique<ClusterLocks>(ClusterLocks::Parts{*store_, *fenced_, *membership_});
  }
  FileLocks& locks() override { return *locks_; }

 private:
  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::unique_ptr<cluster::Membership> membership_;
  std::unique_ptr<kv::KvStore> fenced_;
  std::unique_ptr<ClusterLocks> locks_;
};

struct Asked : Wait {
  Outcome Get() {
    EXPECT_TRUE(IsOver(kSoon));
    const Result<Outcome> result = outcome.get();
    EXPECT_TRUE(result.ok()) << result.error().message;
    return result.ok() ? *result : Outcome::kWouldBlock;
  }
};

using MakeWorld = std::unique_ptr<World> (*)();

class FileLocksTest : public ::testing::TestWithParam<MakeWorld> {
 protected:
  FileLocks& locks() { return world_->locks(); }

  static Request On(InodeId inode, Request request) {
    request.inode = inode;
    return request;
  }
  Outcome Try(const Request& request) {
    std::promise<Result<Outcome>> told;
    locks().TryLock(request, [&](Result<Outcome> outcome) { told.set_value(std::move(outcome)); });
    const Result<Outcome> outcome = told.get_future().get();
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return outcome.ok() ? *outcome : Outcome::kInterrupted;
  }
  Asked Lock(const Request& request) {
    auto told = std::make_shared<std::promise<Result<Outcome>>>();
    Asked wait;
    wait.outcome = told->get_future();
    wait.ticket = locks().Lock(request, [told](Result<Outcome> outcome) { told->set_value(std::move(outcome)); });
    return wait;
  }
  void Unlock(const Request& request) {
    std::promise<Status> told;
    locks().Unlock(request, [&](const Status& status) { told.set_value(status); });
    EXPECT_TRUE(told.get_future().get().ok());
  }
  void Close(uint64_t owner) {
    std::promise<Status> told;
    locks().ReleaseOwner(kFile, owner, [&](const Status& status) { told.set_value(status); });
    EXPECT_TRUE(told.get_future().get().ok());
  }
  std::optional<FileLocks::Holder> Test(const Request& request) {
    std::promise<Result<std::optional<FileLocks::Holder>>> told;
    locks().Test(request, [&](auto holder) { told.set_value(std::move(holder)); });
    auto holder = told.get_future().get();
    EXPECT_TRUE(holder.ok());
    return holder.ok() ? *holder : std::nullopt;
  }

  std::unique_ptr<World> world_ = GetParam()();
};

TEST_P(FileLocksTest, RangesOfOwners) {
  EXPECT_EQ(Try(Posix(1, kExclusive, 10, 19)), Outcome::kGranted);
  EXPECT_EQ(Try(Posix(2, kShared, 0, 10)), Outcome::kWouldBlock);
  EXPECT_EQ(Try(Posix(2, kExclusive, 20, 29)), Outcome::kGranted);
  EXPECT_EQ(Try(On(kOther, Posix(2, kExclusive, 10, 19))), Outcome::kGranted);
  const auto holder = Test(Posix(3, kShared, 12, 100));
  ASSERT_TRUE(holder.has_value());
  EXPECT_EQ(holder->type, kExclusive);
  EXPECT_EQ(holder->start, 10U);
  EXPECT_EQ(holder->last, 19U);
  EXPECT_EQ(holder->pid, 1U);
  Unlock(Posix(1, kExclusive, 10, 14));
  EXPECT_EQ(Test(Posix(3, kShared, 0, 14)), std::nullopt);
  EXPECT_EQ(Test(Posix(3, kShared, 0, 15))->start, 15U);
}

TEST_P(FileLocksTest, TheTwoKindsDoNotSeeEachOther) {
  EXPECT_EQ(Try(Posix(1, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(Flock(7, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(Flock(8, kShared)), Outcome::kWouldBlock);
  EXPECT_TRUE(locks().MayHoldOf(kFile, 1));
  EXPECT_TRUE(locks().MayHoldThrough(kFile, 7));
}

TEST_P(FileLocksTest, AFlockIsConverted) {
  EXPECT_EQ(Try(Flock(1, kShared)), Outcome::kGranted);
  EXPECT_EQ(Try(Flock(1, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(Flock(2, kShared)), Outcome::kWouldBlock);
  Asked reader = Lock(Flock(2, kShared));
  EXPECT_EQ(Try(Flock(1, kShared)), Outcome::kGranted);
  EXPECT_EQ(reader.Get(), Outcome::kGranted);
  // As flock(2) has it: the old one is gone when the new one is refused.
  EXPECT_EQ(Try(Flock(1, kExclusive)), Outcome::kWouldBlock);
  Unlock(Flock(2, kShared));
  EXPECT_EQ(Try(Flock(3, kExclusive)), Outcome::kGranted);
}

TEST_P(FileLocksTest, WhoWaitedFirstHasItFirst) {
  EXPECT_EQ(Try(Posix(1, kExclusive)), Outcome::kGranted);
  Asked first = Lock(Posix(2, kExclusive));
  EXPECT_FALSE(first.IsOver(kWhile));
  Asked second = Lock(Posix(3, kExclusive));
  EXPECT_FALSE(second.IsOver(kWhile));
  Unlock(Posix(1, kExclusive));
  EXPECT_EQ(first.Get(), Outcome::kGranted);
  EXPECT_FALSE(second.IsOver(kWhile));
  Close(2);
  EXPECT_EQ(second.Get(), Outcome::kGranted);
}

TEST_P(FileLocksTest, ALockThatBecomesLessLetsOthersIn) {
  EXPECT_EQ(Try(Posix(1, kExclusive, 0, 99)), Outcome::kGranted);
  Asked reader = Lock(Posix(2, kShared, 0, 9));
  EXPECT_FALSE(reader.IsOver(kWhile));
  EXPECT_EQ(Try(Posix(1, kShared, 0, 99)), Outcome::kGranted);
  EXPECT_EQ(reader.Get(), Outcome::kGranted);
}

TEST_P(FileLocksTest, TheOpenFileTakesWhatWasLockedThroughIt) {
  EXPECT_EQ(Try(Flock(5, kExclusive)), Outcome::kGranted);
  Request ofd = Posix(99, kExclusive);
  ofd.handle = 5;
  EXPECT_EQ(Try(ofd), Outcome::kGranted);
  Asked flock = Lock(Flock(6, kExclusive)), record = Lock(Posix(7, kExclusive));
  EXPECT_FALSE(flock.IsOver(kWhile));
  locks().ReleaseHandle(kFile, 5);
  EXPECT_EQ(flock.Get(), Outcome::kGranted);
  EXPECT_EQ(record.Get(), Outcome::kGranted);
}

TEST_P(FileLocksTest, AnInterruptedWaitLeavesNothing) {
  EXPECT_EQ(Try(Posix(1, kExclusive)), Outcome::kGranted);
  Asked wait = Lock(Posix(2, kExclusive));
  EXPECT_FALSE(wait.IsOver(kWhile));
  locks().Cancel(kFile, wait.ticket);
  EXPECT_EQ(wait.Get(), Outcome::kInterrupted);
  locks().Cancel(kFile, wait.ticket);  // over: without effect
  Unlock(Posix(1, kExclusive));
  EXPECT_EQ(Try(Posix(3, kExclusive)), Outcome::kGranted);
}

TEST_P(FileLocksTest, AnInterruptThatMeetsTheGrantEndsInOneOfThem) {
  for (int i = 0; i < 100; ++i) {
    ASSERT_EQ(Try(Posix(1, kExclusive)), Outcome::kGranted);
    Asked wait = Lock(Posix(2, kExclusive));
    std::thread canceller([&] { locks().Cancel(kFile, wait.ticket); });
    Unlock(Posix(1, kExclusive));
    canceller.join();
    const bool is_granted = wait.Get() == Outcome::kGranted;
    ASSERT_EQ(Try(Posix(3, kExclusive)), is_granted ? Outcome::kWouldBlock : Outcome::kGranted);
    Unlock(Posix(2, kExclusive));
    Unlock(Posix(3, kExclusive));
  }
}

TEST_P(FileLocksTest, ACycleOfWaitsIsRefused) {
  EXPECT_EQ(Try(Posix(1, kExclusive, 0, 9)), Outcome::kGranted);
  EXPECT_EQ(Try(Posix(2, kExclusive, 10, 19)), Outcome::kGranted);
  EXPECT_EQ(Try(On(kOther, Posix(3, kExclusive))), Outcome::kGranted);
  Asked one = Lock(Posix(1, kExclusive, 10, 19));
  EXPECT_FALSE(one.IsOver(kWhile));
  Asked three = Lock(Posix(3, kExclusive, 0, 9));  // no cycle yet
  EXPECT_FALSE(three.IsOver(kWhile));
  EXPECT_EQ(Lock(On(kOther, Posix(2, kExclusive))).Get(), Outcome::kDeadlock);
  EXPECT_FALSE(one.IsOver(kWhile));
  Close(2);
  EXPECT_EQ(one.Get(), Outcome::kGranted);
  Close(1);
  EXPECT_EQ(three.Get(), Outcome::kGranted);
  // Those waits are over, and close no cycle any more.
  EXPECT_EQ(Try(Posix(1, kExclusive, 100, 109)), Outcome::kGranted);
  Asked again = Lock(Posix(1, kExclusive, 0, 9));
  EXPECT_FALSE(again.IsOver(kWhile));
  Close(3);
  EXPECT_EQ(again.Get(), Outcome::kGranted);
}

TEST_P(FileLocksTest, FlocksMakeNoCycle) {
  EXPECT_EQ(Try(Flock(1, kExclusive)), Outcome::kGranted);
  Request other = On(kOther, Flock(2, kExclusive));
  EXPECT_EQ(Try(other), Outcome::kGranted);
  Asked one = Lock(On(kOther, Flock(1, kExclusive))), two = Lock(Flock(2, kExclusive));
  EXPECT_FALSE(two.IsOver(kWhile));
  locks().Cancel(kFile, two.ticket);
  EXPECT_EQ(two.Get(), Outcome::kInterrupted);
  Unlock(other);
  EXPECT_EQ(one.Get(), Outcome::kGranted);
}

TEST_P(FileLocksTest, TheEndOfTheMountEndsWaits) {
  EXPECT_EQ(Try(Posix(1, kExclusive)), Outcome::kGranted);
  EXPECT_EQ(Try(Flock(1, kExclusive)), Outcome::kGranted);
  Asked record = Lock(Posix(2, kExclusive)), flock = Lock(Flock(2, kExclusive));
  locks().EndWaits();
  EXPECT_EQ(record.Get(), Outcome::kInterrupted);
  EXPECT_EQ(flock.Get(), Outcome::kInterrupted);
  EXPECT_EQ(Lock(Posix(2, kExclusive)).Get(), Outcome::kInterrupted);
}

INSTANTIATE_TEST_SUITE_P(Local, FileLocksTest,
                         ::testing::Values(+[]() -> std::unique_ptr<World> { return std::make_unique<LocalWorld>(); }));
INSTANTIATE_TEST_SUITE_P(Cluster, FileLocksTest, ::testing::Values(+[]() -> std::unique_ptr<World> {
                           return std::make_unique<ClusterWorld>();
                         }));

}  // namespace
}  // namespace cairnfs::coherence
