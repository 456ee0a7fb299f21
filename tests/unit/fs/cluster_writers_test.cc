// Files that several hosts write: each keeps what it wrote.
#include "cluster_fixture.h"
#include "fs/names.h"
#include "fs/recipe.h"

namespace cairnfs::fs {
namespace {

class ClusterWritersTest : public ClusterTest {
 protected:
  size_t ExtentCountOf(std::string_view name) {
    const InodeId inode = host(0).fs->names().Lookup({}, kRootInode, name)->inode;
    const auto state = host(0).names->ReadFile({}, inode);
    EXPECT_TRUE(state.ok() && state->record);
    const auto recipe = Recipe::Decode(state->record->recipe);
    EXPECT_TRUE(recipe.ok() && !recipe->is_tree);
    return recipe->extents.size();
  }
};

// A host lays zeros into a small hole between its pieces, and they give way to what another writes there.
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

// Two hosts write pieces into a grid of cells, each into its own, with small holes between them. What one has synced,
// the other sees when it opens the file, whatever it has in memory for the holes.
TEST_F(ClusterWritersTest, PiecesInSmallHolesAreSeenByEachHostThatOpensTheFile) {
  constexpr uint64_t kCells = 160, kCellBytes = 150;
  MakeHosts(2);
  std::mt19937_64 random(1);
  for (unsigned round = 0; round < 12; round++) {
    const std::string name = "file" + std::to_string(round);
    host(0).Put(name, "");
    const std::string zeros(kCells * kCellBytes, '\0');
    std::array written{zeros, zeros};
    auto one = host(0).Open(name), two = host(1).Open(name);
    ASSERT_TRUE(one.ok() && two.ok());
    const std::array handles{*one, *two};
    for (unsigned step = 0; step < 60; step++) {
      const unsigned by = random() % 2;
      const uint64_t at = (random() % kCells / 2 * 2 + by) * kCellBytes, length = 1 + random() % kCellBytes;
      const std::string piece = TextOf(random(), length);
      ASSERT_TRUE(host(by).Write(handles[by], at, piece).ok());
      written[by].replace(at, length, piece);
      if (random() % 4 != 0) continue;
      ASSERT_TRUE(host(by).Fsync(handles[by]).ok());
      std::string seen = host(1 - by).Cat(name);
      seen.resize(kCells * kCellBytes);
      for (uint64_t cell = by; cell < kCells; cell += 2) {
        ASSERT_EQ(seen.substr(cell * kCellBytes, kCellBytes), written[by].substr(cell * kCellBytes, kCellBytes))
            << "cell " << cell << " in step " << step << " of round " << round;
      }
    }
    ASSERT_TRUE(host(1).CloseFile(*two).ok());
    ASSERT_TRUE(host(0).CloseFile(*one).ok());
    std::string expected = written[0];
    for (size_t i = 0; i < expected.size(); i++) expected[i] = static_cast<char>(expected[i] | written[1][i]);
    for (unsigned h = 0; h < 2; h++) {
      std::string seen = host(h).Cat(name);
      seen.resize(expected.size());
      EXPECT_EQ(seen, expected) << "on host " << h << " in round " << round;
    }
  }
}

// The zeros of a chunk that is on its way are not this host's own, also where it writes there meanwhile.
TEST_F(ClusterWritersTest, WhatIsWrittenIntoAFilledHoleLeavesTheZerosBeforeItNobodys) {
  MakeHosts(2);
  host(0).Put("file", "");
  auto one = host(0).Open("file"), two = host(1).Open("file");
  ASSERT_TRUE(one.ok() && two.ok());
  ASSERT_TRUE(host(0).Write(*one, 0, std::string(100, 'a')).ok());
  ASSERT_TRUE(host(1).Write(*two, 110, std::string(10, 'b')).ok());
  ASSERT_TRUE(host(1).CloseFile(*two).ok());
  ASSERT_TRUE(host(0).Write(*one, 130, std::string(100, 'c')).ok());  // what lies before it is filled
  std::promise<void> has_begun, may_end;
  host(0).chunks->before_put = [&] {
    has_begun.set_value();
    may_end.get_future().wait();
  };
  // The record of the round does not have what is written now; another host's is newer than the one it is based on.
  auto synced = std::async(std::launch::async, [&] { return host(0).Fsync(*one); });
  has_begun.get_future().wait();
  ASSERT_TRUE(host(0).Write(*one, 115, std::string(5, 'A')).ok());
  may_end.set_value();
  ASSERT_TRUE(synced.get().ok());
  const std::string seen = host(1).Cat("file").substr(0, 130);
  EXPECT_EQ(seen.substr(0, 115), std::string(100, 'a') + std::string(10, '\0') + std::string(5, 'b'));
  EXPECT_TRUE(seen.substr(115, 5) == "bbbbb" || seen.substr(115, 5) == "AAAAA") << "zeros took the place of bytes";
  ASSERT_TRUE(host(0).CloseFile(*one).ok());
  EXPECT_EQ(host(1).Cat("file").substr(110, 10), "bbbbbAAAAA");
}

// As rsync --sparse writes: zeros at the borders of its blocks are seeks.
TEST_F(ClusterWritersTest, SeeksOverAFewZerosCostNoExtentEach) {
  MakeHosts(2);
  constexpr uint64_t kHoles = 100, kStep = 3000, kZeros = 300;
  std::string text = TextOf(7, kHoles * kStep);
  auto file = host(0).Create("sparse");
  for (uint64_t at = 0; at < text.size(); at += kStep) {
    text.replace(at, kZeros, kZeros, '\0');
    ASSERT_TRUE(host(0).Write(file, at + kZeros, text.substr(at + kZeros, kStep - kZeros)).ok());
  }
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(1).Cat("sparse"), text);
  EXPECT_LT(ExtentCountOf("sparse"), kHoles / 3) << "a few of its chunks, and of each round that ran meanwhile";
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
