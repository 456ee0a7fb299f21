// What a host publishes of a file while another one writes it, and the store's answer is late or lost.
#include <future>

#include "cluster_fixture.h"

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
};

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
    static_cast<void>(read.wait_for(std::chrono::milliseconds(300)));
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
  SetAttrRequest times;
  times.mtime = Timestamp{1'000'000'000, 0};
  auto set = std::async(std::launch::async, [&] { return host(0).SetAttr(file.attr.inode, times).ok(); });
  host(0).fs->EndWaits();
  EXPECT_FALSE(set.get());
  EXPECT_TRUE(Eventually([&] { return host(0).Fsync(file).ok(); }));
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterPublishTest, APendingRecordWhosePutSeemedToFailGoesAway) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("dir");
  auto file = host(1).Create("file", directory);
  ASSERT_TRUE(host(1).Write(file, 0, "bytes").ok());
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Flush(file).ok());
  EXPECT_EQ(KeyCount("P"), 1u);
  ASSERT_TRUE(host(1).Fsync(file).ok());
  Status renamed = host(0).Rename(kRootInode, "dir", kRootInode, "final");
  EXPECT_TRUE(renamed.ok()) << renamed.error().message;
  EXPECT_EQ(KeyCount("P"), 0u);

  ASSERT_TRUE(host(1).Write(file, 5, "more").ok());
  host(1).gate->lose_answer = true;
  EXPECT_FALSE(host(1).Flush(file).ok());
  ASSERT_TRUE(host(1).Write(file, 9, "still").ok());
  EXPECT_TRUE(host(1).CloseFile(file).ok()) << "that there is a record by now is no error";
  EXPECT_EQ(host(0).Cat("file", directory), "bytesmorestill");
  EXPECT_EQ(KeyCount("P"), 0u);
}

}  // namespace
}  // namespace cairnfs::fs
