// Closes that publish, and the marks of files whose bytes are not published: what others see, and what a commit says
// when a host ends or fails.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <memory>
#include <mutex>

#include "cluster_fixture.h"
#include "fs/processes.h"

namespace cairnfs::fs {
namespace {

// The second host has made "file" in "dir" and written "bytes" to it.
class ClusterMarksTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    MakeHosts(2);
    directory_ = host(0).MakeDirectory("dir");
    file_ = host(1).Create("file", directory_);
    ASSERT_TRUE(host(1).Write(file_, 0, "bytes").ok());
  }
  size_t Marks() { return KeyCount("P"); }
  void LoseSecondHost() {
    const cluster::NodeId gone = host(1).membership->self();
    host(1).Die();
    ASSERT_TRUE(Eventually([&] {
      const cluster::ViewPtr view = host(0).membership->view();
      return view->Find(gone) == nullptr || view->Find(gone)->session == 0;
    }));
  }
  Status Commit() { return host(0).Rename(kRootInode, "dir", kRootInode, "final"); }
  void ExpectWholeWithoutItsHost(const std::string& bytes) {
    LoseSecondHost();
    EXPECT_NE(*host(0).Durability(file_.attr.inode), "lost");
    EXPECT_NE(*host(0).Durability(directory_), "lost");
    Status renamed = Commit();
    EXPECT_TRUE(renamed.ok()) << renamed.error().message;
    EXPECT_EQ(host(0).Cat("file", directory_), bytes);
  }
  // That it names the host and the file.
  void ExpectRefused(const std::string& why) {
    EXPECT_EQ(*host(0).Durability(file_.attr.inode), why == "lost" ? "lost" : "pending");
    const Status renamed = Commit();
    ASSERT_FALSE(renamed.ok());
    EXPECT_EQ(renamed.error().code, ErrorCode::kIo);
    EXPECT_NE(renamed.error().message.find("'dir/file': host host2"), std::string::npos) << renamed.error().message;
    EXPECT_NE(renamed.error().message.find(why), std::string::npos) << renamed.error().message;
  }
  // From now on transactions of the second host that put nothing but marks fail so.
  void RefuseMarks(const Error& why) {
    host(1).gate->refuse = [state = refusals_, why](const kv::Transaction& transaction) -> std::optional<Error> {
      std::lock_guard lock(state->mutex);
      if (!state->refuses || !transaction.operation_id.starts_with("mark/")) return std::nullopt;
      state->last = transaction;
      return why;
    };
  }
  // The last that failed.
  std::optional<kv::Transaction> AllowMarks() {
    std::lock_guard lock(refusals_->mutex);
    refusals_->refuses = false;
    return refusals_->last;
  }
  Status CloseElsewhere(const std::string& bytes, OpenFlags flags = {.read = true, .write = true}) {
    auto again = host(0).Open("file", flags, directory_);
    if (!again.ok()) return again.error();
    if (Status written = host(0).Write(*again, 0, bytes); !written.ok()) return written;
    return host(0).CloseFile(*again);
  }

  struct Refusals {
    std::mutex mutex;
    bool refuses = true;
    std::optional<kv::Transaction> last;
  };
  const std::shared_ptr<Refusals> refusals_ = std::make_shared<Refusals>();
  InodeId directory_;
  FileSystem::Created file_;
};

TEST_F(ClusterMarksTest, ACloseReturnsWhenEverybodySeesTheBytes) {
  EXPECT_EQ(Marks(), 1u) << "since it was made";
  const uint64_t commits = host(1).gate->commits;
  ASSERT_TRUE(host(1).Flush(file_).ok());
  EXPECT_EQ(host(1).gate->commits, commits + 1) << "the mark goes with the publish";
  EXPECT_EQ(Marks(), 0u);
  EXPECT_EQ(host(0).Cat("file", directory_), "bytes");
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterMarksTest, ManyClosesShareARound) {
  constexpr int kFiles = 64;
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < kFiles; i++) {
    files.push_back(host(1).Create("many" + std::to_string(i), directory_));
    ASSERT_TRUE(host(1).Write(files.back(), 0, "x").ok());
  }
  const uint64_t commits = host(1).gate->commits;
  std::vector<std::future<Status>> closes;
  // They have marks since they were made: each asks for the round after this one before its call returns.
  host(1).chunks->before_sync = [&] {
    for (const auto& file : files) {
      auto promise = std::make_shared<std::promise<Status>>();
      closes.push_back(promise->get_future());
      host(1).fs->open_files().Flush({file.handle}, [promise](const Status& status) { promise->set_value(status); });
    }
  };
  ASSERT_TRUE(host(1).Flush(file_).ok());
  for (auto& closed : closes) EXPECT_TRUE(closed.get().ok());
  EXPECT_EQ(host(1).gate->commits - commits, 4u) << "this round's, and three for as many as a transaction takes";
  EXPECT_EQ(Marks(), 0u);
}

// The round that runs may wait for nodes as long as its host lives.
TEST_F(ClusterMarksTest, ACloseMarksTheFileThoughARoundRuns) {
  const auto other = host(1).Create("other", directory_);
  ASSERT_TRUE(host(1).Write(other, 0, "old").ok());
  ASSERT_TRUE(host(1).Flush(other).ok());
  EXPECT_EQ(Marks(), 1u) << "of the first file alone";
  ASSERT_TRUE(host(1).Write(other, 0, "new").ok());
  std::future<Status> closed;
  host(1).chunks->before_sync = [&] {
    closed = std::async(std::launch::async, [&] { return host(1).Flush(other); });
    EXPECT_TRUE(Eventually([&] { return Marks() == 2; }));
  };
  ASSERT_TRUE(host(1).Flush(file_).ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_EQ(Marks(), 0u);
  EXPECT_EQ(host(0).Cat("other", directory_), "new");
}

TEST_F(ClusterMarksTest, AHostThatEndsBeforeTheCloseLeavesTheMark) {
  LoseSecondHost();
  ExpectRefused("lost");
}

TEST_F(ClusterMarksTest, WhoIsStillWritingIsNotWaitedFor) {
  EXPECT_EQ(*host(0).Durability(file_.attr.inode), "pending");
  EXPECT_TRUE(Commit().ok());
  ASSERT_TRUE(host(1).Flush(file_).ok());
  EXPECT_EQ(host(0).Cat("file", directory_), "bytes");
}

TEST_F(ClusterMarksTest, WritingAnewClearsADeadMark) {
  LoseSecondHost();
  ASSERT_TRUE(CloseElsewhere("BYTES").ok());
  EXPECT_EQ(Marks(), 0u);
  EXPECT_TRUE(Commit().ok());
}

TEST_F(ClusterMarksTest, WritingAPartDoesNot) {
  ASSERT_TRUE(host(1).Flush(file_).ok());
  auto again = host(1).Open("file", {.read = true, .write = true}, directory_);
  ASSERT_TRUE(host(1).Write(*again, 0, "BYTES and more").ok());
  host(1).chunks->before_sync = [this] {
    EXPECT_EQ(Marks(), 1u) << "while the close waits";
    host(1).gate->shut = true;
  };
  EXPECT_FALSE(host(1).Flush(*again).ok());
  LoseSecondHost();
  ExpectRefused("lost");
  ASSERT_TRUE(CloseElsewhere("by").ok());
  ExpectRefused("lost");
  ASSERT_TRUE(CloseElsewhere("b", {.write = true, .truncate = true}).ok());
  EXPECT_TRUE(Commit().ok());
  EXPECT_EQ(host(0).Cat("file", directory_), "b");
}

TEST_F(ClusterMarksTest, TruncatingAndRemovingClearADeadMark) {
  const auto other = host(1).Create("other", directory_);
  ASSERT_TRUE(host(1).Write(other, 0, "x").ok());
  LoseSecondHost();
  ASSERT_TRUE(host(0).Truncate(file_.attr.inode, 0).ok());
  EXPECT_FALSE(Commit().ok());
  ASSERT_TRUE(host(0).Unlink("other", directory_).ok());
  const Status committed = Commit();
  EXPECT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_TRUE(Eventually([&] { return Marks() == 0; }));
}

// The mark comes with the truncation, and goes with the close.
TEST_F(ClusterMarksTest, AnOpenThatTruncatesMarks) {
  ASSERT_TRUE(host(1).CloseFile(file_).ok());
  const uint64_t commits = host(1).gate->commits;
  auto again = host(1).Open("file", {.write = true, .truncate = true}, directory_);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(host(1).gate->commits, commits + 1);
  EXPECT_EQ(Marks(), 1u);
  ASSERT_TRUE(host(1).Write(*again, 0, "new").ok());
  ASSERT_TRUE(host(1).CloseFile(*again).ok());
  EXPECT_EQ(host(1).gate->commits, commits + 2);
  ExpectWholeWithoutItsHost("new");
}

TEST_F(ClusterMarksTest, WhoEndsBetweenTheTwoLeavesTheMark) {
  ASSERT_TRUE(host(1).CloseFile(file_).ok());
  auto again = host(1).Open("file", {.write = true, .truncate = true}, directory_);
  ASSERT_TRUE(again.ok());
  LoseSecondHost();
  ExpectRefused("lost");
}

// As `touch DONE`: the close does not wait, and a commit of the same host finds the mark gone.
TEST_F(ClusterMarksTest, AnUnwrittenCloseTakesTheMarkAwayInTheBackground) {
  ASSERT_TRUE(host(1).CloseFile(file_).ok());
  const uint64_t commits = host(1).gate->commits;
  const auto done = host(1).Create("DONE", directory_);
  ASSERT_TRUE(host(1).CloseFile(done).ok());
  EXPECT_EQ(host(1).gate->commits, commits + 1);
  EXPECT_EQ(Marks(), 1u);
  ASSERT_TRUE(host(1).Rename(kRootInode, "dir", kRootInode, "final").ok());
  EXPECT_EQ(Marks(), 0u);
  EXPECT_FALSE(HasKey(meta::FileKey(done.attr.inode))) << "there was nothing to publish";
}

TEST_F(ClusterMarksTest, AFailedCloseIsToldToCommitsUntilItIsPublished) {
  host(1).chunks->syncs_fail = true;
  const Status closed = host(1).Flush(file_);
  ASSERT_FALSE(closed.ok());
  EXPECT_TRUE(Eventually([&] { return !Commit().ok(); }));
  ExpectRefused(closed.error().message);
  host(1).chunks->syncs_fail = false;
  ASSERT_TRUE(host(1).Sync().ok()) << "the bytes are kept, and tried again";
  ExpectWholeWithoutItsHost("bytes");
}

TEST_F(ClusterMarksTest, HardLinksAreFoundUnderEveryParent) {
  const InodeId elsewhere = host(0).MakeDirectory("elsewhere");
  ASSERT_TRUE(host(0).Link(file_.attr.inode, elsewhere, "again").ok());
  LoseSecondHost();
  EXPECT_FALSE(host(0).Rename(kRootInode, "elsewhere", kRootInode, "moved").ok());
  EXPECT_FALSE(Commit().ok());
}

TEST_F(ClusterMarksTest, APublishWhoseAnswerIsLostIsFoundOut) {
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Flush(file_).ok());
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_EQ(Marks(), 0u);
  ExpectWholeWithoutItsHost("bytes");
}

// Nothing is published before it is known that the mark does not come later.
TEST_F(ClusterMarksTest, AMarkThatMayBePutYet) {
  ASSERT_TRUE(host(1).Flush(file_).ok());
  ASSERT_TRUE(host(1).Write(file_, 5, "more").ok());
  std::optional<kv::Transaction> late;
  host(1).gate->refuse = [&](const kv::Transaction& transaction) -> std::optional<Error> {
    late = transaction;
    return Gate::Away();
  };
  EXPECT_FALSE(host(1).Flush(file_).ok());
  host(1).gate->refuse = nullptr;
  ASSERT_TRUE(late && !late->operation_id.empty());
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(host(1).gate->Commit({}, *late).ok()) << "what became of it is known";
  EXPECT_EQ(Marks(), 0u);
  ExpectWholeWithoutItsHost("bytesmore");
}

// Stores through a mapping whose descriptor was closed: the mark's answer is lost, and it may be put yet.
TEST_F(ClusterMarksTest, AMarkOfAMappingThatMayBePutYet) {
  ASSERT_TRUE(host(1).Flush(file_).ok());
  RefuseMarks(Gate::Away());
  FileSystem::WriteRequest pages = host(1).RequestOf(file_, 0, "PAGES");
  pages.from_page_cache = true;
  ASSERT_TRUE(host(1).Send(std::move(pages)).ok()) << "the bytes are kept";
  const auto late = AllowMarks();
  ASSERT_TRUE(late && !late->operation_id.empty());
  ASSERT_TRUE(host(1).Fsync(file_).ok());
  EXPECT_TRUE(host(1).gate->Commit({}, *late).ok()) << "what became of it is known";
  EXPECT_EQ(Marks(), 0u);
  ExpectWholeWithoutItsHost("PAGES");
}

TEST_F(ClusterMarksTest, AMarkThatWasRefusedIsPutByTheNextRound) {
  ASSERT_TRUE(host(1).Flush(file_).ok());
  ASSERT_TRUE(host(1).Write(file_, 5, "more").ok());
  RefuseMarks(MakeError(ErrorCode::kNoSpace, "the store is full"));
  host(1).chunks->syncs_fail = true;
  EXPECT_FALSE(host(1).Flush(file_).ok());
  EXPECT_EQ(Marks(), 0u);
  AllowMarks();
  host(1).chunks->before_sync = [this] { EXPECT_EQ(Marks(), 1u) << "while the close waits"; };
  host(1).chunks->syncs_fail = false;
  ASSERT_TRUE(host(1).Flush(file_).ok());
  EXPECT_EQ(Marks(), 0u);
  ExpectWholeWithoutItsHost("bytesmore");
}

TEST_F(ClusterMarksTest, ACloseWhoseSessionIsLostWhileItWaitsFails) {
  host(1).chunks->before_sync = [&] { LoseSession(1); };
  EXPECT_FALSE(host(1).Flush(file_).ok());
  EXPECT_FALSE(HasKey(meta::FileKey(file_.attr.inode)));
  ExpectRefused("lost");
}

TEST_F(ClusterMarksTest, ACloseFailsWhereTheStoreKnowsOfTheLossBeforeTheHost) {
  host(1).gate->refuse = [](const kv::Transaction&) -> std::optional<Error> {
    return MakeError(ErrorCode::kStale, "the session is lost");
  };
  EXPECT_FALSE(host(1).Flush(file_).ok());
  host(1).gate->refuse = nullptr;
  LoseSession(1);
  EXPECT_FALSE(HasKey(meta::FileKey(file_.attr.inode)));
  ExpectRefused("lost");
}

// Who else asks for everything does not say that the file is whole.
TEST_F(ClusterMarksTest, ASyncOfAnotherFileLeavesTheMark) {
  const auto other = host(1).Create("other", directory_);
  ASSERT_TRUE(host(1).Write(other, 0, "x").ok());
  ASSERT_TRUE(host(1).Fsync(other).ok());
  EXPECT_TRUE(HasKey(meta::FileKey(file_.attr.inode))) << "it was published as far as it was written";
  EXPECT_EQ(Marks(), 1u);
  LoseSecondHost();
  ExpectRefused("lost");
}

TEST_F(ClusterMarksTest, SettingTimesClearsNoDeadMark) {
  LoseSecondHost();
  SetAttrRequest times;
  times.mtime = Timestamp{1'000'000'000, 0};
  ASSERT_TRUE(host(0).SetAttr(file_.attr.inode, times).ok());
  ExpectRefused("lost");
}

TEST_F(ClusterMarksTest, AnOpenThatFailsToTruncateLeavesNoMark) {
  ASSERT_TRUE(host(1).CloseFile(file_).ok());
  host(1).chunks->syncs_fail = true;
  EXPECT_FALSE(host(1).Open("file", {.write = true, .truncate = true}, directory_).ok());
  host(1).chunks->syncs_fail = false;
  ASSERT_TRUE(host(1).Sync().ok());
  EXPECT_EQ(Marks(), 0u);
}

// A fork, or a dup that was given away: its close tells nothing of what the writer is about to do.
TEST_F(ClusterMarksTest, ACloseOfAProcessThatDidNotWriteDoesNotWait) {
  auto file = host(1).Create("shared", directory_);
  auto request = host(1).RequestOf(file, 0, "bytes");
  request.caller.pid = static_cast<uint32_t>(getpid());
  ASSERT_TRUE(host(1).Send(std::move(request)).ok());
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  const uint64_t commits = host(1).gate->commits;
  Caller self, other;
  self.pid = static_cast<uint32_t>(getpid());
  other.pid = static_cast<uint32_t>(child);
  ASSERT_TRUE(host(1).Flush(file, other).ok());
  EXPECT_EQ(host(1).gate->commits, commits);
  kill(child, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return kill(child, 0) == 0 && DiesBySignal(static_cast<uint32_t>(child)); }));
  // One that wrote and dies by a signal does not wait either; its bytes follow in the background.
  auto killed = host(1).RequestOf(file, 5, "more");
  killed.caller.pid = static_cast<uint32_t>(child);
  ASSERT_TRUE(host(1).Send(std::move(killed)).ok());
  ASSERT_TRUE(host(1).Flush(file, other).ok());
  EXPECT_EQ(host(1).gate->commits, commits);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(host(1).Flush(file, self).ok());
  EXPECT_EQ(host(0).Cat("shared", directory_), "bytesmore");
}

}  // namespace
}  // namespace cairnfs::fs
