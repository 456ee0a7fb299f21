// Where equal data is stored once for each owner: what one user stores never shows in what another's data takes.
#include <gtest/gtest.h>

#include <random>

#include "fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

class OwnersTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kAlice = 1001, kBob = 1002;
  explicit OwnersTest(meta::Dedup dedup = meta::Dedup::kOwner) {
    world_.dedup = dedup;
    world_.fs_options.flush_interval_ms = 1000;
    world_.Remake();
  }
  static std::string Random(uint64_t seed, size_t size) {
    std::mt19937_64 random(seed);
    return RandomText(random, size);
  }
  // What the files take, and nothing that is left over.
  uint64_t Taken() {
    Collect();
    return world_.chunks->Stats().unique_bytes;
  }
  // How much the save added.
  uint64_t Save(std::string_view name, uint32_t uid, std::string_view text) {
    const uint64_t before = Taken();
    auto file = world_.Create(name, uid);
    EXPECT_TRUE(world_.Write(file, 0, text).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    world_.fs->names().Forget(file.attr.inode, 1);
    return Taken() - before;
  }
  void Chown(std::string_view name, uint32_t uid) {
    auto attr = world_.fs->names().Lookup({}, kRootInode, name);
    ASSERT_TRUE(attr.ok());
    SetAttrRequest request;
    request.uid = uid;
    EXPECT_TRUE(World::Await<meta::Attr>([&](Done<meta::Attr> done) {
                  world_.fs->attributes().SetAttr(attr->inode, request, done);
                }).ok());
  }
  std::string Content(std::string_view name, size_t size) {
    auto file = world_.OpenByName(name);
    auto text = world_.Read(file, 0, size);
    world_.CloseFile(file);
    EXPECT_TRUE(text.ok()) << text.error().message;
    return text.ok() ? *text : "";
  }
  CollectionStatus Collect() {
    auto collected =
        World::Await<CollectionStatus>([&](Done<CollectionStatus> done) { world_.fs->maintenance().Collect(done); });
    EXPECT_TRUE(collected.ok()) << collected.error().message;
    return collected.ok() ? *collected : CollectionStatus();
  }

  World world_;
};

class OneOwnerTest : public OwnersTest {
 protected:
  OneOwnerTest() : OwnersTest(meta::Dedup::kMount) {}
};

TEST_F(OwnersTest, EqualDataOfTwoIsStoredTwiceAndOfOneOnce) {
  const std::string text = Random(1, 3'000'000);
  const uint64_t first = Save("alice", kAlice, text);
  EXPECT_GE(first, text.size());
  EXPECT_EQ(Save("bob", kBob, text), first);  // as if nobody had it
  EXPECT_EQ(Save("root", 0, text), first);
  EXPECT_EQ(Save("alice again", kAlice, text), 0U);
  EXPECT_EQ(Save("bob again", kBob, text), 0U);
  world_.Reopen();
  for (const char* name : {"alice", "bob", "root", "alice again", "bob again"}) {
    EXPECT_EQ(Content(name, text.size()), text) << name;
  }
}

TEST_F(OneOwnerTest, OtherwiseTheMountStoresItOnce) {
  const std::string text = Random(1, 3'000'000);
  EXPECT_GE(Save("alice", kAlice, text), text.size());
  EXPECT_EQ(Save("bob", kBob, text), 0U);
}

// Recipes of many extents are chunks too, and so are the small pieces that are merged.
TEST_F(OwnersTest, PagesAndMergedPiecesAreTheOwnersToo) {
  auto save = [&](std::string_view name, uint32_t uid) {
    const uint64_t before = Taken();
    auto file = world_.Create(name, uid);
    // From the end on, so that the holes between them stay until they are merged.
    for (uint64_t i = 4200; i-- > 0;) EXPECT_TRUE(world_.Write(file, i * 128, Random(i, 100)).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    return Taken() - before;
  };
  const uint64_t first = save("alice", kAlice);
  EXPECT_GE(first, 420'000U);
  EXPECT_EQ(save("bob", kBob), first);
  EXPECT_EQ(save("alice again", kAlice), 0U);
}

// Runs within chunks are found among one owner's, too, whoever writes: root's files are no exception.
TEST_F(OwnersTest, RunsOfChunksAreOfOneOwnerToo) {
  world_.params = chunking::ChunkParams();
  world_.Remake();
  const std::string text = Random(6, 2'000'000);
  auto save = [&](std::string_view name, uint32_t uid, const std::string& bytes) {
    Caller alice;
    alice.uid = kAlice;
    const uint64_t before = Taken();
    auto file = world_.Create(name, uid);
    EXPECT_TRUE(world_.Write(file, 0, bytes, alice).ok());
    EXPECT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    return Taken() - before;
  };
  const uint64_t first = save("root's", 0, "some header" + text);
  EXPECT_GE(save("own", kAlice, text), text.size());
  EXPECT_GE(save("bob's", kBob, "another one" + text), first);
  EXPECT_LT(save("own again", kAlice, "one more" + text), 10'000U);
  EXPECT_LT(save("root's again", 0, "a longer header" + text), 10'000U);
}

// A collection tells them apart as well: else what stays after a deletion would tell of another's data.
TEST_F(OwnersTest, WhatOneDeletesGoesWhoeverElseHasIt) {
  const std::string text = Random(2, 3'000'000);
  const uint64_t each = Save("alice", kAlice, text);
  Save("bob", kBob, text);
  ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, "bob").ok());
  EXPECT_EQ(Collect().bytes_freed, each);
  EXPECT_EQ(Content("alice", text.size()), text);
}

TEST_F(OwnersTest, AFileThatIsGivenAwayIsWrittenForItsNewOwner) {
  const std::string text = Random(3, 1'000'000), more = Random(4, 1'000'000);
  for (const bool is_open : {false, true}) {
    const std::string name = is_open ? "open" : "closed";
    Save(name, kAlice, text);
    FileSystem::Created file;
    if (is_open) file = world_.OpenByName(name);
    Chown(name, kBob);
    if (!is_open) file = world_.OpenByName(name);
    ASSERT_TRUE(world_.Write(file, text.size(), more).ok());
    ASSERT_TRUE(world_.Fsync(file).ok());
    world_.CloseFile(file);
    EXPECT_EQ(Content(name, text.size() + more.size()), text + more);
  }
  EXPECT_LT(Save("alice has it still", kAlice, text), 5'000U);  // its recipe
  EXPECT_LT(Save("bob has it", kBob, more), 5'000U);
  EXPECT_GE(Save("alice never had it", kAlice, more), more.size());
}

// Who copies can read the bytes, and takes no room: that tells nothing new.
TEST_F(OwnersTest, ACopySharesWhatItIsACopyOf) {
  const std::string text = Random(5, 1'000'000);
  Save("alice", kAlice, text);
  const uint64_t before = Taken();
  auto from = world_.OpenByName("alice");
  auto to = world_.Create("bob", kBob);
  auto copied = World::Await<size_t>([&](Done<size_t> done) {
    world_.fs->writer().CopyRange({from.handle, 0, to.handle, 0, text.size()}, done);
  });
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  ASSERT_TRUE(world_.Fsync(to).ok());
  world_.CloseFile(from);
  world_.CloseFile(to);
  EXPECT_LT(Taken() - before, 10'000U);  // its recipe
  EXPECT_EQ(Content("bob", text.size()), text);
}

// So that no small file shows in df, and never more than there is.
TEST(SpaceTest, IsToldRoundedDown) {
  const FsSpace space{100 * kGiB + 5, 70 * kGiB + 7, 60 * kGiB + 9, 1000, 900};
  const FsSpace told = space.Rounded();
  EXPECT_EQ(told.total_bytes, AlignDown(space.total_bytes, 128 * kMiB));
  EXPECT_EQ(told.free_bytes, AlignDown(space.free_bytes, 128 * kMiB));
  EXPECT_EQ(told.available_bytes, 60 * kGiB);
  EXPECT_EQ(told.inodes_free, 896u);
  EXPECT_EQ(told.inodes_total - told.inodes_free, 100u);
  EXPECT_EQ((FsSpace{0, 0, 0, 101, 1}.Rounded().inodes_free), 1u);
  FsSpace full{200 * kMiB, 255 * kKiB, 255 * kKiB};
  EXPECT_EQ(full.Rounded().available_bytes, 0u);
  full.available_bytes = 256 * kKiB;
  EXPECT_EQ(full.Rounded().available_bytes, 256 * kKiB);
}

}  // namespace
}  // namespace cairnfs::fs
