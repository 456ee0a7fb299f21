// What a host publishes of a file while another one writes it, and the store's answer is late or lost.
#include <algorithm>
#include <future>

#include "cluster_fixture.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

class ClusterPublishTest : public ClusterTest {
 protected:
  // A synced file "file" with "0123456789", over whose begin the first host has written "aaaa".
  Result<FileSystem::Created> OpenAndWrite() {
    host(0).Put("file", "0123456789");
    EXPECT_TRUE(host(0).Sync().ok());
    auto file = host(0).Open("file");
    if (!file.ok()) return file;
    EXPECT_TRUE(host(0).Write(*file, 0, "aaaa").ok());
    return file;
  }
  // From now on the first host's publishes, or those for which `concerns` says so, get this answer and are not made.
  void Refuse(const Error& error, std::function<bool(const kv::Transaction&)> concerns = {}) {
    host(0).gate->refuse = [error, concerns](const kv::Transaction& transaction) -> std::optional<Error> {
      const bool is_publish = transaction.operation_id.starts_with("publish/");
      if (!is_publish || (concerns && !concerns(transaction))) return std::nullopt;
      return error;
    };
  }
  void RefuseNone() { host(0).gate->refuse = nullptr; }
  // Nobody will ever tell what became of the next publish, as where its slot is gone.
  void NeverTell() {
    Refuse(Gate::Away(), [id = std::make_shared<std::string>()](const kv::Transaction& transaction) {
      if (id->empty()) *id = transaction.operation_id;
      return transaction.operation_id == *id;
    });
  }
  std::future<Result<meta::Attr>> SetTime(InodeId inode) {
    SetAttrRequest times;
    times.mtime = Timestamp{1'000'000'000, 0};
    return std::async(std::launch::async, [this, inode, times] { return host(0).SetAttr(inode, times); });
  }
};

constexpr std::chrono::seconds kSoon{20};

void WriteSynced(Host& host, std::string_view name, uint64_t offset, const std::string& text) {
  auto file = host.Open(name);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(host.Write(*file, offset, text).ok());
  ASSERT_TRUE(host.Fsync(*file).ok());
  ASSERT_TRUE(host.CloseFile(*file).ok());
}

TEST_F(ClusterPublishTest, WhatCameAfterAPublishWhoseAnswerWasLostStays) {
  MakeHosts(2);
  auto file = OpenAndWrite();
  ASSERT_TRUE(file.ok());
  host(0).gate->lose_answer = true;
  host(0).gate->after_commit = [&] { WriteSynced(host(1), "file", 2, "bbbb"); };
  EXPECT_FALSE(host(0).Fsync(*file).ok());
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(*file).ok(); }));
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
  EXPECT_EQ(host(1).Cat("file"), "aabbbb6789");
  EXPECT_EQ(host(0).Cat("file"), "aabbbb6789");
}

// The store stays away, and says at last that the transaction did not run.
TEST_F(ClusterPublishTest, WhatNeverRanIsPublishedLater) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "aaaa").ok());
  host(0).gate->before_commit = [&] { host(0).gate->shut = true; };
  EXPECT_FALSE(host(0).Fsync(file).ok());
  EXPECT_FALSE(host(0).Fsync(file).ok()) << "nothing is durable while that is not known";
  ASSERT_TRUE(host(0).Write(file, 4, "bbbb").ok());
  host(0).gate->shut = false;
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(file).ok(); }));
  EXPECT_EQ(host(1).Cat("file"), "aaaabbbb");
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterPublishTest, AnOpenAwaitsTheAnswerThatTellsWhoseBytesCameLast) {
  MakeHosts(2);
  auto file = OpenAndWrite();
  ASSERT_TRUE(file.ok());
  std::future<std::string> read;
  host(0).gate->after_commit = [&] {
    WriteSynced(host(1), "file", 2, "bbbb");
    read = std::async(std::launch::async, [&] { return host(0).Cat("file"); });
    // Time for a read that does not wait; one that does gives the same however long this is.
    static_cast<void>(IsReadyWithin(read, std::chrono::milliseconds(300)));
  };
  EXPECT_TRUE(host(0).Fsync(*file).ok());
  ASSERT_TRUE(read.valid());
  EXPECT_EQ(read.get(), "aabbbb6789");
  EXPECT_TRUE(host(0).CloseFile(*file).ok());
}

// Its answer may never come, and who waits must not keep a server from stopping.
TEST_F(ClusterPublishTest, WhatWaitsForALostAnswerGivesUpAtAStop) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "aaaa").ok());
  host(0).gate->lose_answer = true;
  EXPECT_FALSE(host(0).Fsync(file).ok());
  auto set = SetTime(file.attr.inode);
  host(0).fs->EndWaits();
  EXPECT_FALSE(set.get().ok());
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(file).ok(); }));
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterPublishTest, TheNextSessionDoesNotAwaitAnAnswerToTheLast) {
  MakeHosts(2);
  auto before = host(0).Create("before");
  ASSERT_TRUE(host(0).Write(before, 0, "aaaa").ok());
  NeverTell();
  EXPECT_FALSE(host(0).Fsync(before).ok());
  LoseSession(0);
  auto since = host(0).Create("since");
  ASSERT_TRUE(host(0).Write(since, 0, "bbbb").ok());
  const Status synced = host(0).Fsync(since);
  EXPECT_TRUE(synced.ok()) << synced.error().message;
  EXPECT_EQ(host(1).Cat("since"), "bbbb");
  EXPECT_TRUE(host(0).CloseFile(since).ok());
  EXPECT_FALSE(host(0).CloseFile(before).ok());
}

TEST_F(ClusterPublishTest, WhatWaitsForAPublishEndsWithItsSession) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "aaaa").ok());
  NeverTell();
  EXPECT_FALSE(host(0).Fsync(file).ok());
  Gate& gate = *host(0).gate;
  std::promise<void> has_begun;  // under the session that is lost then: it reads the attributes, then the record
  gate.before_read = [&] { gate.before_read = [&] { has_begun.set_value(); }; };
  auto set = SetTime(file.attr.inode);
  has_begun.get_future().wait();
  // Time for it to come to wait for the publish. Where it has not, it ends as well.
  static_cast<void>(IsReadyWithin(set, std::chrono::milliseconds(300)));
  LoseSession(0);
  EXPECT_TRUE(IsReadyWithin(set, kSoon));
  static_cast<void>(host(0).Sync());
  EXPECT_FALSE(set.get().ok());
  EXPECT_FALSE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterPublishTest, NothingWaitsForWhatAFullStoreRefused) {
  MakeHosts(1);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "aaaa").ok());
  Refuse(MakeError(ErrorCode::kNoSpace, "the store is full"));
  const Status synced = host(0).Fsync(file);
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kNoSpace);
  auto set = SetTime(file.attr.inode);
  EXPECT_EQ(set.wait_for(kSoon), std::future_status::ready);
  const auto times = set.get();
  ASSERT_FALSE(times.ok());
  EXPECT_EQ(times.error().code, ErrorCode::kNoSpace);
  RefuseNone();
  EXPECT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterPublishTest, AKeyThatCannotBeReadHoldsUpNoOtherFile) {
  MakeHosts(2);
  const InodeId bad = host(0).PutOpen("bad", "aaaa");
  host(0).PutOpen("good", "bbbb");
  Refuse(MakeError(ErrorCode::kCorrupt, "a block of the store is damaged"),
         [key = meta::FileKey(bad)](const kv::Transaction& transaction) {
           return std::any_of(transaction.writes.begin(), transaction.writes.end(),
                              [&](const kv::KvWrite& write) { return write.key == key; });
         });
  const Status synced = host(0).Sync();
  ASSERT_FALSE(synced.ok());
  EXPECT_EQ(synced.error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(HasKey(meta::FileKey(host(0).fs->names().Lookup({}, kRootInode, "good")->inode)));
  EXPECT_EQ(host(1).Cat("good"), "bbbb");
  RefuseNone();
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(1).Cat("bad"), "aaaa");
}

TEST_F(ClusterPublishTest, ARoundAsksAStoreThatIsAwayOnce) {
  MakeHosts(2);
  constexpr size_t kFiles = 100;  // more than a few transactions publish
  for (size_t i = 0; i < kFiles; i++) host(0).PutKilled("file-" + std::to_string(i), "bytes");
  auto asked = std::make_shared<std::atomic<int>>(0);
  Refuse(Gate::Away(), [asked](const kv::Transaction&) { return ++*asked > 0; });
  EXPECT_FALSE(host(0).Sync().ok());
  EXPECT_EQ(*asked, 1);
  EXPECT_FALSE(host(0).Sync().ok());
  EXPECT_EQ(*asked, 2) << "of the same transaction";
  RefuseNone();
  EXPECT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(KeyCount("D"), kFiles);
  EXPECT_EQ(KeyCount("P"), 0u);
  EXPECT_EQ(host(1).Cat("file-99"), "bytes");
}

TEST_F(ClusterPublishTest, NothingIsLostWhereAnotherHostIsQuickerAllTheTime) {
  MakeHosts(1);
  host(0).PutOpen("file", "bytes");
  Refuse(MakeError(ErrorCode::kConflict, "another host has published it"));
  EXPECT_FALSE(host(0).Sync().ok());
  RefuseNone();
  const Status admitted = Host::Await<void>(
      [&](Done<void> done) { host(0).fs->names().WhenAdmitted(NameChange::kRemoves, std::move(done)); });
  EXPECT_TRUE(admitted.ok()) << admitted.error().message;
  EXPECT_EQ(host(0).Cat("file"), "bytes");
}

// What is written while the round runs, behind a gap that is not stored yet: the record has it, and ends before it.
TEST_F(ClusterPublishTest, WhatLiesPastTheEndOfARecordOutlivesAnotherHostsPublish) {
  constexpr uint64_t kEnd = 300'000, kGap = 3 * kPageBytes, kElsewhere = 2 * kMiB;  // no gap that is filled
  options_.worker_threads = 2;
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, "0123456789").ok());
  std::promise<void> has_begun, may_end;
  host(0).chunks->before_put = [&] {
    has_begun.set_value();
    may_end.get_future().wait();
  };
  auto synced = std::async(std::launch::async, [&] { return host(0).Fsync(file); });
  has_begun.get_future().wait();
  const std::string behind = TextOf(1, kEnd - 2 * kGap);
  const uint64_t stored = host(0).local->Stats().chunk_count;
  ASSERT_TRUE(host(0).Write(file, 2 * kGap, behind).ok());  // enough to be cut
  EXPECT_TRUE(Eventually([&] { return host(0).local->Stats().chunk_count > stored; }));
  ASSERT_TRUE(host(0).Write(file, kGap, std::string(kGap, 'g')).ok());
  may_end.set_value();
  ASSERT_TRUE(synced.get().ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, file.attr.inode)->size, kGap);
  WriteSynced(host(1), "file", kElsewhere, "elsewhere");
  ASSERT_TRUE(host(0).Fsync(file).ok());
  std::string expected = "0123456789" + std::string(kGap - 10, '\0') + std::string(kGap, 'g') + behind;
  for (size_t i = 0; i < 2; i++) {
    auto read = host(i).Open("file", {.read = true});
    ASSERT_TRUE(read.ok());
    auto bytes = host(i).Read(*read, 0, kEnd);
    EXPECT_TRUE(bytes.ok() && *bytes == expected) << "host " << i;
    EXPECT_EQ(*host(i).Read(*read, kElsewhere, 100), "elsewhere");
    EXPECT_TRUE(host(i).CloseFile(*read).ok());
  }
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

}  // namespace
}  // namespace cairnfs::fs
