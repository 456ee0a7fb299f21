// What was asked for under a session that is lost before it is done, and names that come to stand for something else.
#include <future>

#include "cluster_fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

constexpr const char* kSince = "what host 2 saved since, and synced";

class ClusterSessionsTest : public ClusterTest {
 protected:
  // The first host loses its session and has another, and the second writes to the file meanwhile.
  void LoseSessionAndRewrite(const char* name) {
    LoseSession(0);
    auto file = host(1).Open(name);
    ASSERT_TRUE(file.ok());
    EXPECT_TRUE(host(1).Write(*file, 0, kSince).ok());
    EXPECT_TRUE(host(1).Fsync(*file).ok());
    EXPECT_TRUE(host(1).CloseFile(*file).ok());
  }
  // A file "file" with "bytes", opened under a session that is gone; the next one waits for may_rejoin.
  Result<FileSystem::Created> OpenAndLoseSession() {
    host(0).Put("file", "bytes");
    EXPECT_TRUE(host(0).Sync().ok());
    auto file = host(0).Open("file", {.read = true});
    if (!file.ok()) return file;
    host(0).membership->may_rejoin = false;
    host(0).EndSession();
    EXPECT_TRUE(Eventually([&] { return !host(0).fs->CheckSession(file->handle).ok(); }));
    return file;
  }
  // Another directory takes the name, with a file whose copies cannot be made.
  void Swap(Host& by) {
    EXPECT_TRUE(by.Rename(kRootInode, "step.tmp", kRootInode, "old.tmp").ok());
    const auto file = by.Create("file", by.MakeDirectory("step.tmp"));
    by.chunks->syncs_fail = true;
    EXPECT_TRUE(by.Write(file, 0, "new bytes").ok());
    EXPECT_FALSE(by.CloseFile(file).ok());
    // Its mark tells why.
    EXPECT_TRUE(Eventually([&] { return !host(0).fs->maintenance().SyncBelow(file.attr.inode, {}).ok(); }));
  }
};

TEST_F(ClusterSessionsTest, AHostWhoseSessionEndsAsItStartsTakesAnother) {
  before_start_ = [](Host& starts) {
    starts.EndSession();
    EXPECT_TRUE(Eventually([&] {
      const auto session = starts.membership->session();
      return !session.ok() && session.error().code == ErrorCode::kStale;
    }));
  };
  MakeHosts(1);
  host(0).Put("file", "bytes");
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(0).membership->session()->number, 2U);
}

TEST_F(ClusterSessionsTest, AFileIsNotEmptiedUnderTheNextSession) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("file", "of before");
  ASSERT_TRUE(host(0).Sync().ok());
  host(0).gate->before_read = [&] { LoseSessionAndRewrite("file"); };
  OpenFlags flags;
  flags.read = flags.write = flags.truncate = true;
  EXPECT_FALSE(host(0).OpenInode(inode, flags).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), kSince);
  EXPECT_EQ(host(0).Cat("file"), kSince);
}

// The round under which a session ended takes nothing with it that was accepted under the next one.
TEST_F(ClusterSessionsTest, ARoundOfTheLostSessionLeavesWhatCameSince) {
  MakeHosts(2);
  auto before = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(before, 0, "of before").ok());
  std::future<Status> closed;
  host(0).gate->before_commit = [&] {
    LoseSession(0);
    EXPECT_FALSE(host(0).Write(before, 0, "is told").ok());
    auto since = host(0).Open("file");
    ASSERT_TRUE(since.ok());
    EXPECT_TRUE(host(0).Write(*since, 0, "of the next session").ok());
    // It waits for the round after this one.
    closed = std::async(std::launch::async, [&, file = *since] { return host(0).CloseFile(file); });
    static_cast<void>(closed.wait_for(std::chrono::milliseconds(100)));
  };
  EXPECT_FALSE(host(0).Fsync(before).ok());
  EXPECT_TRUE(closed.get().ok());
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), "of the next session");
  EXPECT_EQ(host(0).Cat("file"), "of the next session");
  static_cast<void>(host(0).CloseFile(before).ok());
}

// And no commit goes ahead as if the bytes were there.
TEST_F(ClusterSessionsTest, WhatIsLostAfterAFailedCloseWasToldByIt) {
  MakeHosts(2);
  host(0).Put("old", "whole");
  const InodeId directory = host(0).MakeDirectory("step.tmp");
  auto file = host(0).Create("new", directory);
  host(0).chunks->syncs_fail = true;
  ASSERT_TRUE(host(0).Write(file, 0, "not durable yet").ok());
  EXPECT_FALSE(host(0).CloseFile(file).ok());
  EXPECT_TRUE(host(0).Unlink("old").ok()) << "which makes room, and does not wait for what cannot be stored";
  LoseSession(0);
  host(0).chunks->syncs_fail = false;
  EXPECT_FALSE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  EXPECT_FALSE(host(1).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "lost");
  EXPECT_EQ(host(1).Cat("new", directory), "");
}

// As by a job that starts anew on other hosts while the lease of one that was cut off still holds.
TEST_F(ClusterSessionsTest, AFileThatWasOpenedBeforeItsHostWasTakenForDeadIsWholeOnceRewritten) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step.tmp");
  const auto file = host(1).Create("file", directory);
  ASSERT_TRUE(host(1).Write(file, 0, "half").ok());
  auto again = host(0).Open("file", {.write = true, .truncate = true}, directory);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(host(0).Write(*again, 0, "whole").ok());
  const cluster::NodeId gone = host(1).membership->self();
  host(1).Die();
  ASSERT_TRUE(Eventually([&] {
    const cluster::ViewPtr view = host(0).membership->view();
    return view->Find(gone) == nullptr || view->Find(gone)->session == 0;
  }));
  ASSERT_TRUE(host(0).CloseFile(*again).ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "replicated");
  EXPECT_TRUE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  EXPECT_EQ(host(0).Cat("file", directory), "whole");
}

TEST_F(ClusterSessionsTest, ARenameFindsWhatStandsThereByThen) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step.tmp");
  host(0).Put("file", "old bytes", directory);
  ASSERT_TRUE(host(0).Sync().ok());
  host(0).gate->before_commit = [&] { Swap(host(1)); };
  EXPECT_FALSE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  EXPECT_FALSE(host(1).fs->names().Lookup({}, kRootInode, "step").ok());
  host(1).chunks->syncs_fail = false;
  EXPECT_TRUE(host(1).Sync().ok());
  EXPECT_TRUE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  const auto step = host(1).fs->names().Lookup({}, kRootInode, "step");
  ASSERT_TRUE(step.ok());
  EXPECT_NE(step->inode, directory);
  EXPECT_EQ(host(0).Cat("file", step->inode), "new bytes");
}

TEST_F(ClusterSessionsTest, ARenameIsNotCommittedUnderTheNextSession) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("step.tmp");
  host(0).Put("file", "bytes", directory);
  ASSERT_TRUE(host(0).Sync().ok());
  host(0).gate->before_commit = [&] { LoseSession(0); };
  EXPECT_FALSE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
  EXPECT_FALSE(host(1).fs->names().Lookup({}, kRootInode, "step").ok());
  EXPECT_TRUE(host(0).Rename(kRootInode, "step.tmp", kRootInode, "step").ok());
}

// Then the store is asked for the file anew, which may take its time: nobody is held up by the file's lock.
TEST_F(ClusterSessionsTest, AReadAfterALossAsksTheStoreWithoutTheLock) {
  MakeHosts(2);
  host(0).Put("file", "bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  auto file = host(0).Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  LoseSession(0);
  std::future<bool> looked;
  bool is_free = false;
  host(0).gate->before_read = [&] {
    looked = std::async(std::launch::async, [&] { return host(0).fs->names().GetAttr({}, file->attr.inode).ok(); });
    is_free = IsReadyWithin(looked, std::chrono::seconds(10));
  };
  EXPECT_EQ(*host(0).Read(*file, 0, 5), "bytes");
  EXPECT_TRUE(is_free);
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
}

// Somebody else may hold by now what its process believes to have locked, and be in the middle of a change.
TEST_F(ClusterSessionsTest, AReadThroughAFileThatWasLockedIsAnErrorAfterALoss) {
  MakeHosts(2);
  host(0).Put("file", "bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  auto locked = host(0).Open("file", {.read = true}), other = host(0).Open("file", {.read = true});
  ASSERT_TRUE(locked.ok() && other.ok());
  host(0).fs->NoteLocked(locked->handle);
  EXPECT_EQ(*host(0).Read(*locked, 0, 5), "bytes");
  LoseSessionAndRewrite("file");
  const auto read = host(0).Read(*locked, 0, 5);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_NE(read.error().message.find("locks"), std::string::npos) << read.error().message;
  // Who only reads has what was committed, in the new session too.
  EXPECT_EQ(*host(0).Read(*other, 0, 100), kSince);
  EXPECT_TRUE(host(0).CloseFile(*locked).ok());
  EXPECT_TRUE(host(0).CloseFile(*other).ok());
}

// Its number may be another file's, of a host that was quicker after a backup was restored.
TEST_F(ClusterSessionsTest, AReaderOfAStoreThatWentBackIsToldSo) {
  MakeHosts(1);
  host(0).Put("file", "bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  auto file = host(0).Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  ASSERT_EQ(*host(0).Read(*file, 0, 5), "bytes");
  host(0).membership->ReportLost(*host(0).membership->session(), {"a backup was restored", /*went_back=*/true});
  const auto read = host(0).Read(*file, 0, 5);
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kIo);
  EXPECT_FALSE(host(0).CloseFile(*file).ok());
  EXPECT_TRUE(Eventually([&] { return host(0).membership->session().ok() && host(0).HasSession(); }));
  EXPECT_EQ(host(0).Cat("file"), "bytes");
}

TEST_F(ClusterSessionsTest, AfterALossNoInodeNumberIsGivenOutAgain) {
  MakeHosts(2);
  auto next_inode = [&] { return (*store_->Get({}, meta::NextInodeKey()))->value; };
  const std::string backup = next_inode();
  const InodeId inode = host(0).Put("file", "bytes");
  const std::string reserved = next_inode();
  ASSERT_NE(reserved, backup);
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(meta::NextInodeKey(), backup)).ok());
  LoseSession(0);
  EXPECT_EQ(next_inode(), reserved);
  EXPECT_GT(host(1).Put("other", "bytes").value, inode.value);
}

// A write below an extent that lies in a page of the recipe, which this host has to fetch.
TEST_F(ClusterSessionsTest, BytesWaitForTheRecipeThatTheyBelongTo) {
  MakeHosts(2);
  auto writer = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(writer, 0, TextOf(1, 1000000)).ok());
  ASSERT_TRUE(host(0).Write(writer, 200 * kMiB, TextOf(2, 5000)).ok());
  ASSERT_TRUE(host(0).CloseFile(writer).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  auto file = host(1).Open("file");
  ASSERT_TRUE(file.ok());
  host(1).chunks->OthersGo();
  const std::string mine = TextOf(3, 5000);
  ASSERT_TRUE(host(1).Write(*file, 10000, mine).ok());
  EXPECT_FALSE(host(1).Fsync(*file).ok()) << "the recipe is away";
  host(1).chunks->OthersComeBack();
  EXPECT_TRUE(Eventually([&] { return host(1).Fsync(*file).ok(); }));
  EXPECT_EQ(*host(1).Read(*file, 10000, 5000), mine);
  EXPECT_TRUE(host(1).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("file").substr(9000, 6000), TextOf(1, 1000000).substr(9000, 1000) + mine);
}

TEST_F(ClusterSessionsTest, AnOpenWaitsForTheNextSession) {
  MakeHosts(1);
  auto file = OpenAndLoseSession();
  ASSERT_TRUE(file.ok());
  const uint64_t before = host(0).gate->trips;
  auto text = std::async(std::launch::async, [&] { return host(0).Cat("file"); });
  EXPECT_TRUE(Eventually([&] { return host(0).gate->trips > before; }));  // it has looked the name up
  EXPECT_FALSE(IsReadyWithin(text, std::chrono::milliseconds(100)));
  host(0).membership->may_rejoin = true;
  EXPECT_EQ(text.get(), "bytes");
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
}

TEST_F(ClusterSessionsTest, AStopEndsTheWaitForTheNextSession) {
  MakeHosts(1);
  auto file = OpenAndLoseSession();
  ASSERT_TRUE(file.ok());
  auto opened = std::async(std::launch::async, [&] { return host(0).Open("file", {.read = true}); });
  host(0).fs->EndWaits();
  EXPECT_FALSE(opened.get().ok());
  host(0).membership->may_rejoin = true;
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
}

TEST_F(ClusterSessionsTest, AFileThatIsMadeBetweenTwoSessionsCanBeWritten) {
  MakeHosts(1);
  std::future<FileSystem::Created> made;
  host(0).membership->after_rejoin = [&] {
    made = std::async(std::launch::async, [&] {
      const Status admitted = Host::Await<void>(
          [&](Done<void> done) { host(0).fs->names().WhenAdmitted(NameChange::kMakes, std::move(done)); });
      EXPECT_TRUE(admitted.ok());
      return host(0).Create("file");
    });
    // Time for one that does not wait; one that does gives the same however long this is.
    static_cast<void>(IsReadyWithin(made, std::chrono::milliseconds(300)));
  };
  LoseSession(0);
  const auto file = made.get();
  EXPECT_TRUE(host(0).Write(file, 0, "bytes").ok());
  EXPECT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterSessionsTest, AFileThatIsMadeAsTheSessionIsLostCanBeWritten) {
  MakeHosts(1);
  auto before = host(0).Create("before");
  host(0).gate->after_commit = [&] {
    host(0).membership->may_rejoin = false;
    host(0).EndSession();
    EXPECT_TRUE(Eventually([&] { return !host(0).fs->CheckSession(before.handle).ok(); }));
    host(0).membership->may_rejoin = true;
  };
  const auto file = host(0).Create("file");
  EXPECT_TRUE(host(0).Write(file, 0, "bytes").ok());
  EXPECT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "replicated") << "the mark that came with the name is gone";
  EXPECT_FALSE(host(0).CloseFile(before).ok());
}

TEST_F(ClusterSessionsTest, AFileThatCameBackWithABackupCanBeOpened) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("file", "bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  auto backup = store_->Range({}, "", "\xff", 0);
  ASSERT_TRUE(backup.ok());
  ASSERT_TRUE(host(1).Unlink("file").ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); }));
  kv::Transaction restore;
  for (const kv::KvEntry& entry : backup->entries) {
    if (!HasKey(entry.key)) restore.Put(entry.key, entry.value);
  }
  ASSERT_TRUE(store_->Commit({}, restore).ok());
  LoseSession(0);
  EXPECT_EQ(host(0).Cat("file"), "bytes");
  ASSERT_TRUE(host(1).Unlink("file").ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); }));
  EXPECT_FALSE(host(0).OpenInode(inode, {.read = true}).ok());
}

TEST_F(ClusterSessionsTest, ATruncationWhoseSessionWasLostHasFailed) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("file", "0123456789");
  EXPECT_EQ(host(1).Cat("file"), "0123456789");
  host(0).gate->before_commit = [&] { LoseSession(0); };
  EXPECT_FALSE(host(0).Truncate(inode, 3).ok());
  EXPECT_EQ(host(1).Cat("file"), "0123456789");
  EXPECT_TRUE(Eventually([&] { return host(0).Truncate(inode, 3).ok(); }));
  EXPECT_EQ(host(1).Cat("file"), "012");
}

// One lost session is one error for a program that then opens the file anew.
TEST_F(ClusterSessionsTest, AnOpenThatEmptiesAndWhoseSessionWasLostTellsAllThatIsLost) {
  MakeHosts(2);
  host(0).Put("file", "0123456789");
  ASSERT_TRUE(host(0).Sync().ok());
  host(0).gate->before_commit = [&] { LoseSession(0); };
  EXPECT_FALSE(host(0).Open("file", {.write = true, .truncate = true}).ok());
  auto file = host(0).Open("file", {.write = true, .truncate = true});
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_TRUE(host(0).Write(*file, 0, "anew").ok());
  EXPECT_TRUE(host(0).Fsync(*file).ok());
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
  EXPECT_EQ(host(1).Cat("file"), "anew");
}

// A process that was killed has written to the file, and the open waits for the round that publishes that.
TEST_F(ClusterSessionsTest, AnOpenThatEmptiesDoesNotTellWhatOthersLost) {
  MakeHosts(2);
  host(0).Put("file", "0123456789");
  ASSERT_TRUE(host(0).Sync().ok());
  auto killed = host(0).Open("file", {.write = true});
  ASSERT_TRUE(killed.ok());
  EXPECT_TRUE(host(0).Write(*killed, 0, "mine").ok());
  std::future<bool> opened;
  host(0).gate->before_commit = [&] {
    opened =
        std::async(std::launch::async, [&] { return host(0).Open("file", {.write = true, .truncate = true}).ok(); });
    EXPECT_FALSE(IsReadyWithin(opened, std::chrono::milliseconds(100)));
    LoseSession(0);
  };
  host(0).fs->open_files().Release(killed->handle);
  static_cast<void>(host(0).Sync().ok());
  EXPECT_FALSE(opened.get());
  for (const bool is_told : {true, false}) {
    auto next = host(0).Open("file", {.write = true});
    ASSERT_TRUE(next.ok()) << next.error().message;
    EXPECT_EQ(host(0).CloseFile(*next).ok(), !is_told);
  }
}

// As of a process that was paused while it held a lock, which another host has had since.
TEST_F(ClusterSessionsTest, AFileThatWasOpenedUnderALostSessionIsNotTruncated) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("file", "0123456789");
  ASSERT_TRUE(host(0).Sync().ok());
  auto file = host(0).Open("file");
  ASSERT_TRUE(file.ok());
  LoseSession(0);
  auto other = host(1).Open("file");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(1).Write(*other, 0, "of the next").ok());
  ASSERT_TRUE(host(1).CloseFile(*other).ok());
  EXPECT_EQ(host(0).Truncate(inode, 0, file->handle).error().code, ErrorCode::kIo);
  EXPECT_EQ(host(1).Cat("file"), "of the next");
  ASSERT_FALSE(host(0).CloseFile(*file).ok());
  file = host(0).Open("file");
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(host(0).Truncate(inode, 2, file->handle).ok());
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
  EXPECT_EQ(host(1).Cat("file"), "of");
}

TEST_F(ClusterSessionsTest, ARenameWhoseSessionWasLostHasFailed) {
  MakeHosts(2);
  host(0).Put("final", "old");
  ASSERT_TRUE(host(0).Sync().ok());
  auto file = host(0).Create("new");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).gate->before_commit = [&] { LoseSession(0); };
  EXPECT_FALSE(host(0).Rename(kRootInode, "new", kRootInode, "final").ok());
  EXPECT_EQ(host(1).Cat("final"), "old");
  EXPECT_FALSE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterSessionsTest, WhatWasClosedAsTheSessionWasLostIsNotPublishedUnderTheNext) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, TextOf(1, 50'000)).ok());
  host(0).gate->before_commit = [&] { LoseSession(0); };
  EXPECT_FALSE(host(0).CloseFile(file).ok());
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_FALSE(HasKey(meta::FileKey(file.attr.inode)));
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "lost");
  EXPECT_EQ(*host(1).Durability(file.attr.inode), "lost");
  EXPECT_EQ(host(1).Cat("file"), "");
}

TEST_F(ClusterSessionsTest, ARecordThatWentBackIsToldAsItIs) {
  MakeHosts(1);
  const InodeId inode = host(0).Put("file", "bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  kv::Transaction older;
  older.Delete(meta::FileKey(inode));
  ASSERT_TRUE(store_->Commit({}, older).ok());
  auto attr = host(0).fs->names().GetAttr({}, inode);
  ASSERT_TRUE(attr.ok());
  EXPECT_EQ(attr->size, 0u);
  LoseSession(0);
  EXPECT_EQ(host(0).Cat("file"), "") << "and nothing in memory counts any more";
}

}  // namespace
}  // namespace cairnfs::fs
