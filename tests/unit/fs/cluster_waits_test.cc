// Opening and reading while the hosts that have the bytes do not answer: they wait, and what ends the wait.
#include <future>

#include "chunking/digest.h"
#include "cluster_fixture.h"
#include "fs/recipe.h"

namespace cairnfs::fs {
namespace {

using ClusterWaitsTest = ClusterTest;

// A recipe of two leaves, of which opening the file needs the last, and reading its begin the first.
TEST_F(ClusterWaitsTest, OpeningAndReadingOutlastThatOthersAreAway) {
  MakeHosts(2);
  const std::string text = TextOf(1, kMiB);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, text).ok());
  ASSERT_TRUE(host(0).Write(file, kLeafBytes, TextOf(2, kMiB)).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  TestChunks& chunks = *host(1).chunks;
  // What a call gives that begins while they are away.
  auto outlast = [&](auto call) {
    chunks.OthersGo();
    auto result = std::async(std::launch::async, call);
    EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
    chunks.OthersComeBack();
    return result.get();
  };
  auto opened = outlast([&] { return host(1).Open("file", {.read = true}); });
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  for (int i = 0; i < 2; i++) {  // a page of the recipe is missing at first, then only bytes
    auto read = outlast([&] { return host(1).Read(*opened, 0, kMiB); });
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(*read, text);
  }
  ASSERT_TRUE(host(1).CloseFile(*opened).ok());
}

// A chunk that left memory before it had its copies, and that the disk does not give back.
TEST_F(ClusterWaitsTest, AChunkThatCannotBeReadBackHoldsUpItsOwnFileAlone) {
  MakeHosts(2);
  const std::string text = TextOf(1, 1000);
  auto bad = host(0).Create("bad"), good = host(0).Create("good");
  host(0).chunks->SetUnreadable(chunking::ComputeDigest(AsBytes(text)));
  ASSERT_TRUE(host(0).Write(bad, 0, text).ok());
  ASSERT_TRUE(host(0).Write(good, 0, TextOf(2, 1000)).ok());
  EXPECT_FALSE(host(0).Fsync(bad).ok());
  EXPECT_TRUE(host(0).Fsync(good).ok());
  EXPECT_EQ(host(1).Cat("good"), TextOf(2, 1000));
  EXPECT_TRUE(host(0).CloseFile(good).ok());
  EXPECT_TRUE(host(0).fs->Unlink(kRootInode, "good").ok());
  host(0).chunks->SetAllReadable();
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(bad).ok(); }));
  EXPECT_EQ(host(1).Cat("bad"), text);
  static_cast<void>(host(0).CloseFile(bad).ok());
}

TEST_F(ClusterWaitsTest, AReadThatWaitedGivesWhatTheFileIsThen) {
  MakeHosts(2);
  host(0).Put("file", TextOf(1, 5000));
  auto file = host(1).Open("file", {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  TestChunks& chunks = *host(1).chunks;
  chunks.OthersGo();
  auto read = std::async(std::launch::async, [&] { return host(1).Read(*file, 0, 5000); });
  EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
  EXPECT_TRUE(host(1).Write(*file, 0, TextOf(2, 5000)).ok());
  chunks.OthersComeBack();
  const auto text = read.get();
  ASSERT_TRUE(text.ok()) << text.error().message;
  EXPECT_EQ(*text, TextOf(2, 5000));
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
}

TEST_F(ClusterWaitsTest, ReadsThatWaitForOthersEnd) {
  MakeHosts(2);
  host(0).Put("file", TextOf(1, 5000));
  auto file = host(1).Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  TestChunks& chunks = *host(1).chunks;
  chunks.OthersGo();
  auto read = std::async(std::launch::async, [&] { return host(1).Read(*file, 0, 5000); });
  EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
  host(1).fs->EndWaits();
  const auto text = read.get();
  ASSERT_FALSE(text.ok());
  EXPECT_EQ(text.error().code, ErrorCode::kUnavailable);
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
}

TEST_F(ClusterWaitsTest, WhoIsKilledWaitsForOthersNoMore) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, TextOf(1, kMiB)).ok());
  ASSERT_TRUE(host(0).Write(file, kLeafBytes, TextOf(2, kMiB)).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  TestChunks& chunks = *host(1).chunks;
  std::atomic<bool> killed{false};
  Caller caller;
  caller.cancelled = [&] { return killed.load(); };
  // What a call gives whose caller is killed while others are away.
  auto end_by_kill = [&](auto call) {
    killed = false;
    chunks.OthersGo();
    auto result = std::async(std::launch::async, call);
    EXPECT_TRUE(Eventually([&] { return chunks.waiting_count() > 0; }));
    EXPECT_EQ(result.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
    killed = true;
    EXPECT_EQ(result.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    if (result.wait_for(std::chrono::seconds(0)) != std::future_status::ready) chunks.OthersComeBack();
    auto outcome = result.get();
    EXPECT_TRUE(!outcome.ok() && outcome.error().code == ErrorCode::kInterrupted);
    chunks.OthersComeBack();
  };
  end_by_kill([&] { return host(1).Open("file", {.read = true}, kRootInode, caller); });
  auto opened = host(1).Open("file", {.read = true});
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  end_by_kill([&] { return host(1).Read(*opened, 0, kMiB, caller); });  // waits for a page of the recipe
  ASSERT_TRUE(host(1).Read(*opened, 4096, 1).ok());
  end_by_kill([&] { return host(1).Read(*opened, 0, kMiB, caller); });  // for bytes
  ASSERT_TRUE(host(1).CloseFile(*opened).ok());
}

// The view of the host that asks lags behind; until it does not, calls to the other cannot be made.
TEST_F(ClusterWaitsTest, AHostThatHasJustJoinedIsNotTakenForGone) {
  MakeHosts(2);
  host(0).membership->FreezeView();
  AddHost(3).Put("file", "bytes");
  board_.unanswered_finishes = 20;
  EXPECT_EQ(host(0).Cat("file"), "bytes");
  EXPECT_EQ(board_.unanswered_finishes, 0);
}

// The store does not answer the transaction itself, which comes after the wait for what was written.
TEST_F(ClusterWaitsTest, WhoIsKilledDoesNotWaitForTheStoreToCommitANameEither) {
  MakeHosts(1);
  auto file = host(0).Create("old");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  std::atomic<bool> killed{false}, gives_up{false};
  Caller caller;
  caller.cancelled = caller.killed = [&] { return killed.load(); };
  host(0).gate->refuse = [&](const kv::Transaction& transaction) -> std::optional<Error> {
    const bool is_of_name = std::any_of(transaction.writes.begin(), transaction.writes.end(), [](const auto& write) {
      return write.key == meta::DentryKey(kRootInode, "old");
    });
    if (!is_of_name) return std::nullopt;
    killed = true;
    gives_up = Eventually([] { return kv::Patience::IsWaitOver(nullptr); });
    return Gate::Away();
  };
  auto end_by_kill = [&](const std::function<void(Done<void>)>& call) {
    killed = gives_up = false;
    EXPECT_FALSE(Host::Await<void>(call).ok());
    EXPECT_TRUE(gives_up) << "whoever waits for the store must not go on";
  };
  end_by_kill([&](Done<void> done) {
    meta::RenameParams params{kRootInode, "old", kRootInode, "new", meta::RenameMode::kReplace};
    host(0).fs->Rename(params, caller, std::move(done));
  });
  end_by_kill([&](Done<void> done) {
    auto unlink = [&, done = std::move(done)](const Status& admitted) {
      done(admitted.ok() ? host(0).fs->Unlink(kRootInode, "old") : admitted);
    };
    host(0).fs->WhenAdmitted(NameChange::kRemoves, std::move(unlink), caller);
  });
  host(0).gate->refuse = nullptr;
}

}  // namespace
}  // namespace cairnfs::fs
