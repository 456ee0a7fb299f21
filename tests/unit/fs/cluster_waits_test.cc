// What waits for chunks that other hosts have, for copies, or for a round of its own host: that it holds up nothing
// else, and what ends the wait. No call waits for another host to publish.
#include <future>
#include <vector>

#include "base/clock.h"
#include "chunking/digest.h"
#include "cluster_fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/recipe.h"

namespace cairnfs::fs {
namespace {

class ClusterWaitsTest : public ClusterTest {
 protected:
  static constexpr int kCrowd = 40;  // more than there are threads for calls of one kind

  static void SetTime(Host& host, InodeId inode, Done<void> done, const Caller& caller = {}) {
    SetAttrRequest request;
    request.mtime = Timestamp{100, 0};
    auto tell = [done = std::move(done)](const Result<meta::Attr>& attr) {
      done(attr.ok() ? Status() : Status(attr.error()));
    };
    host.fs->attributes().SetAttr(inode, request, std::move(tell), caller);
  }
  // `call(i, done)` is made kCrowd times, as requests of the kernel are. They all wait, until `end` is called, and a
  // stat that is asked for once `is_crowded` does not wait with them.
  void ExpectStatBeside(Host& at, const std::function<void(int, Done<void>)>& call,
                        const std::function<bool()>& is_crowded, const std::function<void()>& end) {
    std::atomic<int> ended{0}, failed{0};
    for (int i = 0; i < kCrowd; i++) {
      at.fs->RunBlocking([&, i] {
        call(i, [&](const Status& status) {
          if (!status.ok()) failed++;
          ended++;
        });
      });
    }
    EXPECT_TRUE(Eventually(is_crowded));
    std::atomic<bool> stat{false};
    at.fs->RunBlocking([&] { stat = at.fs->names().GetAttr({}, kRootInode).ok(); });
    EXPECT_TRUE(Eventually([&] { return stat.load(); }));
    EXPECT_EQ(ended, 0);
    end();
    EXPECT_TRUE(Eventually([&] { return stat && ended == kCrowd; }));
    EXPECT_EQ(failed, 0);
  }
  using KilledCall = std::function<void(const Caller&, Done<void>)>;
  // What a call gives whose caller is killed once it waits.
  static Status KillOnce(const std::function<bool()>& waits, const KilledCall& call) {
    std::stop_source kill;
    Caller caller;
    caller.context = Context(kill.get_token());
    auto promise = std::make_shared<std::promise<Status>>();
    auto result = promise->get_future();
    call(caller, [promise](const Status& status) { promise->set_value(status); });
    EXPECT_TRUE(Eventually(waits));
    kill.request_stop();
    if (IsReadyWithin(result, std::chrono::seconds(40))) return result.get();
    return MakeError(ErrorCode::kBusy, "it waits on");
  }
  static void ExpectInterrupted(const Status& status) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInterrupted) << status.error().message;
  }
  static Status CommitTmp(Host& at) { return at.Rename(kRootInode, "tmp", kRootInode, "step"); }
  // A file of level `local`, that host 0 has written below "scratch"; host 1 knows that by then.
  struct Scratch {
    InodeId directory, file;
  };
  Scratch MakeScratch() {
    const InodeId scratch = host(0).MakeDirectory("scratch");
    EXPECT_TRUE(host(0)
                    .fs->attributes()
                    .SetXattr({}, scratch, "user.cairnfs.level", "local", meta::Namespace::XattrMode::kSet)
                    .ok());
    auto file = host(0).Create("file", scratch);
    EXPECT_TRUE(host(0).Write(file, 0, "bytes").ok());
    EXPECT_TRUE(host(0).Fsync(file).ok());
    EXPECT_TRUE(host(0).CloseFile(file).ok());
    EXPECT_TRUE(Eventually([&] { return *host(1).Durability(file.attr.inode) == "local"; }));
    return {scratch, file.attr.inode};
  }
  // Of the file, to where copies are promised.
  static void Move(Host& at, const Scratch& scratch, const Caller& caller, Done<void> done) {
    at.fs->names().Rename({scratch.directory, "file", kRootInode, "moved", meta::RenameMode::kReplace}, caller,
                          std::move(done));
  }
  static void Link(Host& at, InodeId file, const std::string& name, const Caller& caller, const Done<void>& done) {
    auto tell = [done](const Result<meta::Attr>& attr) { done(attr.ok() ? Status() : Status(attr.error())); };
    at.fs->names().Link(file, kRootInode, name, std::move(tell), caller);
  }
};

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

TEST_F(ClusterWaitsTest, LinksThatWaitForCopiesHoldUpNothingElse) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  ExpectStatBeside(
      host(1), [&](int i, Done<void> done) { Link(host(1), scratch.file, "link" + std::to_string(i), {}, done); },
      [&] { return chunks.syncs >= before + 32; }, [&] { chunks.syncs_hang = false; });
}

TEST_F(ClusterWaitsTest, WhoIsKilledWaitsForCopiesNoMore) {
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  uint64_t before = chunks.syncs;
  const auto waits = [&] { return chunks.syncs > before; };
  chunks.syncs_hang = true;
  const Status linked = KillOnce(
      waits, [&](const Caller& caller, Done<void> done) { Link(host(1), scratch.file, "link", caller, done); });
  before = chunks.syncs;
  const Status moved =
      KillOnce(waits, [&](const Caller& caller, Done<void> done) { Move(host(1), scratch, caller, std::move(done)); });
  chunks.syncs_hang = false;
  for (const Status& status : {linked, moved}) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kInterrupted) << status.error().message;
  }
  EXPECT_TRUE(host(1).Rename(scratch.directory, "file", kRootInode, "moved").ok());
}

TEST_F(ClusterWaitsTest, AServerThatStopsAwaitsNoCopies) {
  options_.commit_wait_seconds_max = 3600;
  MakeHosts(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  auto promise = std::make_shared<std::promise<Status>>();
  auto moved = promise->get_future();
  Move(host(1), scratch, {}, [promise](const Status& status) { promise->set_value(status); });
  EXPECT_TRUE(Eventually([&] { return chunks.syncs > before; }));
  host(1).fs->EndWaits();
  const bool is_over = IsReadyWithin(moved, std::chrono::seconds(60));
  chunks.syncs_hang = false;
  ASSERT_TRUE(is_over);
  const Status status = moved.get();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("stopping"), std::string::npos) << status.error().message;
}

TEST_F(ClusterWaitsTest, WhatWaitsForCopiesEndsWithItsTime) {
  AddHost(1);
  options_.commit_wait_seconds_max = 1;
  AddHost(2);
  const Scratch scratch = MakeScratch();
  TestChunks& chunks = *host(1).chunks;
  chunks.syncs_hang = true;
  auto promise = std::make_shared<std::promise<Status>>();
  auto linked = promise->get_future();
  Link(host(1), scratch.file, "link", {}, [promise](const Status& status) { promise->set_value(status); });
  const bool is_over = IsReadyWithin(linked, std::chrono::seconds(60));
  chunks.syncs_hang = false;
  ASSERT_TRUE(is_over);
  const Status status = linked.get();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
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
TEST_F(ClusterWaitsTest, WhoIsKilledDoesNotWaitForTheStoreToCommitANameEither) {
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

// A chunk that left memory before it had its copies, and that the disk does not give back.
TEST_F(ClusterWaitsTest, AChunkThatCannotBeReadBackHoldsUpItsOwnFileAlone) {
  MakeHosts(2);
  const std::string text = TextOf(1, 1000);
  auto bad = host(0).Create("bad"), good = host(0).Create("good");
  host(0).chunks->SetUnreadable(chunking::ComputeDigest(AsBytes(text)));
  ASSERT_TRUE(host(0).Write(bad, 0, text).ok());
  ASSERT_TRUE(host(0).Write(good, 0, TextOf(2, 1000)).ok());
  EXPECT_FALSE(host(0).Flush(bad).ok());
  EXPECT_FALSE(host(0).Fsync(bad).ok());
  EXPECT_TRUE(host(0).Fsync(good).ok());
  EXPECT_EQ(host(1).Cat("good"), TextOf(2, 1000));
  EXPECT_TRUE(host(0).CloseFile(good).ok());
  EXPECT_TRUE(host(0).fs->names().Unlink({}, kRootInode, "good").ok());
  host(0).chunks->SetAllReadable();
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(bad).ok(); }));
  EXPECT_EQ(host(1).Cat("bad"), text);
  EXPECT_TRUE(host(0).CloseFile(bad).ok());
}

TEST_F(ClusterWaitsTest, ClosesThatWaitForARoundLeaveTheOthersAlone) {
  MakeHosts(2);
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < kCrowd; i++) files.push_back(host(0).Create("file-" + std::to_string(i)));
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  ExpectStatBeside(
      host(0),
      [&](int i, Done<void> done) {
        const FileSystem::Created& file = files[static_cast<size_t>(i)];
        EXPECT_TRUE(host(0).Write(file, 0, "x").ok());
        host(0).fs->Flush(file.handle, file.attr.inode, std::move(done));
      },
      [&] { return chunks.syncs > before; }, [&] { chunks.syncs_hang = false; });
  for (int i = 0; i < kCrowd; i++) EXPECT_EQ(host(1).Cat("file-" + std::to_string(i)), "x");
  for (const auto& file : files) host(0).fs->Release(file.handle, file.attr.inode);
}

TEST_F(ClusterWaitsTest, ChangesThatWaitForARoundLeaveTheOthersAlone) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "x").ok());
  const uint64_t before = host(0).chunks->syncs;
  host(0).chunks->syncs_hang = true;
  auto synced = std::async(std::launch::async, [&] { return host(0).Sync(); });
  EXPECT_TRUE(Eventually([&] { return host(0).chunks->syncs > before; }));  // the round has it
  // Each has its turn before the stat has: nothing is to be waited for.
  ExpectStatBeside(
      host(0), [&](int, Done<void> done) { SetTime(host(0), file.attr.inode, std::move(done)); }, [] { return true; },
      [&] { host(0).chunks->syncs_hang = false; });
  EXPECT_TRUE(synced.get().ok());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterWaitsTest, CommitsThatWaitForARoundLeaveTheOthersAlone) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(1);
  std::vector<InodeId> parents;
  for (int i = 0; i < kCrowd; i++) {
    parents.push_back(host(0).MakeDirectory("parent-" + std::to_string(i)));
    host(0).Put("file", "x", host(0).MakeDirectory("tmp", parents.back()));
  }
  auto written = host(0).Create("written");
  ASSERT_TRUE(host(0).Write(written, 0, "x").ok());
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  ExpectStatBeside(
      host(0),
      [&](int i, Done<void> done) {
        const InodeId parent = parents[static_cast<size_t>(i)];
        meta::RenameParams params{parent, "tmp", parent, "step", meta::RenameMode::kReplace};
        host(0).fs->names().Rename(params, {}, std::move(done));
      },
      [&] { return chunks.syncs > before; }, [&] { chunks.syncs_hang = false; });
  EXPECT_TRUE(host(0).CloseFile(written).ok());
}

TEST_F(ClusterWaitsTest, NobodyWaitsForAHostThatCannotPublish) {
  MakeHosts(2);
  const InodeId tmp = host(1).MakeDirectory("tmp");
  const InodeId inode = host(1).Put("file", "old", tmp);
  auto file = host(1).Open("file", {.read = true, .write = true}, tmp);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(host(1).Write(*file, 0, "newer").ok());
  TestChunks& chunks = *host(1).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  auto closed = std::async(std::launch::async, [&] { return host(1).Flush(*file); });
  EXPECT_TRUE(Eventually([&] { return chunks.syncs > before; }));
  EXPECT_EQ(host(0).Cat("file", tmp), "old");
  EXPECT_EQ(host(0).fs->names().GetAttr({}, inode)->size, 3u);
  EXPECT_EQ(*host(0).Durability(inode), "pending");
  EXPECT_TRUE(Host::Await<void>([&](Done<void> done) { SetTime(host(0), inode, std::move(done)); }).ok());
  EXPECT_TRUE(CommitTmp(host(0)).ok());
  EXPECT_EQ(closed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  chunks.syncs_hang = false;
  EXPECT_TRUE(closed.get().ok());
  EXPECT_EQ(host(0).Cat("file", tmp), "newer");
  EXPECT_EQ(*host(0).Durability(inode), "replicated");
  EXPECT_TRUE(host(1).CloseFile(*file).ok());
}

// The round goes on without them.
TEST_F(ClusterWaitsTest, WhoIsKilledWaitsForNoRound) {
  MakeHosts(2);
  const InodeId timed = host(0).Put("timed", "x");
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  const auto waits = [&] { return chunks.syncs > before; };
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->Flush(file.handle, file.attr.inode, std::move(done), caller);
  }));
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->Fsync(file.handle, file.attr.inode, false, std::move(done), caller);
  }));
  ExpectInterrupted(KillOnce(
      waits, [&](const Caller& caller, Done<void> done) { SetTime(host(0), timed, std::move(done), caller); }));
  chunks.syncs_hang = false;
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(host(1).fs->names().GetAttr({}, timed)->mtime.seconds, 100);
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterWaitsTest, WhoIsKilledDoesNotWaitToChangeAFileThatARoundOwes) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  auto flushed = std::async(std::launch::async, [&] { return host(0).Flush(file); });
  EXPECT_TRUE(Eventually([&] { return chunks.syncs > before; }));
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
  chunks.syncs_hang = false;
  EXPECT_TRUE(flushed.get().ok());
  EXPECT_EQ(host(0).Cat("file"), "bytes");
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterWaitsTest, WhoIsKilledDoesNotWaitForTheStoreToPublish) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  std::atomic<bool> is_asked{false}, may_answer{false};
  host(0).gate->refuse = [&](const kv::Transaction&) -> std::optional<Error> {
    is_asked = true;
    while (!may_answer) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return std::nullopt;
  };
  ExpectInterrupted(KillOnce([&] { return is_asked.load(); },
                             [&](const Caller& caller, Done<void> done) {
                               host(0).fs->Flush(file.handle, file.attr.inode, std::move(done), caller);
                             }));
  may_answer = true;
  EXPECT_TRUE(host(0).Sync().ok());
  host(0).gate->refuse = nullptr;
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

// It may never come, and who waits must not keep a server from stopping.
TEST_F(ClusterWaitsTest, NothingWaitsForTheAnswerToAMark) {
  MakeHosts(1);
  const InodeId inode = host(0).Put("file", "old");
  auto file = host(0).Open("file");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(host(0).Write(*file, 0, "newer").ok());
  host(0).gate->refuse = [](const kv::Transaction& transaction) -> std::optional<Error> {
    if (!transaction.operation_id.starts_with("mark/")) return std::nullopt;
    return Gate::Away();
  };
  EXPECT_FALSE(host(0).Flush(*file).ok());
  auto set = std::async(std::launch::async, [&] {
    return Host::Await<void>([&](Done<void> done) { SetTime(host(0), inode, std::move(done)); });
  });
  host(0).fs->EndWaits();
  EXPECT_EQ(set.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  host(0).gate->refuse = nullptr;
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(*file).ok(); }));
  static_cast<void>(set.get().ok());
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("file"), "newer");
}

TEST_F(ClusterWaitsTest, ACloseThatCannotReachTheStoreFailsAndItsBytesFollow) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  host(0).gate->shut = true;
  const Status closed = host(0).CloseFile(file);
  ASSERT_FALSE(closed.ok());
  EXPECT_EQ(closed.error().code, ErrorCode::kUnavailable) << closed.error().message;
  EXPECT_EQ(host(1).Cat("file"), "");
  EXPECT_EQ(*host(1).Durability(file.attr.inode), "pending");
  host(0).gate->shut = false;
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("file"), "bytes");
  EXPECT_EQ(*host(1).Durability(file.attr.inode), "replicated");
}

TEST_F(ClusterWaitsTest, ACommitWhoseCallerWasKilledHasNotFailed) {
  options_.commit_wait_seconds_max = 600;
  MakeHosts(1);
  auto file = host(0).Create("file", host(0).MakeDirectory("tmp"));
  ASSERT_TRUE(host(0).Write(file, 0, "bytes").ok());
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  const auto waits = [&] { return chunks.syncs > before; };
  ExpectInterrupted(KillOnce(waits, [&](const Caller& caller, Done<void> done) {
    host(0).fs->names().Rename({kRootInode, "tmp", kRootInode, "step", meta::RenameMode::kReplace}, caller,
                               std::move(done));
  }));
  chunks.syncs_hang = false;
  EXPECT_TRUE(host(0).fs->maintenance().GetStatus().failed_commits.empty());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_TRUE(CommitTmp(host(0)).ok());
}

// The view of the host that commits lags behind.
TEST_F(ClusterWaitsTest, AHostThatHasJustJoinedIsNotTakenForGone) {
  MakeHosts(2);
  const InodeId tmp = host(0).MakeDirectory("tmp");
  host(0).membership->FreezeView();
  Host& joined = AddHost(3);
  auto file = joined.Create("file", tmp);
  ASSERT_TRUE(joined.Write(file, 0, "bytes").ok());
  EXPECT_EQ(*host(0).Durability(file.attr.inode), "pending");
  EXPECT_TRUE(CommitTmp(host(0)).ok());
  EXPECT_TRUE(joined.CloseFile(file).ok());
  EXPECT_EQ(host(0).Cat("file", tmp), "bytes");
}

TEST_F(ClusterWaitsTest, ACommitFailsForBytesThatAreLostWhileItWaits) {
  MakeHosts(2);
  const InodeId tmp = host(0).MakeDirectory("tmp");
  auto own = host(0).Create("own", tmp), bad = host(1).Create("bad", tmp);
  ASSERT_TRUE(host(0).Write(own, 0, TextOf(1, 1000)).ok());
  ASSERT_TRUE(host(1).Write(bad, 0, TextOf(2, 1000)).ok());
  TestChunks& chunks = *host(0).chunks;
  const uint64_t before = chunks.syncs;
  chunks.syncs_hang = true;
  auto renamed = std::async(std::launch::async, [&] { return CommitTmp(host(0)); });
  EXPECT_TRUE(Eventually([&] { return chunks.syncs > before; }));
  LoseSession(1);
  chunks.syncs_hang = false;
  const Status status = renamed.get();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("host2"), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("tmp/bad"), std::string::npos) << status.error().message;
  EXPECT_FALSE(host(1).CloseFile(bad).ok());
  EXPECT_TRUE(host(0).CloseFile(own).ok());
}

}  // namespace
}  // namespace cairnfs::fs
