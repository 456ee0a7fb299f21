// Files that several hosts write: each keeps what it wrote.
#include "cluster_fixture.h"
#include "fs/names.h"

namespace cairnfs::fs {
namespace {

using ClusterWritersTest = ClusterTest;

// A hole between the pieces of one host is not its own to fill, however small.
TEST_F(ClusterWritersTest, SmallPiecesThatTwoWritersLayBetweenEachOthersBothStay) {
  MakeHosts(2);
  host(0).Put("file", "");
  auto one = host(0).Open("file"), two = host(1).Open("file");
  ASSERT_TRUE(one.ok() && two.ok());
  std::string expected;
  for (uint64_t at = 0; at < 4000; at += 200) {
    ASSERT_TRUE(host(0).Write(*one, at, std::string(100, '1')).ok());
    ASSERT_TRUE(host(1).Write(*two, at + 100, std::string(100, '2')).ok());
    expected += std::string(100, '1') + std::string(100, '2');
  }
  ASSERT_TRUE(host(1).CloseFile(*two).ok());
  ASSERT_TRUE(host(0).CloseFile(*one).ok());
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

// Each host stores the end of the file anew with what it has appended.
TEST_F(ClusterWritersTest, HostsThatAppendInTurnsKeepWhatEachHasWritten) {
  MakeHosts(2);
  host(0).Put("file", "begin");
  std::string expected = "begin";
  for (unsigned i = 0; i < 20; i++) {
    Host& by = host(i % 2);
    auto file = by.Open("file");
    ASSERT_TRUE(file.ok());
    const std::string text = TextOf(i, 700);
    ASSERT_TRUE(by.Write(*file, expected.size(), text).ok());
    if (i % 3 == 0) {
      ASSERT_TRUE(by.Fsync(*file).ok());
    }
    ASSERT_TRUE(by.CloseFile(*file).ok());
    expected += text;
  }
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

TEST_F(ClusterWritersTest, DisjointRangesOfTwoWritersBothStay) {
  MakeHosts(2);
  host(0).Put("file", std::string(40'000, '.'));
  auto one = host(0).Open("file"), two = host(1).Open("file");
  ASSERT_TRUE(one.ok() && two.ok());
  std::string expected(40'000, '.');
  for (int i = 0; i < 10; i++) {
    const uint64_t at = static_cast<uint64_t>(i) * 4000;
    ASSERT_TRUE(host(0).Write(*one, at, std::string(1000, '1')).ok());
    ASSERT_TRUE(host(1).Write(*two, at + 2000, std::string(1000, '2')).ok());
    expected.replace(at, 1000, std::string(1000, '1')).replace(at + 2000, 1000, std::string(1000, '2'));
    ASSERT_TRUE(host(i % 2 == 0 ? 0 : 1).Fsync(i % 2 == 0 ? *one : *two).ok());
  }
  ASSERT_TRUE(host(0).CloseFile(*one).ok());
  ASSERT_TRUE(host(1).CloseFile(*two).ok());
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

TEST_F(ClusterWritersTest, WritersThatPublishAtTheSameTimeBothStay) {
  MakeHosts(3);
  constexpr int kWrites = 40;
  constexpr uint64_t kPiece = 500;
  host(0).Put("file", "");
  std::vector<std::thread> threads;
  for (unsigned h = 0; h < 3; h++) {
    threads.emplace_back([&, h] {
      auto file = host(h).Open("file");
      ASSERT_TRUE(file.ok());
      for (uint64_t i = 0; i < kWrites; i++) {
        ASSERT_TRUE(host(h).Write(*file, (i * 3 + h) * kPiece, std::string(kPiece, static_cast<char>('a' + h))).ok());
        if (i % 4 == h) {
          ASSERT_TRUE(host(h).Fsync(*file).ok());
        }
      }
      ASSERT_TRUE(host(h).CloseFile(*file).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::string expected;
  for (int i = 0; i < kWrites * 3; i++) expected += std::string(kPiece, static_cast<char>('a' + i % 3));
  for (unsigned h = 0; h < 3; h++) EXPECT_EQ(host(h).Cat("file"), expected) << h;
}

// A stream that goes on cuts again what it had stored for the time being: not over what others wrote there since.
TEST_F(ClusterWritersTest, AStreamThatGoesOnKeepsOffWhatOthersWroteBehindIt) {
  MakeHosts(2);
  auto stream = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(stream, 0, std::string(3000, 'a')).ok());
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  auto other = host(1).Open("file");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(1).Write(*other, 1000, std::string(500, 'b')).ok());
  ASSERT_TRUE(host(1).Fsync(*other).ok());
  ASSERT_TRUE(host(0).Write(stream, 3000, std::string(3000, 'a')).ok());
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  ASSERT_TRUE(host(0).CloseFile(stream).ok());
  ASSERT_TRUE(host(1).CloseFile(*other).ok());
  const std::string expected = std::string(1000, 'a') + std::string(500, 'b') + std::string(4500, 'a');
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

// The same where the stream never stood still, and the file was opened once more between.
TEST_F(ClusterWritersTest, AStreamThatGoesOnKeepsOffWhatWasTakenOverMeanwhile) {
  MakeHosts(2);
  auto stream = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(stream, 0, std::string(3000, 'a')).ok());
  // What comes while the round publishes keeps the stored bytes before it in memory.
  host(0).gate->before_commit = [&] { EXPECT_TRUE(host(0).Write(stream, 3000, std::string(1000, 'a')).ok()); };
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  auto other = host(1).Open("file");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(1).Write(*other, 1000, std::string(500, 'b')).ok());
  ASSERT_TRUE(host(1).CloseFile(*other).ok());
  std::string expected = std::string(1000, 'a') + std::string(500, 'b') + std::string(2500, 'a');
  EXPECT_EQ(host(0).Cat("file"), expected) << "on the stream's own host";
  ASSERT_TRUE(host(0).Write(stream, 4000, std::string(2000, 'a')).ok());
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  ASSERT_TRUE(host(0).CloseFile(stream).ok());
  expected += std::string(2000, 'a');
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

// What it writes in the middle of bytes that it has stored, or before them, makes none of them new again.
TEST_F(ClusterWritersTest, AStreamThatGoesBackKeepsOffWhatOthersWroteSince) {
  MakeHosts(2);
  auto stream = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(stream, 1000, std::string(3000, 'a')).ok());
  host(0).gate->before_commit = [&] { EXPECT_TRUE(host(0).Write(stream, 4000, std::string(1000, 'a')).ok()); };
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  auto other = host(1).Open("file");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(1).Write(*other, 2000, std::string(500, 'b')).ok());
  ASSERT_TRUE(host(1).Fsync(*other).ok());
  ASSERT_TRUE(host(0).Write(stream, 1500, std::string(100, 'c')).ok());
  ASSERT_TRUE(host(0).Write(stream, 500, std::string(500, 'd')).ok());
  ASSERT_TRUE(host(0).Fsync(stream).ok());
  const std::string expected = std::string(500, '\0') + std::string(500, 'd') + std::string(500, 'a') +
                               std::string(100, 'c') + std::string(400, 'a') + std::string(500, 'b') +
                               std::string(2500, 'a');
  EXPECT_EQ(host(1).Cat("file"), expected);
  EXPECT_EQ(host(0).Cat("file"), expected);
  ASSERT_TRUE(host(1).CloseFile(*other).ok());
  ASSERT_TRUE(host(0).CloseFile(stream).ok());
}

TEST_F(ClusterWritersTest, ALargeRecipeIsMergedToo) {
  MakeHosts(2);
  std::string expected(400'000, '.');
  host(0).Put("file", expected);
  auto one = host(0).Open("file"), two = host(1).Open("file");
  ASSERT_TRUE(one.ok() && two.ok());
  for (uint64_t at = 0; at + 4096 <= expected.size(); at += 8192) {  // far more pieces than a record holds inline
    const std::string mine = TextOf(at, 2048), theirs = TextOf(at + 1, 2048);
    ASSERT_TRUE(host(0).Write(*one, at, mine).ok());
    ASSERT_TRUE(host(1).Write(*two, at + 2048, theirs).ok());
    expected.replace(at, 2048, mine).replace(at + 2048, 2048, theirs);
  }
  ASSERT_TRUE(host(0).Fsync(*one).ok());
  ASSERT_TRUE(host(1).Fsync(*two).ok());
  ASSERT_TRUE(host(0).CloseFile(*one).ok());
  ASSERT_TRUE(host(1).CloseFile(*two).ok());
  EXPECT_EQ(host(0).Cat("file"), expected);
  EXPECT_EQ(host(1).Cat("file"), expected);
}

TEST_F(ClusterWritersTest, AppendsOfTwoHostsInTurn) {
  MakeHosts(2);
  host(0).Put("log", "");
  std::string expected;
  for (unsigned i = 0; i < 6; i++) {
    Host& writer = host(i % 2);
    auto file = writer.Open("log", {.read = true, .write = true});
    ASSERT_TRUE(file.ok());
    const uint64_t end = writer.fs->names().GetAttr({}, file->attr.inode)->size;
    EXPECT_EQ(end, expected.size());
    const std::string line = "line " + std::to_string(i) + "\n";
    ASSERT_TRUE(writer.Write(*file, end, line).ok());
    ASSERT_TRUE(writer.CloseFile(*file).ok());
    expected += line;
  }
  EXPECT_EQ(host(0).Cat("log"), expected);
}

}  // namespace
}  // namespace cairnfs::fs
