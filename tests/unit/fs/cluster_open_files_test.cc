// Files that stay open on one host while others write them: what a process sees that does not open them anew.
#include "base/clock.h"
#include "cluster_fixture.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

class ClusterOpenFilesTest : public ClusterTest {
 protected:
  // `end`: where the kernel of that host believes that the file ends, as it goes by its own appends.
  static Status Append(Host& host, const FileSystem::Created& file, std::string_view bytes, uint64_t& end,
                       bool direct = false) {
    FileSystem::WriteRequest request = host.RequestOf(file, end, bytes);
    end += bytes.size();
    request.append = true;
    request.direct = direct;
    return host.Send(std::move(request));
  }
  // Stores through a mapping, as the kernel sends them when it unmaps.
  static Status WriteBack(Host& host, const FileSystem::Created& file, std::string_view bytes) {
    FileSystem::WriteRequest request = host.RequestOf(file, 0, bytes);
    request.from_page_cache = true;
    return host.Send(std::move(request));
  }
  // Within some seconds, as any process that has the file open.
  static bool ComesToRead(Host& host, const FileSystem::Created& file, std::string_view bytes) {
    return Eventually([&] { return *host.Read(file, 0, 100) == bytes; });
  }
  void Rewrite(Host& host, std::string_view name, std::string_view bytes) {
    auto writer = host.Open(name);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE(host.Write(*writer, 0, bytes).ok());
    ASSERT_TRUE(host.CloseFile(*writer).ok());
  }
};

TEST_F(ClusterOpenFilesTest, WhoHasSeenTheSizeReadsTheBytes) {
  MakeHosts(2);
  host(0).Put("file", "first");
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "first");
  Rewrite(host(0), "file", "SECOND");
  EXPECT_EQ(host(1).fs->names().GetAttr({}, reader->attr.inode)->size, 6u);
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "SECOND");
  ASSERT_TRUE(host(0).Truncate(reader->attr.inode, 3).ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, reader->attr.inode)->size, 3u);
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "SEC");
  ASSERT_TRUE(host(1).CloseFile(*reader).ok());
}

TEST_F(ClusterOpenFilesTest, AReaderThatReadsOnSeesItBeforeLong) {
  MakeHosts(2);
  host(0).Put("file", "first");
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  Rewrite(host(0), "file", "SECOND");
  EXPECT_TRUE(Eventually([&] { return *host(1).Read(*reader, 0, 100) == "SECOND"; }));
  ASSERT_TRUE(host(1).CloseFile(*reader).ok());
}

TEST_F(ClusterOpenFilesTest, ReadsGoOnWhileTheStoreIsAway) {
  MakeHosts(2);
  host(0).Put("file", "bytes");
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  host(1).gate->shut = true;
  for (int i = 0; i < 4; i++) {
    const uint64_t before = host(1).gate->trips;
    EXPECT_TRUE(Eventually([&] {  // a read that comes late enough has the store looked at
      EXPECT_EQ(*host(1).Read(*reader, 0, 100), "bytes");
      return host(1).gate->trips > before;
    }));
  }
  EXPECT_EQ(*host(1).Read(*reader, 0, 100), "bytes");
  host(1).gate->shut = false;
  ASSERT_TRUE(host(1).CloseFile(*reader).ok());
}

// The hosts take turns as under a lock.
TEST_F(ClusterOpenFilesTest, ACounterThatHostsIncrementInTurns) {
  MakeHosts(3);
  host(0).Put("counter", "00");
  std::vector<FileSystem::Created> files;
  for (size_t i = 0; i < 3; i++) files.push_back(*host(i).Open("counter"));
  for (int i = 0; i < 12; i++) {
    Host& turn = host(i % 3);
    const auto& file = files[i % 3];
    turn.fs->NoteLocked(file.handle);
    const int count = std::stoi(*turn.Read(file, 0, 2));
    EXPECT_EQ(count, i);
    const std::string next = std::to_string(count + 101).substr(1);
    ASSERT_TRUE(turn.Write(file, 0, next).ok());
    ASSERT_TRUE(turn.Fsync(file).ok());
  }
  for (size_t i = 0; i < 3; i++) ASSERT_TRUE(host(i).CloseFile(files[i]).ok());
  EXPECT_EQ(host(1).Cat("counter"), "12");
}

TEST_F(ClusterOpenFilesTest, AppendsOfSeveralHostsComeAfterEachOther) {
  MakeHosts(2);
  host(0).Put("log", "");
  std::vector<FileSystem::Created> files{*host(0).Open("log"), *host(1).Open("log")};
  std::string expected;
  uint64_t ends[2] = {0, 0};
  for (int i = 0; i < 8; i++) {
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_TRUE(Append(host(i % 2), files[i % 2], line, ends[i % 2]).ok());
    ASSERT_TRUE(Append(host(i % 2), files[i % 2], line, ends[i % 2]).ok()) << "upon bytes that nobody has published";
    ASSERT_TRUE(host(i % 2).Fsync(files[i % 2]).ok());
    expected += line + line;
  }
  for (size_t i = 0; i < 2; i++) ASSERT_TRUE(host(i).CloseFile(files[i]).ok());
  EXPECT_EQ(host(0).Cat("log"), expected);
}

// Its own append moved the end further than its kernel knows.
TEST_F(ClusterOpenFilesTest, AHostThatAppendsTwiceInARow) {
  MakeHosts(2);
  host(0).Put("log", "");
  std::vector<FileSystem::Created> files{*host(0).Open("log"), *host(1).Open("log")};
  std::string expected;
  uint64_t ends[2] = {0, 0};
  auto append = [&](size_t by, const std::string& bytes) {
    ASSERT_TRUE(Append(host(by), files[by], bytes, ends[by]).ok());
    ASSERT_TRUE(host(by).Fsync(files[by]).ok());
    expected += bytes;
  };
  append(0, std::string(10, 'a'));
  for (char c : std::string("bcd")) append(1, std::string(200, c));
  append(0, std::string(20, 'e'));
  append(0, std::string(300, 'f'));
  append(1, std::string(5, 'g'));
  append(1, std::string(5, 'h'));
  for (size_t i = 0; i < 2; i++) ASSERT_TRUE(host(i).CloseFile(files[i]).ok());
  EXPECT_EQ(host(0).Cat("log"), expected);
}

TEST_F(ClusterOpenFilesTest, WhatWasWrittenUnderALockIsTheNextHolders) {
  MakeHosts(2);
  host(0).Put("file", "");
  std::vector<FileSystem::Created> files{*host(0).Open("file"), *host(1).Open("file")};
  ASSERT_TRUE(host(0).Write(files[0], 0, "first").ok());
  std::promise<void> published;
  host(0).fs->PublishBeforeUnlock(files[0].handle, [&] { published.set_value(); });
  published.get_future().wait();
  host(1).fs->NoteLocked(files[1].handle);
  EXPECT_EQ(*host(1).Read(files[1], 0, 100), "first");
  for (size_t i = 0; i < 2; i++) ASSERT_TRUE(host(i).CloseFile(files[i]).ok());
}

TEST_F(ClusterOpenFilesTest, WhatIsClosedAfterTheFileWasRemovedElsewhere) {
  MakeHosts(3);
  const InodeId inode = host(0).Put("file", "old bytes");
  auto writer = host(0).Open("file");
  auto reader = host(2).Open("file", {.read = true});
  ASSERT_TRUE(writer.ok() && reader.ok());
  ASSERT_TRUE(host(1).Unlink("file").ok());
  EXPECT_EQ(*host(2).Read(*reader, 0, 100), "old bytes");
  SettleOrphans(host(1));  // all hosts were asked whether they have it open
  EXPECT_GE(board_.hold_calls, 2);
  ASSERT_TRUE(host(0).Write(*writer, 0, "new bytes, and more").ok());
  ASSERT_TRUE(host(0).CloseFile(*writer).ok());
  host(0).fs->names().Forget(inode, 1);
  EXPECT_EQ(host(2).fs->names().GetAttr({}, reader->attr.inode)->size, 19u);
  EXPECT_EQ(*host(2).Read(*reader, 0, 100), "new bytes, and more");
  ASSERT_TRUE(host(2).CloseFile(*reader).ok());
}

// And whose kernel has forgotten it since.
TEST_F(ClusterOpenFilesTest, WhatWasClosedBeforeTheFileWasRemovedElsewhere) {
  MakeHosts(3);
  const InodeId inode = host(0).Put("file", "old bytes");
  ASSERT_TRUE(host(0).Sync().ok());
  auto reader = host(2).Open("file", {.read = true});
  auto writer = host(0).Open("file");
  ASSERT_TRUE(writer.ok() && reader.ok());
  ASSERT_TRUE(host(0).Write(*writer, 0, "new bytes, and more").ok());
  ASSERT_TRUE(host(0).CloseFile(*writer).ok());
  ASSERT_TRUE(host(1).Unlink("file").ok());
  SettleOrphans(host(1));  // all hosts were asked whether they have it open
  host(0).fs->names().Forget(inode, 1);
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(host(2).fs->names().GetAttr({}, reader->attr.inode)->size, 19u);
  EXPECT_EQ(*host(2).Read(*reader, 0, 100), "new bytes, and more");
  ASSERT_TRUE(host(2).CloseFile(*reader).ok());
}

TEST_F(ClusterOpenFilesTest, AMappingThatOutlivesItsDescriptorIsSeenWhenItEnds) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("directory");
  auto file = host(0).Create("file", directory);
  ASSERT_TRUE(WriteBack(host(0), file, "open").ok());
  ASSERT_TRUE(host(0).Flush(file).ok());
  ASSERT_EQ(KeyCount("P"), 0u);
  ASSERT_TRUE(WriteBack(host(0), file, "mapped bytes").ok());
  EXPECT_EQ(KeyCount("P"), 1u) << "no close will wait for it";
  ASSERT_TRUE(host(0).Sync().ok());
  EXPECT_EQ(KeyCount("P"), 0u);
  EXPECT_EQ(host(1).Cat("file", directory), "mapped bytes");
  // Lost with the host before they are published, they fail the commit.
  ASSERT_TRUE(WriteBack(host(0), file, "MAPPED").ok());
  host(0).Die();
  EXPECT_TRUE(Eventually([&] { return *host(1).Durability(file.attr.inode) == "lost"; }));
  const Status committed = host(1).Rename(kRootInode, "directory", kRootInode, "final");
  ASSERT_FALSE(committed.ok());
  EXPECT_NE(committed.error().message.find("directory/file"), std::string::npos) << committed.error().message;
}

class ClusterAppendTest : public ClusterOpenFilesTest, public ::testing::WithParamInterface<bool> {};

TEST_P(ClusterAppendTest, AfterAnotherHostCutTheFile) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("log", "a long line\n");
  auto file = host(1).Open("log");
  ASSERT_TRUE(file.ok());
  uint64_t end = 12;
  ASSERT_TRUE(host(0).Truncate(inode, 2).ok());
  for (const char* line : {"b\n", "c\n", "d\n"}) ASSERT_TRUE(Append(host(1), *file, line, end, GetParam()).ok());
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("log"), "a b\nc\nd\n");
}

// Whoever appends has looked at the file in between, but its kernel was not told where the file ends.
TEST_P(ClusterAppendTest, AfterAnotherHostCutTheFileAndAppendedToIt) {
  MakeHosts(2);
  const InodeId inode = host(0).Put("log", "a long line\n");
  auto file = host(1).Open("log");
  ASSERT_TRUE(file.ok());
  uint64_t end = 12;
  ASSERT_TRUE(host(0).Truncate(inode, 2).ok());
  EXPECT_TRUE(ComesToRead(host(1), *file, "a "));
  auto other = host(0).Open("log");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(0).Write(*other, 2, "b\n").ok());
  ASSERT_TRUE(host(0).CloseFile(*other).ok());
  EXPECT_TRUE(ComesToRead(host(1), *file, "a b\n"));
  for (const char* line : {"c\n", "d\n"}) ASSERT_TRUE(Append(host(1), *file, line, end, GetParam()).ok());
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("log"), "a b\nc\nd\n");
}

INSTANTIATE_TEST_SUITE_P(DirectOrNot, ClusterAppendTest, ::testing::Bool());

// As pieces of one asynchronous write come that is larger than a request.
TEST_F(ClusterOpenFilesTest, PiecesOfOneAppendKeepTheirPlaces) {
  MakeHosts(2);
  host(0).Put("log", "head ");
  auto file = host(1).Open("log");
  ASSERT_TRUE(file.ok());
  uint64_t second = 10, first = 5;
  ASSERT_TRUE(Append(host(1), *file, "two, ", second, /*direct=*/true).ok());
  ASSERT_TRUE(Append(host(1), *file, "one, ", first, /*direct=*/true).ok());
  ASSERT_TRUE(host(1).CloseFile(*file).ok());
  EXPECT_EQ(host(0).Cat("log"), "head one, two, ");
}

TEST_F(ClusterOpenFilesTest, AFileIsWrittenToBeforeItsCreationHasReturned) {
  MakeHosts(2);
  host(0).Put("other", "");  // inode numbers are reserved
  host(0).gate->after_commit = [&] {
    auto found = host(0).Open("file");
    ASSERT_TRUE(found.ok());
    ASSERT_TRUE(host(0).Write(*found, 0, "of who found it").ok());
    ASSERT_TRUE(host(0).CloseFile(*found).ok());
  };
  auto file = host(0).Create("file");
  EXPECT_EQ(*host(0).Read(file, 0, 100), "of who found it");
  ASSERT_TRUE(host(0).Write(file, 0, "by").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_EQ(host(1).Cat("file"), "by who found it");
  ASSERT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterOpenFilesTest, ALockOnAFileThatWasRemovedElsewhere) {
  MakeHosts(2);
  host(0).Put("file", "bytes");
  auto open = host(1).Open("file");
  ASSERT_TRUE(open.ok());
  ASSERT_TRUE(host(0).Unlink("file").ok());
  host(1).fs->NoteLocked(open->handle);
  EXPECT_EQ(*host(1).Read(*open, 0, 100), "bytes");
  ASSERT_TRUE(host(1).CloseFile(*open).ok());
}

// By another descriptor, between the truncation and its publication.
TEST_F(ClusterOpenFilesTest, ACloseWhileATruncationIsPublished) {
  MakeHosts(2);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, std::string(10'000, 'x')).ok());
  std::future<Status> closed;
  host(0).chunks->before_sync = [&] { closed = std::async(std::launch::async, [&] { return host(0).Flush(file); }); };
  ASSERT_TRUE(host(0).Truncate(file.attr.inode, 3000).ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, file.attr.inode)->size, 3000u);
  ASSERT_TRUE(closed.get().ok());
  EXPECT_EQ(host(1).fs->names().GetAttr({}, file.attr.inode)->size, 3000u);
  ASSERT_TRUE(host(0).CloseFile(file).ok());
}

}  // namespace
}  // namespace cairnfs::fs
