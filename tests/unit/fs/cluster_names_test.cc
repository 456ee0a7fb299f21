// Names among several hosts: visibility, commits, order, orphans, lost sessions.
#include "cluster_fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"

namespace cairnfs::fs {
namespace {

using ClusterNamesTest = ClusterTest;

TEST_F(ClusterNamesTest, NamesAreSeenAtOnce) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  EXPECT_EQ(host(1).fs->names().Lookup({}, kRootInode, "dir")->inode, directory);
  host(1).Create("file", directory);
  EXPECT_TRUE(host(0).fs->names().Lookup({}, directory, "file").ok());
  ASSERT_TRUE(host(0).Unlink("file", directory).ok());
  EXPECT_EQ(host(1).fs->names().Lookup({}, directory, "file").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(host(1).fs->names().Rmdir({}, kRootInode, "dir").ok());
  EXPECT_EQ(host(0).fs->names().Lookup({}, kRootInode, "dir").error().code, ErrorCode::kNotFound);
  meta::CreateParams params;
  params.mode = S_IFREG | 0644;
  auto made = host(0).fs->open_files().Create({}, directory, "late", params, {.write = true});
  EXPECT_EQ(made.error().code, ErrorCode::kNotFound) << "a directory that another host removed";
}

TEST_F(ClusterNamesTest, HostsNeverShareInodeNumbers) {
  MakeHosts(3);
  std::mutex mutex;
  std::set<InodeId> seen;
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 3; h++) {
    threads.emplace_back([&, h] {
      for (int i = 0; i < 20; i++) {
        const InodeId made = host(h).MakeDirectory("d" + std::to_string(h) + "-" + std::to_string(i));
        std::lock_guard lock(mutex);
        EXPECT_TRUE(seen.insert(made).second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen.size(), 60u);
}

TEST_F(ClusterNamesTest, OperationsTakeFewRoundTrips) {
  options_.read_only = true;  // so no record of commits is looked at meanwhile
  MakeHosts(1);
  const InodeId directory = host(0).MakeDirectory("dir");
  host(0).Create("warm", directory);
  auto trips = [&](const std::function<void()>& act) {
    const uint64_t before = host(0).gate->trips;
    act();
    return host(0).gate->trips - before;
  };
  EXPECT_EQ(trips([&] { host(0).Create("file", directory); }), 1u) << "the commit alone";
  EXPECT_EQ(trips([&] { EXPECT_TRUE(host(0).fs->names().Lookup({}, directory, "file").ok()); }), 1u);
  EXPECT_EQ(trips([&] { EXPECT_FALSE(host(0).fs->names().Lookup({}, directory, "none").ok()); }), 1u);
  const InodeId file = host(0).fs->names().Lookup({}, directory, "file")->inode;
  EXPECT_EQ(trips([&] { EXPECT_TRUE(host(0).fs->names().GetAttr({}, file).ok()); }), 1u);
  EXPECT_EQ(trips([&] { EXPECT_TRUE(host(0).OpenInode(file).ok()); }), 1u);
  EXPECT_EQ(trips([&] { EXPECT_TRUE(host(0).Rename(directory, "file", directory, "new").ok()); }), 3u)
      << "the look that tells what it is, the look at all, the commit";
  EXPECT_EQ(trips([&] { EXPECT_TRUE(host(0).fs->names().Unlink({}, directory, "new").ok()); }), 2u);
}

TEST_F(ClusterNamesTest, CommitHasWhatOtherHostsClosedBelow) {
  MakeHosts(3);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  const InodeId deep = host(0).MakeDirectory("deep", temporary);
  host(1).Put("one", TextOf(1, 10'000), temporary);
  host(2).Put("two", TextOf(2, 10'000), deep);
  ASSERT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  EXPECT_EQ(host(0).Cat("one", temporary), TextOf(1, 10'000));
  EXPECT_EQ(host(1).Cat("two", deep), TextOf(2, 10'000));
  EXPECT_TRUE(host(2).fs->names().Lookup({}, kRootInode, "step-1").ok());
}

// As long as the commit's host has not seen it die, the file counts as one that is being written.
TEST_F(ClusterNamesTest, CommitOverlooksNoHostThatIsKnownToBeDead) {
  MakeHosts(3);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(2).PutOpen("bad", TextOf(1, 1000), temporary);
  host(2).Die();
  ASSERT_TRUE(Eventually(
      [&] { return host(0).membership->view()->Find(host(2).membership->self())->state != cluster::NodeState::kUp; }));
  const Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  ASSERT_FALSE(renamed.ok());
  EXPECT_NE(renamed.error().message.find("tmp/bad"), std::string::npos) << renamed.error().message;
}

TEST_F(ClusterNamesTest, CommitFailsWithTheNamesOfWhatADeadHostHadNotSaved) {
  MakeHosts(3);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(1).Put("good", "good", temporary);
  const InodeId bad = host(2).PutOpen("bad", TextOf(1, 1000), temporary);
  host(2).Die();
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(bad) == "lost"; }));
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.error().code, ErrorCode::kIo);
  EXPECT_NE(renamed.error().message.find("host3"), std::string::npos) << renamed.error().message;
  EXPECT_NE(renamed.error().message.find("tmp/bad"), std::string::npos) << renamed.error().message;
  EXPECT_EQ(renamed.error().message.find("good"), std::string::npos) << renamed.error().message;
  EXPECT_TRUE(host(1).fs->names().Lookup({}, kRootInode, "tmp").ok());
  EXPECT_FALSE(host(1).fs->names().Lookup({}, kRootInode, "step-1").ok());
  const auto refused = host(0).fs->maintenance().GetRefusedCommits({});
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].directory, "tmp");
  ASSERT_EQ(refused[0].causes.size(), 1u);
  EXPECT_NE(refused[0].causes[0].file.find("tmp/bad"), std::string::npos);
  const auto last = host(0).fs->names().LastFailedCommit(temporary);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->JoinCauses(), renamed.error().message);
  EXPECT_FALSE(host(0).fs->names().LastFailedCommit(bad));
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(bad) == "lost"; }));
  EXPECT_TRUE(Eventually([&] { return *host(1).Durability(temporary) == "lost"; }));

  // The file has what was published of it, which is nothing. A part of it settles nothing; once all of it is written
  // anew the commit goes through.
  EXPECT_EQ(host(1).fs->names().GetAttr({}, bad)->size, 0u);
  auto write_again = [&](Host& writer, uint64_t offset, std::string_view bytes) {
    auto again = writer.Open("bad", {.read = true, .write = true}, temporary);
    ASSERT_TRUE(again.ok());
    ASSERT_TRUE(writer.Write(*again, offset, bytes).ok());
    ASSERT_TRUE(writer.Fsync(*again).ok());
    ASSERT_TRUE(writer.CloseFile(*again).ok());
  };
  auto is_refused = [&] {
    Status refused = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
    return !refused.ok() && refused.error().message.find("host3") != std::string::npos &&
           refused.error().message.find("tmp/bad") != std::string::npos;
  };
  const std::string anew = TextOf(2, 1010);
  write_again(host(1), 1000, anew.substr(1000));
  EXPECT_TRUE(is_refused()) << "the last bytes alone";
  EXPECT_EQ(*host(1).Durability(bad), "lost");
  write_again(host(0), 0, anew);
  ASSERT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  EXPECT_EQ(host(0).Cat("bad", temporary), anew);
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterNamesTest, AHostThatCameBackDoesNotHideWhatItLost) {
  MakeHosts(2);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  const InodeId bad = host(1).PutKilled("bad", TextOf(1, 1000), temporary);
  LoseSession(1);
  auto write_again = [&](uint64_t offset, size_t size) {
    FileSystem::Created again;
    ASSERT_TRUE(Eventually([&] {
      auto opened = host(1).Open("bad", {.read = true, .write = true}, temporary);
      if (opened.ok()) again = *opened;
      return opened.ok();
    }));
    ASSERT_TRUE(host(1).Write(again, offset, TextOf(2, size)).ok());
    ASSERT_TRUE(host(1).CloseFile(again).ok());
  };
  write_again(1000, 10);
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  ASSERT_FALSE(renamed.ok());
  EXPECT_NE(renamed.error().message.find("host2"), std::string::npos) << renamed.error().message;
  EXPECT_NE(renamed.error().message.find("tmp/bad"), std::string::npos) << renamed.error().message;
  EXPECT_EQ(*host(0).Durability(bad), "lost");
  EXPECT_EQ(*host(1).Durability(bad), "lost");
  write_again(0, 1010);
  ASSERT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterNamesTest, RemovingOrTruncatingALostFileLetsTheCommitThrough) {
  MakeHosts(2);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(1).PutOpen("removed", "x", temporary);
  const InodeId cut = host(1).PutOpen("cut", "x", temporary);
  host(1).Die();
  ASSERT_TRUE(Eventually([&] { return *host(0).Durability(cut) == "lost"; }));
  EXPECT_FALSE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  ASSERT_TRUE(host(0).Unlink("removed", temporary).ok());
  ASSERT_TRUE(host(0).Truncate(cut, 0).ok());
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  EXPECT_TRUE(renamed.ok()) << renamed.error().message;
  EXPECT_TRUE(Eventually([&] { return KeyCount("P") == 0; }));
}

TEST_F(ClusterNamesTest, CommitNamesWhatAHostCannotStore) {
  options_.commit_wait_seconds_max = 2;
  MakeHosts(2);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(1).chunks->syncs_fail = true;
  host(1).PutInVain("file", TextOf(1, 1000), temporary);
  // The mark tells of it when the close has returned, or soon after.
  EXPECT_TRUE(Eventually([&] { return KeyCount("P") == 1; }));
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  ASSERT_FALSE(renamed.ok());
  EXPECT_NE(renamed.error().message.find("host2: too few nodes"), std::string::npos) << renamed.error().message;
  EXPECT_NE(renamed.error().message.find("tmp/file"), std::string::npos) << renamed.error().message;
  host(1).chunks->syncs_fail = false;
  ASSERT_TRUE(host(1).Sync().ok()) << "the bytes are kept";
  EXPECT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
}

// Where a file with two names lies is not in its record.
TEST_F(ClusterNamesTest, LostBytesOfAFileWithTwoNamesFailWhatIsAboveThemAlone) {
  MakeHosts(2);
  const InodeId above = host(0).MakeDirectory("above.tmp"), deep = host(0).MakeDirectory("deep", above);
  const InodeId elsewhere = host(0).MakeDirectory("elsewhere.tmp");
  host(0).Put("good", "good", elsewhere);
  const InodeId torn = host(1).PutOpen("torn", TextOf(1, 1000), above);
  ASSERT_TRUE(host(1).Link(torn, deep, "second").ok());
  host(1).Die();
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(above) == "lost"; }));
  EXPECT_EQ(*host(0).Durability(deep), "lost");
  EXPECT_NE(*host(0).Durability(elsewhere), "lost");
  EXPECT_TRUE(host(0).Rename(kRootInode, "elsewhere.tmp", kRootInode, "elsewhere").ok());
  EXPECT_FALSE(host(0).Rename(kRootInode, "above.tmp", kRootInode, "above").ok());
  EXPECT_FALSE(host(0).Rename(above, "deep", kRootInode, "deep").ok());
  ASSERT_TRUE(host(0).fs->names().Unlink({}, deep, "second").ok());
  EXPECT_TRUE(host(0).Rename(above, "deep", kRootInode, "deep").ok());
}

TEST_F(ClusterNamesTest, ACommitThatLacksCopiesIsListed) {
  MakeHosts(1);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(0).Put("done", TextOf(2, 1000), temporary);
  ASSERT_TRUE(host(0).Sync().ok());
  host(0).chunks->syncs_fail = true;
  host(0).PutInVain("file", TextOf(1, 1000), temporary);
  host(0).PutInVain("elsewhere", TextOf(3, 1000));
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.error().code, ErrorCode::kUnavailable);
  const auto refused = host(0).fs->maintenance().GetRefusedCommits({});
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].directory, "tmp");
  ASSERT_EQ(refused[0].causes.size(), 2u);
  EXPECT_EQ(refused[0].causes[0].Sentence(), "host host1: too few nodes");
  EXPECT_EQ(refused[0].causes[1].Sentence(), "'tmp/file': host host1: 1 of its chunks lacks durable copies");
  host(0).chunks->syncs_fail = false;
  EXPECT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
}

TEST_F(ClusterNamesTest, OfManyFilesThatLackCopiesFewAreNamed) {
  constexpr int kFiles = 30;
  MakeHosts(1);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(0).chunks->syncs_fail = true;
  for (int i = 0; i < kFiles; i++) host(0).PutOpen("file" + std::to_string(i), TextOf(i, 1000), temporary);
  ASSERT_FALSE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  const auto refused = host(0).fs->maintenance().GetRefusedCommits({});
  ASSERT_EQ(refused.size(), 1u);
  const std::vector<meta::RefusalCause>& causes = refused[0].causes;
  ASSERT_EQ(causes.size(), 22u);
  EXPECT_EQ(causes.back().Sentence(), "host host1: 10 more of its files lack copies");
}

// The rename gives up before the round that it waits for does.
TEST_F(ClusterNamesTest, ACommitThatTakesTooLongSaysWhatIsLacking) {
  options_.commit_wait_seconds_max = 1;
  MakeHosts(1);
  const InodeId temporary = host(0).MakeDirectory("tmp");
  host(0).chunks->HangSyncs();
  host(0).PutKilled("file", TextOf(1, 1000), temporary);
  host(0).fs->maintenance().Sync([](const Status&) {});
  EXPECT_TRUE(Eventually([&] { return host(0).chunks->hanging_syncs() > 0; }));
  host(0).PutKilled("later", TextOf(2, 1000), temporary);
  Status renamed = host(0).Rename(kRootInode, "tmp", kRootInode, "step-1");
  const auto refused = host(0).fs->maintenance().GetRefusedCommits({});
  host(0).chunks->LetSyncsGo();
  ASSERT_FALSE(renamed.ok());
  EXPECT_NE(renamed.error().message.find("do not answer: other"), std::string::npos) << renamed.error().message;
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_NE(refused[0].causes[0].why.find("do not answer: other"), std::string::npos);
  ASSERT_EQ(refused[0].causes.size(), 3u);
  EXPECT_EQ(refused[0].causes[1].Sentence(), "'tmp/file': host host1: 1 of its chunks lacks durable copies");
  EXPECT_EQ(refused[0].causes[2].Sentence(), "'tmp/later': host host1: 1 of its chunks lacks durable copies");
}

TEST_F(ClusterNamesTest, AFileThatMovedIsBelowItsNewDirectory) {
  MakeHosts(2);
  const InodeId from = host(0).MakeDirectory("from"), to = host(0).MakeDirectory("to");
  auto file = host(1).Create("file", from);
  ASSERT_TRUE(host(1).Rename(from, "file", to, "file").ok());
  ASSERT_TRUE(host(1).Write(file, 0, "bytes").ok());
  host(1).Die();
  EXPECT_TRUE(Eventually([&] { return *host(0).Durability(file.attr.inode) == "lost"; }));
  EXPECT_TRUE(host(0).Rename(kRootInode, "from", kRootInode, "other").ok());
  EXPECT_FALSE(host(0).Rename(kRootInode, "to", kRootInode, "done").ok());
}

TEST_F(ClusterNamesTest, RenameOfAFileWaitsForItsBytes) {
  MakeHosts(2);
  host(0).Put("old", "old");
  const InodeId own = host(0).PutOpen("own", "own");
  ASSERT_TRUE(host(0).Rename(kRootInode, "own", kRootInode, "old").ok());
  EXPECT_TRUE(HasKey(meta::FileKey(own)));
  EXPECT_EQ(host(1).Cat("old"), "own");
}

TEST_F(ClusterNamesTest, DeletionComesAfterWhatWasClosedBefore) {
  MakeHosts(2);
  host(0).Put("old", "old");
  host(0).Put("new", "new");
  // Its process was killed: nobody waited for it.
  auto fresh = host(0).Create("fresh");
  ASSERT_TRUE(host(0).Write(fresh, 0, "fresh").ok());
  host(0).fs->open_files().Release(fresh.handle);
  auto open = host(0).Create("open");
  ASSERT_TRUE(host(0).Write(open, 0, "not closed").ok());
  EXPECT_FALSE(HasKey(meta::FileKey(fresh.attr.inode)));
  ASSERT_TRUE(host(0).Unlink("old").ok());
  EXPECT_TRUE(HasKey(meta::FileKey(fresh.attr.inode)));
  EXPECT_FALSE(HasKey(meta::FileKey(open.attr.inode))) << "nobody has closed it";
  host(0).chunks->syncs_fail = true;
  host(0).PutInVain("newer", "newer");
  ASSERT_TRUE(host(0).Unlink("new").ok()) << "its process was told that it is not safe";
  host(0).chunks->syncs_fail = false;
  ASSERT_TRUE(host(0).CloseFile(open).ok());
}

TEST_F(ClusterNamesTest, UnlinkedHereStaysOpenThere) {
  MakeHosts(3);
  const InodeId inode = host(0).Put("file", "bytes");
  auto open = host(1).Open("file");
  ASSERT_TRUE(open.ok());
  ASSERT_TRUE(host(0).Unlink("file").ok());
  host(0).fs->names().Forget(inode, 1);
  SettleOrphans(host(0));
  EXPECT_GE(board_.hold_calls, 2);
  EXPECT_TRUE(HasKey(meta::InodeKey(inode)));
  ASSERT_TRUE(host(1).Write(*open, 5, " more").ok());
  ASSERT_TRUE(host(1).Fsync(*open).ok());
  EXPECT_EQ(*host(1).Read(*open, 0, 100), "bytes more");
  EXPECT_FALSE(host(2).OpenInode(inode).ok()) << "it has said that it does not hold it";
  ASSERT_TRUE(host(1).CloseFile(*open).ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); })) << "the last to close it has it removed";
  EXPECT_FALSE(HasKey(meta::FileKey(inode)));
  EXPECT_FALSE(HasKey(meta::OrphanKey(inode)));
  EXPECT_EQ(KeyCount(meta::MarkPrefix(inode)), 0u);
}

TEST_F(ClusterNamesTest, AHostThatStartsLeavesOrphansThatOthersHold) {
  options_.orphan_sweep_every_ms = 20;
  AddHost(2);
  const InodeId inode = host(0).Put("file", "bytes");
  auto open = host(0).Open("file");
  ASSERT_TRUE(open.ok());
  ASSERT_TRUE(host(0).Unlink("file").ok());
  host(0).fs->names().Forget(inode, 1);
  AddHost(1);  // the first in the order of ids: it sweeps
  // Who holds the file asks nobody before it closes it, and each sweep comes when the one before it is over.
  ASSERT_TRUE(Eventually([&] { return board_.hold_calls >= 3; }));
  EXPECT_EQ(*host(0).Read(*open, 0, 100), "bytes");
  EXPECT_TRUE(HasKey(meta::InodeKey(inode)));
  ASSERT_TRUE(host(0).CloseFile(*open).ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); }));
}

TEST_F(ClusterNamesTest, ASweepRemovesWhatADeadHostHeld) {
  options_.orphan_sweep_every_ms = 20;
  MakeHosts(2);
  const InodeId inode = host(1).Put("file", "bytes");
  auto open = host(1).Open("file");
  ASSERT_TRUE(open.ok());
  ASSERT_TRUE(host(1).Unlink("file").ok());
  ASSERT_TRUE(Eventually([&] { return board_.hold_calls >= 2; }));
  EXPECT_TRUE(HasKey(meta::InodeKey(inode)));
  host(1).Die();
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); }));
}

TEST_F(ClusterNamesTest, AHostThatLostItsSessionPublishesNothingOfIt) {
  MakeHosts(2);
  const InodeId closed = host(0).PutOpen("closed", "written under the first session");
  auto open = host(0).Create("open");
  ASSERT_TRUE(host(0).Write(open, 0, "written under the first session").ok());
  auto reader = host(0).Open("closed", {.read = true});
  ASSERT_TRUE(reader.ok());
  LoseSession(0);
  Status synced = host(0).Fsync(open);
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kIo);
  EXPECT_FALSE(host(0).Write(open, 0, "more").ok()) << "for good: what it wrote before is lost";
  EXPECT_EQ(host(0).fs->CheckSession(open.handle).error().code, ErrorCode::kIo) << "nothing can be locked in it";
  EXPECT_EQ(host(0).fs->CheckSession(reader->handle).error().code, ErrorCode::kIo);
  EXPECT_FALSE(host(0).CloseFile(open).ok());
  EXPECT_FALSE(host(0).CloseFile(*reader).ok()) << "bytes of what it had open are lost";
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_FALSE(HasKey(meta::FileKey(closed)));
  EXPECT_FALSE(HasKey(meta::FileKey(open.attr.inode)));
  EXPECT_EQ(host(1).Cat("closed"), "");
  EXPECT_EQ(host(1).fs->names().GetAttr({}, closed)->size, 0u);
  EXPECT_EQ(host(0).fs->names().GetAttr({}, closed)->size, 0u);
  EXPECT_EQ(*host(0).Durability(closed), "lost") << "its own old mark tells so";
  EXPECT_EQ(*host(1).Durability(closed), "lost");
  // New opens go on.
  host(0).Put("after", "after");
  EXPECT_EQ(host(1).Cat("after"), "after");
  OpenFlags truncates{.read = true, .write = true, .truncate = true};
  auto again = host(0).Open("closed", truncates);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(host(0).fs->CheckSession(again->handle).ok());
  ASSERT_TRUE(host(0).Write(*again, 0, "written anew").ok());
  ASSERT_TRUE(host(0).CloseFile(*again).ok());
  EXPECT_EQ(host(1).Cat("closed"), "written anew");
  EXPECT_EQ(*host(1).Durability(closed), "replicated");
}

TEST_F(ClusterNamesTest, ASessionThatEndsWhileARecordIsOnItsWayRefusesIt) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).gate->before_commit = [&] { host(0).EndSession(); };
  EXPECT_FALSE(host(0).Fsync(file).ok());
  EXPECT_FALSE(HasKey(meta::FileKey(file.attr.inode)));
  ASSERT_TRUE(Eventually([&] { return host(0).membership->session().ok(); }));
  static_cast<void>(host(0).Sync());
  EXPECT_FALSE(HasKey(meta::FileKey(file.attr.inode)));
  EXPECT_FALSE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterNamesTest, AStoreThatIsAwayLosesNothing) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).gate->shut = true;
  EXPECT_FALSE(host(0).Fsync(file).ok());
  EXPECT_FALSE(host(0).Flush(file).ok());
  host(0).gate->shut = false;
  ASSERT_TRUE(host(0).Write(file, 5, " and more").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes and more");
}

TEST_F(ClusterNamesTest, AStopLeavesNothingPending) {
  MakeHosts(2);
  const InodeId inode = host(0).PutOpen("file", "bytes");
  host(0).Close();
  EXPECT_TRUE(HasKey(meta::FileKey(inode)));
  EXPECT_EQ(KeyCount("P"), 0u);
  EXPECT_EQ(host(1).Cat("file"), "bytes");
}

TEST_F(ClusterNamesTest, AFileRemovedElsewhereHoldsUpNoRound) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  const InodeId inode = file.attr.inode;
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).fs->open_files().Release(file.handle);
  host(0).fs->names().Forget(inode, 1);
  ASSERT_TRUE(host(1).Unlink("file").ok());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::InodeKey(inode)); }));
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_FALSE(HasKey(meta::FileKey(inode)));
  EXPECT_EQ(KeyCount("P"), 0u);
}

TEST_F(ClusterNamesTest, TheCheckFindsChunksOfOtherNodes) {
  MakeHosts(2);
  host(0).Put("file", TextOf(1, 200'000));
  EXPECT_EQ(host(1).Cat("file"), TextOf(1, 200'000));
  auto report =
      Host::Await<CheckReport>([&](Done<CheckReport> done) { host(1).fs->maintenance().Check({}, std::move(done)); });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->problem_count, 0u) << report->problems[0];
  EXPECT_EQ(report->files, 1u);
}

}  // namespace
}  // namespace cairnfs::fs
