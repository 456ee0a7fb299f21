// Files that come in small pieces: appended to by open, write and close, synced again and again, written with seeks
// over a few zeros.
#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/reader.h"
#include "fs/recipe.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

constexpr uint64_t kChunkBytesMin = 64 * kKiB;

class SmallWrites : public testing::Test {
 protected:
  SmallWrites() {
    world_.params = {.size_bytes_min = kChunkBytesMin, .size_bytes_max = 512 * kKiB, .mask_bits = 0};
    world_.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
    world_.Remake();
  }
  void Sync() {
    EXPECT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  }
  // A small write does not take a buffer of its own.
  Status Write(const FileSystem::Created& file, uint64_t offset, std::string_view bytes) {
    auto copy = std::make_shared<const std::string>(bytes);
    FileSystem::WriteRequest request;
    request.handle = file.handle;
    request.inode = file.attr.inode;
    request.offset = offset;
    request.data.data = reinterpret_cast<const std::byte*>(copy->data());
    request.data.size = copy->size();
    request.data.memory = std::move(copy);
    auto written =
        World::Await<size_t>([&](Done<size_t> done) { world_.fs->writer().Write(std::move(request), done); });
    return written.ok() ? Status() : Status(written.error());
  }
  void Append(std::string_view name, std::string_view bytes) {
    FileSystem::Created file = world_.OpenByName(name);
    EXPECT_TRUE(Write(file, file.attr.size, bytes).ok());
    world_.CloseFile(file);
  }
  void Save(std::string_view name, std::string_view bytes) {
    FileSystem::Created file = world_.Create(name);
    EXPECT_TRUE(world_.Write(file, 0, bytes).ok());
    world_.CloseFile(file);
  }
  std::string TextOf(std::string_view name) {
    FileSystem::Created file = world_.OpenByName(name);
    auto text = world_.Read(file, 0, file.attr.size);
    world_.CloseFile(file);
    return text.ok() ? *text : text.error().message;
  }
  // What the file's durable record names.
  std::vector<Extent> ExtentsOf(std::string_view name) {
    const InodeId inode = world_.fs->names().Lookup({}, kRootInode, name)->inode;
    auto entry = world_.kv->Get({}, meta::FileKey(inode));
    EXPECT_TRUE(entry.ok() && *entry);
    auto recipe = Recipe::Decode(meta::FileRecord::Decode((*entry)->value)->recipe);
    EXPECT_TRUE(recipe.ok() && !recipe->is_tree);
    return recipe->extents;
  }
  uint64_t NewBytes() { return world_.chunks->Stats().new_bytes_total; }
  // Of bytes saved now, how many are not stored yet.
  uint64_t NewBytesOf(std::string_view name, std::string_view bytes) {
    const uint64_t before = NewBytes();
    Save(name, bytes);
    Sync();
    return NewBytes() - before;
  }

  World world_;
};

TEST_F(SmallWrites, WhatIsAppendedBetweenTwoRoundsIsOnePiece) {
  std::string text = RandomText(1, 100);
  Save("log", text);
  Sync();
  const uint64_t before = world_.chunks->Stats().chunk_count;
  for (uint64_t i = 0; i < 500; ++i) {
    text += RandomText(i, 32);
    Append("log", std::string_view(text).substr(text.size() - 32));
  }
  Sync();
  EXPECT_LE(world_.chunks->Stats().chunk_count, before + 2);
  EXPECT_EQ(ExtentsOf("log").size(), 1u);
  EXPECT_EQ(TextOf("log"), text);
  world_.Reopen();
  EXPECT_EQ(TextOf("log"), text);
}

TEST_F(SmallWrites, AFileThatGrowsInManyRoundsHasTheChunksOfOneThatIsWrittenAtOnce) {
  const std::string text = RandomText(2, 2 * kMiB);
  Save("log", {});
  for (size_t at = 0; at < text.size(); at += 5000) {
    Append("log", std::string_view(text).substr(at, 5000));
    Sync();
  }
  EXPECT_EQ(TextOf("log"), text);
  // Each byte is stored again a few times, not with each round.
  EXPECT_LE(NewBytes(), 10 * text.size());
  const std::vector<Extent> grown = ExtentsOf("log");
  EXPECT_LE(NewBytesOf("whole", text), 512 * kKiB) << "but for the last chunk all are there";
  EXPECT_LE(grown.size(), ExtentsOf("whole").size() + 8);
  world_.Reopen();
  EXPECT_EQ(TextOf("log"), text);
}

// As a logger that opens its file for each line, and syncs it.
TEST_F(SmallWrites, AFileThatIsOpenedAndSyncedForEachLineHasTheChunksOfOneThatIsWrittenAtOnce) {
  const std::string text = RandomText(10, 200'000);
  Save("log", {});
  uint64_t most = 0;
  for (size_t at = 0; at < text.size(); at += 100) {
    FileSystem::Created file = world_.OpenByName("log");
    ASSERT_TRUE(Write(file, at, std::string_view(text).substr(at, 100)).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    most = std::max<uint64_t>(most, ExtentsOf("log").size());
  }
  Sync();
  EXPECT_LE(most, 16u);
  EXPECT_EQ(TextOf("log"), text);
  EXPECT_LE(NewBytes(), text.size() / 100 * kPageBytes);  // with each line a page at most, on average
  world_.Reopen();
  EXPECT_EQ(TextOf("log"), text);
  Append("log", "x");
  Sync();
  EXPECT_LE(ExtentsOf("log").size(), 8u);
}

TEST_F(SmallWrites, ASyncStoresWhatIsNewOfAStream) {
  const std::string text = RandomText(3, kMiB);
  FileSystem::Created file = world_.Create("log");
  for (size_t at = 0; at < text.size(); at += 4096) {
    ASSERT_TRUE(Write(file, at, std::string_view(text).substr(at, 4096)).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
  }
  EXPECT_LE(NewBytes(), 10 * text.size());
  EXPECT_LE(ExtentsOf("log").size(), 24u);
  world_.CloseFile(file);
  Sync();
  EXPECT_LE(NewBytesOf("whole", text), 512 * kKiB);
  EXPECT_EQ(TextOf("log"), text);
}

// As a database writes, which keeps its file open.
TEST_F(SmallWrites, APageOfASyncedFileIsStoredAlone) {
  std::string text = RandomText(7, kMiB);
  FileSystem::Created file = world_.Create("base");
  ASSERT_TRUE(Write(file, 0, text).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  for (uint64_t page : {100, 25, 101, 99}) {
    const uint64_t before = NewBytes();
    const std::string bytes = RandomText(page, kPageBytes);
    text.replace(page * kPageBytes, kPageBytes, bytes);
    ASSERT_TRUE(Write(file, page * kPageBytes, bytes).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
    EXPECT_LE(NewBytes() - before, 3 * kPageBytes) << page;
  }
  world_.CloseFile(file);
  EXPECT_EQ(TextOf("base"), text);
}

// As above, where the file is so short that all of it is in memory.
TEST_F(SmallWrites, APageOfASmallFileIsStoredAlone) {
  constexpr uint64_t kPages = 16;
  std::string text = RandomText(8, kPages * kPageBytes);
  FileSystem::Created file = world_.Create("base");
  ASSERT_TRUE(Write(file, 0, text).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  for (uint64_t step = 0; step < 3 * kPages; ++step) {
    const uint64_t before = NewBytes(), page = step % kPages;
    const std::string bytes = RandomText(100 + step, kPageBytes);
    text.replace(page * kPageBytes, kPageBytes, bytes);
    ASSERT_TRUE(Write(file, page * kPageBytes, bytes).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
    EXPECT_EQ(NewBytes() - before, kPageBytes) << step;
  }
  world_.CloseFile(file);
  Sync();
  EXPECT_EQ(TextOf("base"), text);
  world_.Reopen();
  EXPECT_EQ(TextOf("base"), text);
}

// As a write-ahead log begins: a page at a time, and nothing before it.
TEST_F(SmallWrites, ASyncOfAPageStoresAPageOrTwoOfAShortTail) {
  const std::string text = RandomText(9, 15 * kPageBytes);
  FileSystem::Created file = world_.Create("log");
  uint64_t little = 0;
  for (size_t at = 0; at < text.size(); at += kPageBytes) {
    const uint64_t before = NewBytes();
    ASSERT_TRUE(Write(file, at, std::string_view(text).substr(at, kPageBytes)).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
    little += NewBytes() - before <= 2 * kPageBytes ? 1 : 0;
  }
  EXPECT_GE(little, 11u) << "of 15";
  world_.CloseFile(file);
  Sync();
  EXPECT_EQ(TextOf("log"), text);
}

// What the merge of a tail must not take for one: a file that is written at once, and one that ends at a cut.
TEST_F(SmallWrites, ATailIsNotStoredAgainWhereNothingWasAppended) {
  const std::string text = RandomText(4, 2 * kMiB);
  Save("whole", text);
  Sync();
  const std::vector<Extent> whole = ExtentsOf("whole");
  ASSERT_GE(whole.size(), 4u);
  EXPECT_EQ(NewBytes(), text.size());
  const uint64_t cut = whole[2].end();  // a file that ends there grows by as much as a chunk
  EXPECT_EQ(NewBytesOf("cut", std::string_view(text).substr(0, cut)), 0u);
  const std::string more = RandomText(5, 2 * kChunkBytesMin - 1);
  Append("cut", more);
  Sync();
  EXPECT_EQ(ExtentsOf("cut").at(2), whole[2]);
  EXPECT_EQ(TextOf("cut"), text.substr(0, cut) + more);
}

// As rsync --sparse writes: zeros that it finds at the borders of its blocks are seeks.
TEST_F(SmallWrites, SeeksOverAFewZerosDoNotMoveTheCuts) {
  std::string text = RandomText(6, 2 * kMiB);
  for (size_t at = 0; at < text.size(); at += 100'000) text[at] = '\0';
  text.replace(500'000, 4095, 4095, '\0');  // from 500,000 to 504,095: no whole page
  Save("dense", text);
  Sync();
  const uint64_t before = NewBytes();
  FileSystem::Created file = world_.Create("sparse");
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '\0') {
      ++at;
      continue;
    }
    const size_t end = std::min({text.find(std::string(1, '\0'), at), text.size(), at + 1024});
    ASSERT_TRUE(Write(file, at, std::string_view(text).substr(at, end - at)).ok());
    at = end;
  }
  world_.CloseFile(file);
  Sync();
  EXPECT_EQ(NewBytes() - before, 0u);
  EXPECT_EQ(ExtentsOf("sparse").size(), ExtentsOf("dense").size());
  EXPECT_EQ(TextOf("sparse"), text);
}

TEST_F(SmallWrites, AHoleOfAWholePageStaysOne) {
  FileSystem::Created file = world_.Create("holes");
  const auto seek = [&](uint64_t from, FileSystem::Seek what) {
    auto found = World::Await<uint64_t>(
        [&](Done<uint64_t> done) { world_.fs->reader().SeekTo(file.handle, from, what, std::move(done)); });
    return found.ok() ? *found : UINT64_MAX;
  };
  ASSERT_TRUE(world_.Write(file, 100, "after 100 zeros").ok());
  ASSERT_TRUE(world_.Write(file, 2 * kPageBytes, "after a page and more").ok());
  ASSERT_TRUE(world_.Write(file, 5 * kPageBytes - 1, "after a page, a byte and what was written").ok());
  for (int times = 0; times < 2; ++times) {
    EXPECT_EQ(seek(0, FileSystem::Seek::kData), 0u);
    EXPECT_EQ(seek(0, FileSystem::Seek::kHole), 115u);
    EXPECT_EQ(seek(200, FileSystem::Seek::kData), 2 * kPageBytes);
    EXPECT_EQ(seek(2 * kPageBytes, FileSystem::Seek::kHole), 2 * kPageBytes + 21);
    EXPECT_EQ(seek(3 * kPageBytes, FileSystem::Seek::kData), 5 * kPageBytes - 1);
    ASSERT_TRUE(world_.Fsync(file).ok());
  }
  // A punched hole that is no whole page is zeros once bytes come behind it.
  ASSERT_TRUE(world_.Punch(file, 5 * kPageBytes, 10).ok());
  ASSERT_TRUE(world_.Write(file, 5 * kPageBytes + 10, "behind").ok());
  EXPECT_EQ(seek(5 * kPageBytes - 1, FileSystem::Seek::kHole), world_.fs->names().GetAttr({}, file.attr.inode)->size);
  EXPECT_EQ(*world_.Read(file, 5 * kPageBytes - 1, 17), "a" + std::string(10, '\0') + "behind");
  world_.CloseFile(file);
}

}  // namespace
}  // namespace cairnfs::fs
