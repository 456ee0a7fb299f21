// Callers that are killed while they wait for other hosts or for a round: their calls end at once, and nothing else
// does.
#include <future>

#include "base/clock.h"
#include "cluster_waits_fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

using ClusterKilledTest = ClusterWaitsTest;

TEST_F(ClusterKilledTest, WhoIsKilledWaitsForCopiesNoMore) {
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  const auto waits = [&] { return chunks.hanging_syncs() > 0; };
  chunks.HangSyncs();
  const Status linked = KillOnce(
      waits, [&](const Caller& caller, Done<void> done) { Link(host(1), scratch.file, "link", caller, done); });
  const Status moved =
      KillOnce(waits, [&](const Caller& caller, Done<void> done) { Move(host(1), scratch, caller, std::move(done)); });
  chunks.LetSyncsGo();
  for (const Status& status : {linked, moved}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInterrupted) << status.error().message;
  }
  EXPECT_TRUE(host(1).Rename(scratch.directory, "file", kRootInode, "moved").ok());
}

TEST_F(ClusterKilledTest, WhoIsKilledWaitsForOthersNoMore) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, TextOf(1, kMiB)).ok());
  ASSERT_TRUE(host(0).Write(file, kLeafBytes, TextOf(2, kMiB)).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  TestChunks& chunks = *host(1).chunks;
  // What a call gives whose caller is killed while others are away.
  auto end_by_kill = [&](auto call) {
    std::stop_source kill;
    Caller caller;
    caller.context = Context(kill.get_token());
    chunks.OthersGo();
    auto result = std::async(std::launch::async, [&] { return call(caller); });
    EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
    EXPECT_FALSE(IsReadyWithin(result, std::chrono::milliseconds(100)));
    kill.request_stop();
    EXPECT_TRUE(IsReadyWithin(result, std::chrono::seconds(20)));
    if (!IsReadyWithin(result, std::chrono::seconds(0))) chunks.OthersComeBack();
    auto outcome = result.get();
    EXPECT_TRUE(!outcome.ok() && outcome.error().code == ErrorCode::kInterrupted);
    chunks.OthersComeBack();
  };
  end_by_kill([&](const Caller& caller) { return host(1).Open("file", {.read = true}, kRootInode, caller); });
  auto opened = host(1).Open("file", {.read = true});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  end_by_kill(
      [&](const Caller& caller) { return host(1).Read(*opened, 0, kMiB, caller); });  // waits for a page of the recipe
  ASSERT_TRUE(host(1).Read(*opened, 4096, 1).ok());
  end_by_kill([&](const Caller& caller) { return host(1).Read(*opened, 0, kMiB, caller); });  // for bytes
  ASSERT_TRUE(host(1).CloseFile(*opened).ok());
}

// The store does not answer the transaction itself, which comes after the wait for what was written.
TEST_F(ClusterKilledTest, WhoIsKilledDoesNotWaitForTheStoreToCommitANameEither) {
  MakeHosts(1);
  auto file = host(0).Create("old");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  std::stop_source kill;
  std::atomic<bool> gives_up{false};
  host(0).gate->refuse_within = [&](const Context& context,
                                    const kv::Transaction& transaction) -> std::optional<Error> {
    const bool is_of_name = std::any_of(transaction.writes.begin(), transaction.writes.end(), [](const auto& write) {
      return write.key == meta::DentryKey(kRootInode, "old");
    });
    if (!is_of_name) return std::nullopt;
    kill.request_stop();
    gives_up = Eventually([&] { return context.Expired(); });
    return Gate::Away();
  };
  auto end_by_kill = [&](const std::function<void(const Caller&, Done<void>)>& call) {
    kill = std::stop_source();
    gives_up = false;
    Caller caller;
    caller.context = Context(kill.get_token());
    EXPECT_FALSE(Host::Await<void>([&](Done<void> done) { call(caller, std::move(done)); }).ok());
    EXPECT_TRUE(gives_up) << "whoever waits for the store must not go on";
  };
  end_by_kill([&](const Caller& caller, Done<void> done) {
    meta::RenameParams params{kRootInode, "old", kRootInode, "new", meta::RenameMode::kReplace};
    host(0).fs->names().Rename(params, caller, std::move(done));
  });
  end_by_kill([&](const Caller& caller, Done<void> done) {
    auto unlink = [&, caller, done = std::move(done)](const Status& admitted) {
      done(admitted.ok() ? host(0).fs->names().Unlink(caller.context, kRootInode, "old") : admitted);
    };
    host(0).fs->names().WhenAdmitted(NameChange::kRemoves, std::move(unlink), caller);
  });
  host(0).gate->refuse_within = nullptr;
}

// The round goes on without them.
TEST_F(ClusterKilledTest, WhoIsKilledWaitsForNoRound) {
  MakeHosts(2);
  const InodeId timed = host(0).Put("timed", "x");
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  const auto waits = [&] { return chunks.hanging_syncs() > 0; };
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->open_files().Flush({file.handle}, std::move(done), caller);
  }));
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->open_files().Fsync(file.handle, file.attr.inode, std::move(done), caller);
  }));
  ExpectInterrupted(KillOnce(
      waits, [&](const Caller& caller, Done<void> done) { SetTime(host(0), timed, std::move(done), caller); }));
  chunks.LetSyncsGo();
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(host(1).fs->names().GetAttr({}, timed)->mtime.seconds, 100);
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterKilledTest, WhoIsKilledDoesNotWaitToChangeAFileThatIsInARound) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  auto flushed = std::async(std::launch::async, [&] { return host(0).Flush(file); });
  EXPECT_TRUE(Eventually([&] { return chunks.hanging_syncs() > 0; }));
  std::atomic<bool> begins{false};
  ExpectInterrupted(KillOnce(
      [&] {
        if (!begins) return false;
        Clock::SleepFor(std::chrono::milliseconds(100));  // so that the kill finds it waiting, on most machines
        return true;
      },
      [&](const Caller& caller, Done<void> done) {
        host(0).fs->RunBlocking([&, caller, done = std::move(done)] {
          begins = true;
          SetTime(host(0), file.attr.inode, done, caller);
        });
      }));
  chunks.LetSyncsGo();
  EXPECT_TRUE(flushed.get().ok());
  EXPECT_EQ(host(0).Cat("file"), "bytes");
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterKilledTest, WhoIsKilledDoesNotWaitForTheStoreToPublish) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  std::atomic<bool> is_asked{false}, may_answer{false};
  host(0).gate->refuse = [&](const kv::Transaction&) -> std::optional<Error> {
    is_asked = true;
    while (!may_answer) Clock::SleepFor(std::chrono::milliseconds(1));
    return std::nullopt;
  };
  ExpectInterrupted(KillOnce([&] { return is_asked.load(); },
                             [&](const Caller& caller, Done<void> done) {
                               host(0).fs->open_files().Flush({file.handle}, std::move(done), caller);
                             }));
  may_answer = true;
  EXPECT_TRUE(host(0).Sync().ok());
  host(0).gate->refuse = nullptr;
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterKilledTest, ACommitWhoseCallerWasKilledHasNotFailed) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(1);
  auto file = host(0).Create("file", host(0).MakeDirectory("tmp"));
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  chunks.HangSyncs();
  const auto waits = [&] { return chunks.hanging_syncs() > 0; };
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->names().Rename({kRootInode, "tmp", kRootInode, "step", meta::RenameMode::kReplace}, caller,
                               std::move(done));
  }));
  chunks.LetSyncsGo();
  EXPECT_TRUE(host(0).fs->maintenance().GetRefusedCommits({}).empty());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_TRUE(CommitTmp(host(0)).ok());
}

}  // namespace
}  // namespace cairnfs::fs
