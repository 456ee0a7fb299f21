// What saving, copying, changing and reading moves to and from the disk, with the chunk sizes that a filesystem is made
// with: those goals of docs/performance.md that need no clock.
#include <map>
#include <set>
#include <thread>

#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

constexpr uint64_t kSize = 24 * kMiB;
constexpr uint64_t kSeed = 3;  // of so few chunks that their recipe has no page

class MovedBytesTest : public testing::Test {
 protected:
  // So that what is stored does not depend on when: rounds run when they are asked for, and no buffers are short.
  MovedBytesTest() : world_(160 * kMiB) {
    world_.fs_options.flush_interval_ms = 3'600'000;
    world_.fs_options.collect_by_itself = false;
    world_.store_options.segment_bytes = 32 * kMiB;
    world_.params = chunking::ChunkParams();
    world_.Remake();
  }
  struct Moved {
    uint64_t stored = 0;             // chunk bytes that were new
    uint64_t written = 0, read = 0;  // by the disk
  };
  template <typename Act>
  Moved Count(Act act) {
    const store::StoreStats before = world_.chunks->Stats();
    act();
    const store::StoreStats after = world_.chunks->Stats();
    return {after.new_bytes_total - before.new_bytes_total,
            after.disk_write_bytes_total - before.disk_write_bytes_total,
            after.disk_read_bytes_total - before.disk_read_bytes_total};
  }
  void Save(const std::string& name, const std::string& text) {
    const FileSystem::Created file = world_.Create(name);
    EXPECT_TRUE(world_.Write(file, 0, text).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
  }
  Moved Resave(const std::string& text) {
    return Count([&] { Save("again", text); });
  }
  void ExpectText(const std::string& name, const std::string& text) {
    const FileSystem::Created file = world_.OpenByName(name);
    for (uint64_t at = 0; at < text.size(); at += kMiB) {
      auto part = world_.Read(file, at, kMiB);
      ASSERT_TRUE(part.ok()) << name << " at " << at << ": " << part.error().message;
      ASSERT_TRUE(*part == std::string_view(text).substr(at, kMiB)) << name << " at " << at;
    }
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
  }
  void RemoveAndCollect(const std::string& name) {
    EXPECT_TRUE(world_.fs->names().Unlink({}, kRootInode, name).ok());
    EXPECT_TRUE(World::Await<CollectionStatus>([&](Done<CollectionStatus> done) {
                  world_.fs->maintenance().Collect(std::move(done));
                }).ok());
    world_.chunks->DropCache();
  }
  // As copy_file_range(2) of a whole file.
  void Copy(const std::string& from_name, const std::string& to_name) {
    const FileSystem::Created from = world_.OpenByName(from_name), to = world_.Create(to_name);
    for (uint64_t offset = 0; offset < from.attr.size;) {
      auto copied = World::Await<size_t>([&](Done<size_t> done) {
        world_.fs->writer().CopyRange({from.handle, offset, to.handle, offset, from.attr.size - offset},
                                      std::move(done));
      });
      ASSERT_TRUE(copied.ok() && *copied > 0);
      offset += *copied;
    }
    EXPECT_TRUE(world_.Fsync(to).ok());
    for (const FileSystem::Created& file : {from, to}) world_.CloseFile(file);
  }
  World world_;
};

constexpr uint64_t kValue = 2 * kMiB;

// The values of `text`, the last first, with `between` before each.
std::string InAnotherOrder(const std::string& text, const std::string& between = "") {
  std::string other;
  for (uint64_t end = text.size(); end > 0; end -= kValue) other += between + text.substr(end - kValue, kValue);
  return other;
}

TEST_F(MovedBytesTest, ANewSaveIsWrittenOnce) {
  const Moved moved = Resave(RandomText(kSeed, kSize));
  EXPECT_EQ(moved.stored, kSize);
  EXPECT_GE(moved.written, kSize);
  EXPECT_LE(moved.written, kSize + kSize / 100);
  EXPECT_EQ(moved.read, 0u);
}

TEST_F(MovedBytesTest, ACopyInsideTheFilesystemMovesNoData) {
  constexpr int kFiles = 4;
  for (int i = 0; i < kFiles; i++) Save("file" + std::to_string(i), RandomText(i, kSize / kFiles));
  world_.chunks->DropCache();
  const Moved moved = Count([&] {
    for (int i = 0; i < kFiles; i++) Copy("file" + std::to_string(i), "copy" + std::to_string(i));
  });
  EXPECT_LE(moved.stored, kSize / 100);
  EXPECT_LE(moved.written, kSize / 100);
  EXPECT_EQ(moved.read, 0u);
  for (int i = 0; i < kFiles; i++) {
    const FileSystem::Created copy = world_.OpenByName("copy" + std::to_string(i));
    auto text = world_.Read(copy, 0, kSize);
    EXPECT_TRUE(text.ok() && *text == RandomText(i, kSize / kFiles)) << i;
    world_.CloseFile(copy);
  }
}

TEST_F(MovedBytesTest, AnUnchangedSaveStoresNothingNew) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  const Moved moved = Resave(text);
  EXPECT_LE(moved.stored, kSize / 100);
  EXPECT_LE(moved.written, kSize / 100);
  EXPECT_EQ(moved.read, 0u);
}

// Four ranks save the same replica at the same time. None syncs while another writes: that stores what is written of a
// chunk so far.
TEST_F(MovedBytesTest, RanksThatSaveTheSameStoreItOnce) {
  const std::string text = RandomText(kSeed, kSize);
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < 4; i++) files.push_back(world_.Create("rank" + std::to_string(i)));
  const Moved moved = Count([&] {
    std::vector<std::thread> ranks;
    for (const FileSystem::Created& file : files) {
      ranks.emplace_back([&] { EXPECT_TRUE(world_.Write(file, 0, text).ok()); });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const FileSystem::Created& file : files) EXPECT_TRUE(world_.Fsync(file).ok());
  });
  for (const FileSystem::Created& file : files) world_.CloseFile(file);
  EXPECT_GE(moved.stored, kSize);
  EXPECT_LE(moved.stored, kSize + kSize / 100);
}

// Bytes that come in between move all behind them; the cuts find themselves again.
TEST_F(MovedBytesTest, AnInsertionAtTheFrontStoresOneChunkAnew) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  const Moved moved = Resave("sixteen bytes in" + text);
  EXPECT_GT(moved.stored, 0u);
  EXPECT_LE(moved.stored, world_.params.size_bytes_max);
}

// Tensors of 4 MiB between others: what is stored anew are these and, at each of their ends, a part of a chunk.
TEST_F(MovedBytesTest, ASaveOfWhichATensorChangedSharesTheOthers) {
  constexpr uint64_t kTensor = 4 * kMiB;
  std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  text.replace(2 * kTensor, kTensor, RandomText(2, kTensor));
  const Moved moved = Resave(text);
  EXPECT_GE(moved.stored, kTensor);
  EXPECT_LE(moved.stored, kTensor + 2 * world_.params.size_bytes_max);
}

TEST_F(MovedBytesTest, ValuesInAnotherOrderAreStoredOnce) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  const Moved moved = Resave(InAnotherOrder(text));
  EXPECT_LE(moved.stored, kSize * 12 / 100);
  EXPECT_LE(moved.written, kSize * 12 / 100);
  world_.Reopen();
  ExpectText("again", InAnotherOrder(text));
}

// As torch.save writes before each tensor.
TEST_F(MovedBytesTest, ValuesWithHeadersBetweenThemAreStoredOnce) {
  const std::string text = RandomText(kSeed, kSize), header = RandomText(2, 100);
  Save("first", text);
  const Moved moved = Resave(InAnotherOrder(text, header));
  EXPECT_GT(moved.stored, 0u);
  EXPECT_LE(moved.stored, kSize * 12 / 100);
  world_.chunks->DropCache();
  ExpectText("again", InAnotherOrder(text, header));
}

TEST_F(MovedBytesTest, SavedOnceMoreInAnotherOrderStoresNothing) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  Save("again", InAnotherOrder(text));
  const Moved moved = Count([&] { Save("once more", InAnotherOrder(text)); });
  EXPECT_EQ(moved.stored, 0u);
}

TEST_F(MovedBytesTest, WhatIsSharedStaysWhenTheFileThatBroughtItGoes) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  Save("again", InAnotherOrder(text));
  RemoveAndCollect("first");
  ExpectText("again", InAnotherOrder(text));
}

TEST_F(MovedBytesTest, WhatWasCollectedIsStoredAnew) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  RemoveAndCollect("first");
  const Moved moved = Resave(InAnotherOrder(text));
  EXPECT_EQ(moved.stored, kSize);
  RemoveAndCollect("again");
  EXPECT_EQ(world_.chunks->Stats().unique_bytes, 0u);
}

TEST_F(MovedBytesTest, WhatIsDamagedIsStoredAnew) {
  const std::string text = RandomText(kSeed, kSize), other = InAnotherOrder(text);
  Save("first", text);
  auto& disk = dynamic_cast<io::MemoryDisk&>(*world_.disk);
  const auto names = disk.List();
  ASSERT_TRUE(names.ok());
  for (const std::string& name : *names) {
    const auto contents = disk.Contents(name);
    for (uint64_t at = 8 * kKiB; contents && at < contents->size(); at += 128 * kKiB) disk.FlipBit(name, 8 * at);
  }
  world_.chunks->DropCache();
  // A chunk that is not known to be damaged counts as stored.
  size_t problems = 0;
  ASSERT_TRUE(world_.chunks->Check({}, [&](const store::CheckProblem&) { problems++; }).ok());
  ASSERT_GE(problems, world_.chunks->Stats().chunk_count);
  const Moved moved = Resave(other);
  EXPECT_EQ(moved.stored, kSize);
  ExpectText("again", other);
}

// An extent of its own costs a read and room in the recipe.
TEST_F(MovedBytesTest, ShortRunsAreStoredAgain) {
  constexpr uint64_t kRun = 60 * kKiB;
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  std::string other = RandomText(2, kSize);
  for (uint64_t at = 0; at < kSize; at += 4 * kRun) {
    other.replace(at, std::min(kRun, kSize - at), text, at, std::min(kRun, kSize - at));
  }
  const Moved moved = Resave(other);
  EXPECT_GE(moved.stored, kSize);
  EXPECT_LE(moved.stored, kSize + 64 * kKiB);  // and what the recipe takes
  ExpectText("again", other);
}

// How much a run saves tells each byte at its end. So another user's file is no place to look for one.
TEST_F(MovedBytesTest, RunsOfAnotherUserAreNotLookedFor) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  const FileSystem::Created file = world_.Create("guess");
  const std::string guess = text.substr(0, 300'000);
  Caller stranger;
  stranger.uid = 1000;
  const Moved of_stranger = Count([&] {
    EXPECT_TRUE(world_.Write(file, 0, guess, stranger).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
  });
  EXPECT_GE(of_stranger.stored, guess.size());
  world_.CloseFile(file);
  const Moved of_the_same = Count([&] { Save("own", text.substr(0, 400'000)); });
  EXPECT_LT(of_the_same.stored, 400'000u);
}

// What a sync stores of a chunk that goes on takes no part in how the chunk is stored.
TEST_F(MovedBytesTest, AStreamThatIsSyncedIsStoredInTheChunksOfOneThatIsNot) {
  const std::string text = RandomText(kSeed, kSize);
  const FileSystem::Created file = world_.Create("stream");
  for (uint64_t at = 0; at < kSize; at += 600'000) {
    ASSERT_TRUE(world_.Write(file, at, std::string_view(text).substr(at, 600'000)).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
  }
  world_.CloseFile(file);
  world_.Reopen();  // and forgets what it has saved
  const Moved moved = Resave(text);
  EXPECT_EQ(moved.stored, 0u);
}

// Pieces of all lengths of what is known, and new bytes, come in all kinds of writes.
TEST_F(MovedBytesTest, WhateverIsKnownOfItAFileHoldsWhatWasWritten) {
  const std::string text = RandomText(kSeed, kSize);
  Save("first", text);
  std::map<std::string, std::string> saved;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::string other;
    while (other.size() < 10 * kMiB) {
      const uint64_t length = random() % (uint64_t{1} << (9 + random() % 12));
      other += random() % 8 == 0 ? RandomText(random(), length / 2) : text.substr(random() % (kSize - length), length);
    }
    const std::string name = "file" + std::to_string(seed);
    const FileSystem::Created file = world_.Create(name);
    for (uint64_t at = 0; at < other.size();) {
      const uint64_t length = std::min<uint64_t>(other.size() - at, 1 + random() % (700 * kKiB));
      ASSERT_TRUE(world_.Write(file, at, std::string_view(other).substr(at, length)).ok());
      at += length;
      if (random() % 8 == 0) {
        const uint64_t begin = random() % at, size = std::min<uint64_t>(at - begin, random() % (300 * kKiB));
        other.replace(begin, size, text, random() % (kSize - size), size);
        ASSERT_TRUE(world_.Write(file, begin, std::string_view(other).substr(begin, size)).ok());
      }
      if (random() % 12 == 0) {
        ASSERT_TRUE(world_.Fsync(file).ok());
      }
    }
    world_.CloseFile(file);
    saved[name] = std::move(other);
    if (seed == 2) RemoveAndCollect("first");
  }
  world_.Reopen();
  for (const auto& [name, bytes] : saved) ExpectText(name, bytes);
}

TEST_F(MovedBytesTest, AnOverwriteOfAPageWritesAsLittleInABigFileAsInASmallOne) {
  auto overwrite = [&](const std::string& name, uint64_t size) {
    Save(name, RandomText(size, size));
    const FileSystem::Created file = world_.OpenByName(name);
    const Moved moved = Count([&] {
      EXPECT_TRUE(world_.Write(file, size / 2 + 1000, RandomText(size + 1, 4 * kKiB)).ok());
      EXPECT_TRUE(world_.Fsync(file).ok());
    });
    world_.CloseFile(file);
    return moved;
  };
  const Moved small = overwrite("small", 3 * kMiB), big = overwrite("big", kSize);
  for (const Moved& moved : {small, big}) {
    EXPECT_GE(moved.stored, 4 * kKiB);
    EXPECT_LE(moved.stored, 64 * kKiB);  // the page, and what a long recipe needs
    EXPECT_LE(moved.written, moved.stored + 256 * kKiB);
    EXPECT_EQ(moved.read, 0u);
  }
}

TEST_F(MovedBytesTest, ReadersAtTheSameTimeReadTheDiskOnce) {
  constexpr uint64_t kRead = 12 * kMiB;  // a quarter of the cache is for what was read once
  const std::string text = RandomText(1, kRead);
  Save("file", text);
  world_.Reopen();
  const FileSystem::Created file = world_.OpenByName("file");
  const Moved moved = Count([&] {
    std::vector<std::thread> readers;
    for (int i = 0; i < 4; i++) {
      readers.emplace_back([&] {
        for (uint64_t offset = 0; offset < kRead; offset += kMiB) {
          auto part = world_.Read(file, offset, kMiB);
          EXPECT_TRUE(part.ok() && *part == std::string_view(text).substr(offset, kMiB)) << offset;
        }
      });
    }
    for (std::thread& reader : readers) reader.join();
  });
  EXPECT_GE(moved.read, kRead);
  EXPECT_LE(moved.read, kRead + kRead / 10);
  world_.CloseFile(file);
}

// Records merge again and again what was merged before: no hole with a whole page in it is ever filled.
TEST_F(MovedBytesTest, ASparseFileStaysSparseHoweverOftenItsPiecesAreMerged) {
  constexpr uint64_t kSpan = 64 * kMiB;
  const FileSystem::Created file = world_.Create("sparse");
  std::mt19937_64 random(11);
  std::string model(kSpan, '\0');
  std::set<uint64_t> pages;
  auto write_piece = [&] {
    const uint64_t offset = random() % (kSpan - 30);
    const std::string piece = RandomText(random(), 30);
    ASSERT_TRUE(world_.Write(file, offset, piece).ok());
    model.replace(offset, piece.size(), piece);
    for (uint64_t at : {offset, offset + 29}) pages.insert(at / kPageBytes);
  };
  for (int i = 0; i < 8000; i++) write_piece();
  ASSERT_TRUE(world_.Fsync(file).ok());
  for (int i = 0; i < 6; i++) {
    write_piece();
    ASSERT_TRUE(world_.Fsync(file).ok());
    EXPECT_LE(world_.fs->names().GetAttr({}, file.attr.inode)->allocated_bytes, pages.size() * kPageBytes);
  }
  // What one small write costs in the end: its page of the recipe and a merged piece.
  const Moved last = Count([&] {
    write_piece();
    ASSERT_TRUE(world_.Fsync(file).ok());
  });
  EXPECT_LE(last.stored, kMiB);
  model.resize(world_.fs->names().GetAttr({}, file.attr.inode)->size);
  for (uint64_t at = 0; at < model.size(); at += kMiB) {
    ASSERT_TRUE(*world_.Read(file, at, kMiB) == model.substr(at, kMiB)) << at;
  }
  world_.CloseFile(file);
}

TEST_F(MovedBytesTest, PiecesFarApartStayApartHoweverManyThereAre) {
  const FileSystem::Created file = world_.Create("sparse");
  uint64_t pages = 0;
  for (uint64_t page = 0; page < 64 * kMiB; page += 128 * kKiB, pages++) {
    for (uint64_t i = 0; i < 33; i++) ASSERT_TRUE(world_.Write(file, page + 100 * i, RandomText(page + i, 30)).ok());
  }
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_LE(world_.fs->names().GetAttr({}, file.attr.inode)->allocated_bytes, pages * kPageBytes);
  world_.CloseFile(file);
}

}  // namespace
}  // namespace cairnfs::fs
