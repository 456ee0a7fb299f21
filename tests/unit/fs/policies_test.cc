// When policies of directories are applied, and by which host.
#include "fs/policies.h"

#include "cairnfs/cairnfs.h"
#include "cluster_fixture.h"
#include "fixture.h"
#include "meta/policy_records.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kUser = 1000;
constexpr std::chrono::seconds kPromised{60};  // what docs/commits.md promises
constexpr std::chrono::seconds kQuiet{30};     // longer than it rests

Caller ByUser() {
  Caller caller;
  caller.uid = kUser;
  return caller;
}

InodeId MakeDirectoryIn(FileSystem& fs, InodeId parent, std::string_view name) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0755;
  params.uid = kUser;
  auto made = fs.names().MakeNode({}, parent, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

Status GivePolicy(FileSystem& fs, InodeId run) {
  return fs.attributes().SetXattr(ByUser(), run, CAIRNFS_XATTR_RETAIN, R"({"keep_last":2})",
                                  meta::Namespace::XattrMode::kSet);
}

void CommitIn(FileSystem& fs, InodeId run, const std::string& name) {
  MakeDirectoryIn(fs, kRootInode, name + ".tmp");
  meta::RenameParams params{kRootInode, name + ".tmp", run, name};
  ASSERT_TRUE(Host::Await<void>([&](Done<void> done) { fs.names().Rename(params, {}, std::move(done)); }).ok());
}

Result<std::string> LastTimeOf(FileSystem& fs, InodeId run, const Caller& caller = {}) {
  return Host::Await<std::string>(
      [&](Done<std::string> done) { fs.attributes().GetXattr(run, CAIRNFS_XATTR_RETAINED, std::move(done), caller); });
}

// Notes each run, and answers what the test says.
struct FakeRunner {
  void StartOn(FileSystem& fs) {
    fs.policies().Start([this](const Context& context, const PolicyJob& job) {
      std::unique_lock lock(mutex);
      jobs.push_back(job);
      const bool waits = hangs;
      const retention::Report answer = report;
      lock.unlock();
      while (waits && context.Sleep(std::chrono::seconds(1))) {
      }
      return answer;
    });
  }
  size_t count() {
    std::lock_guard lock(mutex);
    return jobs.size();
  }
  // Whether there have been so many in all, as soon as is promised.
  bool Await(size_t times) {
    const auto end = Clock::Now() + kPromised;
    while (count() < times && Clock::Now() < end) Clock::SleepFor(std::chrono::seconds(1));
    return count() == times;
  }
  // Whether there are no others for so long.
  bool IsQuiet(std::chrono::seconds time = kQuiet) {
    const size_t before = count();
    Clock::SleepFor(time);
    return count() == before;
  }
  void Answer(retention::Report with) {
    std::lock_guard lock(mutex);
    report = std::move(with);
  }
  std::mutex mutex;
  std::vector<PolicyJob> jobs;
  retention::Report report;
  bool hangs = false;
};

TEST(PoliciesTest, AppliedOnceSomethingChanged) {
  FakeRunner runner;
  World world;
  runner.StartOn(*world.fs);
  const InodeId above = MakeDirectoryIn(*world.fs, kRootInode, "models"),
                run = MakeDirectoryIn(*world.fs, above, "run");
  EXPECT_TRUE(runner.IsQuiet()) << "it has no policy";
  ASSERT_TRUE(GivePolicy(*world.fs, run).ok());
  ASSERT_TRUE(runner.Await(1));
  EXPECT_TRUE(runner.IsQuiet()) << "nothing has changed";
  EXPECT_EQ(runner.jobs[0].path, "models/run");
  EXPECT_EQ(runner.jobs[0].owner, kUser);
  EXPECT_TRUE(LastTimeOf(*world.fs, run, ByUser()).ok());
  Caller stranger;
  stranger.uid = kUser + 1;
  EXPECT_EQ(LastTimeOf(*world.fs, run, stranger).error().code, ErrorCode::kPermission);
  CommitIn(*world.fs, run, "step-1");
  EXPECT_TRUE(runner.Await(2));
  const auto step = world.fs->names().Lookup({}, run, "step-1");
  ASSERT_TRUE(step.ok());
  const auto set = [&](const char* name, const char* value) {
    return world.fs->attributes().SetXattr(ByUser(), step->inode, name, value, meta::Namespace::XattrMode::kSet);
  };
  ASSERT_TRUE(set(CAIRNFS_XATTR_PINNED, "1").ok());
  EXPECT_TRUE(runner.IsQuiet()) << "a pin lets nothing go";
  ASSERT_TRUE(world.fs->attributes().RemoveXattr(ByUser(), step->inode, CAIRNFS_XATTR_PINNED).ok());
  EXPECT_TRUE(runner.Await(3));
  ASSERT_TRUE(set(CAIRNFS_XATTR_METRIC_PREFIX "loss", "0.5").ok());
  EXPECT_TRUE(runner.Await(4));
  world.fs->policies().SetReadOnly(true);
  CommitIn(*world.fs, run, "step-2");
  EXPECT_TRUE(runner.IsQuiet());
  world.fs->policies().SetReadOnly(false);
  EXPECT_TRUE(runner.Await(5));
  retention::Report none;
  none.has_policy = false;
  runner.Answer(none);
  ASSERT_TRUE(world.fs->attributes().RemoveXattr(ByUser(), run, CAIRNFS_XATTR_RETAIN).ok());
  EXPECT_TRUE(runner.Await(6)) << "for what a removal may have left";
  CommitIn(*world.fs, run, "step-3");
  EXPECT_TRUE(runner.IsQuiet());
  EXPECT_EQ(LastTimeOf(*world.fs, run).error().code, ErrorCode::kNoData);
}

// Of a host that died, or was cut off. Until then nothing that a policy lets go can be removed.
TEST(PoliciesTest, ASealThatWasBegunAndLeftEnds) {
  FakeRunner runner;
  World world;
  runner.StartOn(*world.fs);
  const InodeId left = MakeDirectoryIn(*world.fs, kRootInode, "left"),
                whole = MakeDirectoryIn(*world.fs, kRootInode, "whole");
  ASSERT_TRUE(world.names->MarkSealing({}, left, meta::Namespace::SealFor::kItself).ok());
  const auto marked = world.names->MarkSealing({}, whole, meta::Namespace::SealFor::kItself);
  ASSERT_TRUE(marked.ok());
  ASSERT_TRUE(world.names->EndSealing({}, whole, *marked, meta::Namespace::SealEnd::kSeal).ok());
  Clock::SleepFor(std::chrono::minutes(4));
  EXPECT_EQ(*world.names->SealOf({}, left), meta::SealState::kSealing);
  Clock::SleepFor(std::chrono::minutes(3));
  EXPECT_EQ(*world.names->SealOf({}, left), meta::SealState::kNone);
  EXPECT_EQ(*world.names->SealOf({}, whole), meta::SealState::kSealed);
}

TEST(PoliciesTest, OneOfAnEarlierOwnerEnds) {
  FakeRunner runner;
  World world;
  runner.StartOn(*world.fs);
  const InodeId run = MakeDirectoryIn(*world.fs, kRootInode, "run");
  ASSERT_TRUE(GivePolicy(*world.fs, run).ok());
  ASSERT_TRUE(runner.Await(1));
  meta::AttrChanges changes;
  changes.uid = kUser + 1;
  retention::Report none;
  none.has_policy = false;
  runner.Answer(none);
  ASSERT_TRUE(world.names->SetAttr({}, run, changes).ok());
  EXPECT_FALSE(world.names->GetXattr({}, run, CAIRNFS_XATTR_RETAIN).ok()) << "the next owner has not given it";
  EXPECT_TRUE(runner.Await(2)) << "for what a removal may have left";
  EXPECT_EQ(runner.jobs[1].owner, kUser + 1);
  CommitIn(*world.fs, run, "step-1");
  EXPECT_TRUE(runner.IsQuiet());
  EXPECT_EQ(LastTimeOf(*world.fs, run).error().code, ErrorCode::kNoData);
}

TEST(PoliciesTest, EachOfAnOwnersDirectoriesHasItsTurn) {
  FakeRunner runner;
  World world;
  runner.StartOn(*world.fs);
  for (const char* name : {"a", "b", "c", "d"}) {
    ASSERT_TRUE(GivePolicy(*world.fs, MakeDirectoryIn(*world.fs, kRootInode, name)).ok());
  }
  EXPECT_TRUE(runner.Await(4));
}

TEST(PoliciesTest, AppliedWhenATimeIsOver) {
  FakeRunner runner;
  World world;
  const InodeId run = MakeDirectoryIn(*world.fs, kRootInode, "run");
  ASSERT_TRUE(GivePolicy(*world.fs, run).ok());
  retention::Report held;
  held.next = Clock::WallTime().seconds + 200;
  runner.Answer(held);
  runner.StartOn(*world.fs);
  EXPECT_TRUE(runner.Await(1));
  EXPECT_TRUE(runner.IsQuiet(std::chrono::seconds(180)));
  runner.Answer({});
  EXPECT_TRUE(runner.Await(2));
}

TEST(PoliciesTest, AStopEndsWhatRunsAndItIsDueAgain) {
  FakeRunner runner;
  World world;
  runner.hangs = true;
  const InodeId run = MakeDirectoryIn(*world.fs, kRootInode, "run");
  ASSERT_TRUE(GivePolicy(*world.fs, run).ok());
  runner.StartOn(*world.fs);
  ASSERT_TRUE(runner.Await(1));
  world.fs->policies().Pause(std::chrono::seconds(30), std::chrono::seconds(10));
  EXPECT_TRUE(runner.IsQuiet(std::chrono::seconds(25)));
  EXPECT_TRUE(runner.Await(2));
  world.fs->policies().Stop();
  EXPECT_TRUE(runner.IsQuiet());
  EXPECT_EQ(LastTimeOf(*world.fs, run).error().code, ErrorCode::kNoData) << "it was never done";
}

TEST(PoliciesTest, KeysWithoutAPolicyGo) {
  FakeRunner runner;
  World world;
  retention::Report none;
  none.has_policy = false;
  runner.Answer(none);
  const InodeId run = MakeDirectoryIn(*world.fs, kRootInode, "run");
  ASSERT_TRUE(GivePolicy(*world.fs, run).ok());
  runner.StartOn(*world.fs);
  EXPECT_TRUE(runner.Await(1));
  EXPECT_TRUE(runner.IsQuiet());
  const auto key = world.kv->Get({}, meta::PolicyKey(run));
  ASSERT_TRUE(key.ok());
  EXPECT_FALSE(*key);
}

// What a command without a policy leaves when it is killed has to be found without a walk.
TEST(PoliciesTest, ARemovalInADirectoryWithoutAPolicyIsLookedAfter) {
  FakeRunner runner;
  World world;
  const InodeId run = MakeDirectoryIn(*world.fs, kRootInode, "run");
  const auto move = [&](InodeId parent, const std::string& from, const std::string& to) {
    meta::RenameParams params{parent, from, parent, to};
    return World::Await<void>([&](Done<void> done) { world.fs->names().Rename(params, {}, std::move(done)); });
  };
  const std::string going = retention::GoingName("abcdefghijklmnop", "step-1");
  CommitIn(*world.fs, run, "step-1");
  MakeDirectoryIn(*world.fs, kRootInode, "step-1");
  runner.StartOn(*world.fs);
  ASSERT_TRUE(move(kRootInode, "step-1", going).ok());
  EXPECT_TRUE(runner.IsQuiet()) << "the root is no run";
  ASSERT_TRUE(move(run, "step-1", going).ok());
  ASSERT_TRUE(runner.Await(1));
  EXPECT_EQ(runner.jobs[0].directory, run);
  // It is done, and comes back; then there is no policy, and nothing to look after.
  retention::Report none;
  none.has_policy = false;
  runner.Answer(none);
  ASSERT_TRUE(move(run, going, "step-1").ok());
  EXPECT_TRUE(runner.IsQuiet());
  ASSERT_TRUE(move(run, "step-1", going).ok());
  ASSERT_TRUE(runner.Await(2));
  EXPECT_TRUE(runner.IsQuiet());
  EXPECT_FALSE(*world.kv->Get({}, meta::PolicyKey(run)));
}

class ClusterPoliciesTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(3);
    run_ = MakeDirectoryIn(*host(0).fs, kRootInode, "run");
    ASSERT_TRUE(GivePolicy(*host(0).fs, run_).ok());
  }
  void TearDown() override {
    for (size_t i = 0; i < 3; ++i) {
      if (host(i).fs) host(i).fs->policies().Stop();
    }
    ClusterTest::TearDown();
  }
  InodeId run_;
  FakeRunner runners_[3];
};

TEST_F(ClusterPoliciesTest, OneHostAppliesAndAnotherTakesOver) {
  runners_[1].StartOn(*host(1).fs);
  ASSERT_TRUE(runners_[1].Await(1));
  runners_[0].StartOn(*host(0).fs);
  runners_[2].StartOn(*host(2).fs);
  CommitIn(*host(2).fs, run_, "step-1");
  EXPECT_TRUE(runners_[1].Await(2)) << "by the one that began, whoever commits";
  EXPECT_EQ(runners_[0].count() + runners_[2].count(), 0u);
  host(1).Die();
  CommitIn(*host(2).fs, run_, "step-2");
  const size_t before = runners_[1].count();
  EXPECT_TRUE(Eventually([&] { return runners_[0].count() + runners_[2].count() == 1; }));
  EXPECT_EQ(runners_[1].count(), before);
}

TEST_F(ClusterPoliciesTest, AReadOnlyHostLeavesItToAnother) {
  runners_[1].StartOn(*host(1).fs);
  ASSERT_TRUE(runners_[1].Await(1));
  runners_[2].StartOn(*host(2).fs);
  host(1).fs->policies().SetReadOnly(true);
  CommitIn(*host(0).fs, run_, "step-1");
  EXPECT_TRUE(runners_[2].Await(1));
  EXPECT_EQ(runners_[1].count(), 1u);
}

TEST_F(ClusterPoliciesTest, FilesThatAreOpenOnOtherHostsCount) {
  const InodeId step = MakeDirectoryIn(*host(0).fs, run_, "step-1"), deep = MakeDirectoryIn(*host(1).fs, step, "deep");
  const auto count = [&] {
    const auto text = Host::Await<std::string>([&](Done<std::string> done) {
      host(0).fs->attributes().GetXattr(step, CAIRNFS_XATTR_OPEN_FILES, std::move(done), ByUser());
    });
    return text.ok() ? *text : std::string(ErrorCodeName(text.error().code));
  };
  EXPECT_EQ(count(), "0");
  const auto file = host(1).Create("file", deep), beside = host(2).Create("beside", run_);
  EXPECT_EQ(count(), "1");
  board_.silent.insert(host(2).membership->self());
  EXPECT_EQ(count(), ErrorCodeName(ErrorCode::kUnavailable)) << "who does not say may have one open";
  host(2).Die();
  EXPECT_TRUE(Eventually([&] { return count() == "1"; })) << "who is gone has none";
  EXPECT_TRUE(host(1).CloseFile(file).ok());
  EXPECT_EQ(count(), "0");
}

}  // namespace
}  // namespace cairnfs::fs
