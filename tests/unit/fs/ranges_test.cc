// lseek for data and holes, and listing of chunks, in files whose recipes have many pages.
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/reader.h"
#include "fs/recipe.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

using Seek = FileSystem::Seek;

// A dense file of many leaf pages, made by copies of one piece, opened anew so that no page is in memory.
class RangesOfLargeFile : public testing::Test {
 protected:
  static constexpr uint64_t kPiece = 8 * kMiB;
  static constexpr uint64_t kSize = 75 * kLeafBytes;

  void SetUp() override {
    world_.params = chunking::ChunkParams();
    world_.Remake();
    file_ = world_.Create("file");
    ASSERT_TRUE(world_.Write(file_, 0, RandomText(1, kPiece)).ok());
    ASSERT_TRUE(world_.Fsync(file_).ok());
    for (uint64_t size = kPiece; size < kSize; size = std::min(2 * size, kSize)) {
      const uint64_t wanted = std::min(size, kSize - size);
      for (uint64_t done = 0; done < wanted;) {
        auto copied = World::Await<size_t>([&](Done<size_t> told) {
          world_.fs->writer().CopyRange({file_.handle, done, file_.handle, size + done, wanted - done},
                                        std::move(told));
        });
        ASSERT_TRUE(copied.ok() && *copied > 0);
        done += *copied;
      }
    }
    world_.CloseFile(file_);
    Reopen();
  }
  void Reopen() {
    world_.Reopen();
    file_ = world_.OpenByName("file");
  }
  void Punch(uint64_t offset, uint64_t length) { EXPECT_TRUE(world_.Punch(file_, offset, length).ok()); }
  std::optional<uint64_t> Find(Seek what, uint64_t offset) {
    auto found = World::Await<uint64_t>(
        [&](Done<uint64_t> done) { world_.fs->reader().SeekTo(file_.handle, offset, what, std::move(done)); });
    if (found.ok()) return *found;
    EXPECT_EQ(found.error().code, ErrorCode::kNoData);
    return std::nullopt;
  }

  World world_{160 * kMiB};
  FileSystem::Created file_;
};

TEST_F(RangesOfLargeFile, TheHoleOfADenseFileIsItsEnd) {
  ASSERT_EQ(file_.attr.size, kSize);
  EXPECT_EQ(Find(Seek::kHole, 0), kSize);
  EXPECT_EQ(Find(Seek::kHole, kSize - 1), kSize);
  EXPECT_EQ(Find(Seek::kHole, kSize), std::nullopt);
  EXPECT_EQ(Find(Seek::kData, kSize - 1), kSize - 1);
  EXPECT_EQ(Find(Seek::kData, kSize), std::nullopt);
}

TEST_F(RangesOfLargeFile, HolesAreFoundWhereverTheyBegin) {
  // Behind what is looked through at once, at its border, and over whole pages.
  const uint64_t inside = 70 * kLeafBytes + 12'345, border = 64 * kLeafBytes, whole = 10 * kLeafBytes;
  Punch(inside, 5000);
  EXPECT_EQ(Find(Seek::kHole, 0), inside);
  EXPECT_EQ(Find(Seek::kData, inside), inside + 5000);
  Punch(border, 1);
  EXPECT_EQ(Find(Seek::kHole, 0), border);
  EXPECT_EQ(Find(Seek::kData, border), border + 1);
  Punch(whole, 3 * kLeafBytes);
  for (const bool is_reopened : {false, true}) {
    if (is_reopened) {
      world_.CloseFile(file_);
      Reopen();
    }
    EXPECT_EQ(Find(Seek::kHole, 1), whole);
    EXPECT_EQ(Find(Seek::kHole, whole + 1), whole + 1);
    EXPECT_EQ(Find(Seek::kData, whole), whole + 3 * kLeafBytes);
    EXPECT_EQ(Find(Seek::kHole, whole + 3 * kLeafBytes), border);
    EXPECT_EQ(Find(Seek::kHole, border + 1), inside);
    EXPECT_EQ(Find(Seek::kHole, inside + 5000), kSize);
  }
}

TEST_F(RangesOfLargeFile, BytesThatWaitCountAsData) {
  Punch(63 * kLeafBytes, 4 * kLeafBytes);
  // Over the border of what is looked through at once, and not stored yet.
  const std::string bytes = RandomText(2, kMiB);
  ASSERT_TRUE(world_.Write(file_, 64 * kLeafBytes - kMiB / 2, bytes).ok());
  EXPECT_EQ(Find(Seek::kHole, 0), 63 * kLeafBytes);
  EXPECT_EQ(Find(Seek::kData, 63 * kLeafBytes), 64 * kLeafBytes - kMiB / 2);
  EXPECT_EQ(Find(Seek::kHole, 64 * kLeafBytes - kMiB / 2), 64 * kLeafBytes + kMiB / 2);
}

// Those of its recipe too: a lone file takes what the store has once nothing else is left.
TEST_F(RangesOfLargeFile, ItsChunksAreCounted) {
  ASSERT_TRUE(World::Await<CollectionStatus>([&](Done<CollectionStatus> done) {
                world_.fs->maintenance().Collect(done);
              }).ok());
  const store::StoreStats stats = world_.chunks->Stats();
  EXPECT_GT(stats.unique_bytes, kPiece);
  auto ask = [&](std::string_view name) {
    auto told = World::Await<std::string>(
        [&](Done<std::string> done) { world_.fs->attributes().GetXattr(file_.attr.inode, name, done); });
    return told.ok() ? *told : told.error().message;
  };
  for (const bool is_reopened : {false, true}) {
    if (is_reopened) {
      world_.CloseFile(file_);
      Reopen();
    }
    EXPECT_EQ(ask("user.cairnfs.unique_bytes"), std::to_string(stats.unique_bytes));
    EXPECT_EQ(ask("user.cairnfs.chunks"), std::to_string(stats.chunk_count));
  }
}

// A file with more holes than are kept in mind of others has room asked for what is missing, and for no more.
TEST(RangesTest, RoomIsAskedForWhatIsMissing) {
  World world;
  world.disk_options.size_bytes = 256 * kMiB;
  world.Remake();
  const FileSystem::Created file = world.Create("file");
  constexpr uint64_t kStep = 8192, kPieces = 6000;
  const std::string piece(100, 'x');
  for (uint64_t i = 0; i < kPieces; ++i) ASSERT_TRUE(world.Write(file, i * kStep, piece).ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  const uint64_t available = world.chunks->Stats().available_bytes;
  FallocateRequest request;
  request.length = available + 500'000;  // of which the file has 600,000
  ASSERT_GT(request.length, kPieces * kStep);
  const Status status = world.Fallocate(file, request);
  EXPECT_TRUE(status.ok()) << status.error().message;
}

}  // namespace
}  // namespace cairnfs::fs
