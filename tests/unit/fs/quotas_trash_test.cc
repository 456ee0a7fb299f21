// Quotas and the trash on one host: what is restored takes room, and what retention removed makes some.
#include "fs/trash.h"
#include "quotas_fixture.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

class QuotasTrashTest : public QuotasTest {
 protected:
  void KeepTrash() {
    world_.fs_options.trash_ms = 3'600'000;
    world_.Remake();
    run_ = MakeDirectory("run");
  }
  Status Unlink(std::string_view name) { return world_.fs->names().Unlink({}, run_, name); }
  // A directory with one file of kSomeBytes, as retention removes it.
  void RemoveCheckpoint(const std::string& name) {
    const std::string going = retention::GoingName("abcdefghijklmno" + name, name);
    const InodeId step = world_.fs->names().MakeNode({}, run_, going, WithMode(S_IFDIR | 0755))->inode;
    auto file =
        world_.fs->open_files().Create({}, step, "file", WithMode(S_IFREG | 0644), {.read = true, .write = true});
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(world_.Write(*file, 0, RandomText(std::hash<std::string>()(name), kSomeBytes)).ok());
    ASSERT_TRUE(world_.Fsync(*file).ok());
    Close(*file);
    ASSERT_TRUE(world_.fs->names().Rmdir({}, run_, going).ok());
  }
  // What was removed last comes back.
  Status Restore(const std::optional<Names::Place>& place = {}) {
    const auto page = world_.fs->trash().List({}, {}, "");
    EXPECT_TRUE(page.ok() && !page->items.empty());
    const auto restored = world_.fs->names().Restore({}, {}, page->items.back().entry.parts.inode, place);
    return restored.ok() ? Status() : Status(restored.error());
  }
};

TEST_F(QuotasTrashTest, WhatIsRestoredTakesRoom) {
  KeepTrash();
  ASSERT_TRUE(Set(2 * kSomeBytes).ok());
  Save("a", RandomText(1, 2 * kSomeBytes));
  ASSERT_TRUE(Unlink("a").ok());
  Save("b", RandomText(2, kSomeBytes));
  EXPECT_EQ(Restore().error().code, ErrorCode::kQuotaExceeded);
  EXPECT_EQ(world_.fs->trash().entries(), 1u);
  const InodeId outside = MakeDirectory("outside");
  ASSERT_TRUE(Restore(Names::Place{outside, "a"}).ok()) << "elsewhere it counts for nothing";
  EXPECT_EQ(world_.fs->names().Lookup({}, outside, "a")->quota, InodeId{});
  EXPECT_EQ(Used().logical, kSomeBytes);
  EXPECT_EQ(Used(), Recorded());
  ASSERT_TRUE(world_.fs->names().Unlink({}, outside, "a").ok());
  ASSERT_TRUE(Unlink("b").ok());
  ASSERT_TRUE(Restore().ok() && Restore(Names::Place{run_, "a"}).error().code == ErrorCode::kQuotaExceeded);
  EXPECT_EQ(Used(), Recorded());
}

// A file that nobody has open, and whose bytes are in a round.
TEST_F(QuotasTrashTest, WhatIsRestoredBesideARoundHasItsBytes) {
  KeepTrash();
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  const std::string text = RandomText(1, 16 * kKiB);
  world_.engine->HoldPutOf(text);
  auto file = Create("a");
  ASSERT_TRUE(world_.Write(file, 0, text).ok());
  Close(file);
  std::thread round([&] {
    EXPECT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  });
  world_.engine->AwaitHold();
  EXPECT_TRUE(Unlink("a").ok());
  std::thread restore([&] { EXPECT_TRUE(Restore().ok()); });
  const bool is_restored = Eventually([&] { return world_.names->Lookup({}, run_, "a").ok(); });
  world_.engine->LetGo();
  round.join();
  restore.join();
  ASSERT_TRUE(is_restored);
  EXPECT_EQ(Used().logical, text.size());
  EXPECT_EQ(Used(), Recorded());
  world_.Reopen();
  EXPECT_EQ(world_.names->ReadFile({}, file.attr.inode)->record->size, text.size());
}

// As retention removes them: they count until they are emptied.
TEST_F(QuotasTrashTest, WhatRetentionRemovedGoesBeforeAWriteIsRefused) {
  KeepTrash();
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  for (const std::string name : {"a", "b", "c"}) RemoveCheckpoint(name);
  EXPECT_EQ(Used().logical, 3 * kSomeBytes);
  EXPECT_EQ(world_.fs->trash().entries(), 3u);
  auto file = Create("file");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(9, 2 * kSomeBytes)).ok());
  EXPECT_EQ(world_.fs->trash().entries(), 2u) << "no more than is needed";
  ASSERT_TRUE(world_.Write(file, 2 * kSomeBytes, RandomText(10, 2 * kSomeBytes)).ok());
  EXPECT_EQ(world_.fs->trash().entries(), 0u);
  EXPECT_EQ(world_.Write(file, 4 * kSomeBytes, "x").error().code, ErrorCode::kQuotaExceeded);
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(Used(), Recorded());
  Close(file);
}

// It adds nothing.
TEST_F(QuotasTrashTest, WhatIsWrittenOverEmptiesNothing) {
  KeepTrash();
  ASSERT_TRUE(Set(2 * kSomeBytes).ok());
  RemoveCheckpoint("a");
  auto file = Create("file");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(9, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  ASSERT_TRUE(world_.Write(file, 0, RandomText(10, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(world_.fs->trash().entries(), 1u);
  EXPECT_EQ(Used().logical, 2 * kSomeBytes);
  Close(file);
}

TEST_F(QuotasTrashTest, WhatRetentionRemovedGoesBeforeAFileIsRefused) {
  KeepTrash();
  ASSERT_TRUE(Set(kSomeBytes).ok());
  RemoveCheckpoint("a");
  const auto create = [&] {
    return world_.fs->open_files().Create({}, run_, "b", WithMode(S_IFREG | 0644), {.write = true});
  };
  const auto await = [&] {
    return World::Await<void>(
        [&](Done<void> done) { world_.fs->open_files().AwaitMayCreate(run_, {}, std::move(done)); });
  };
  EXPECT_EQ(create().error().code, ErrorCode::kQuotaExceeded);
  ASSERT_TRUE(await().ok());
  auto file = create();
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(world_.Write(*file, 0, RandomText(2, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(*file).ok());
  EXPECT_EQ(await().error().code, ErrorCode::kQuotaExceeded) << "the trash has no more";
  Close(*file);
}

TEST_F(QuotasTrashTest, WhatIsWrittenAfterItWasRestoredCounts) {
  KeepTrash();
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  auto file = Create("a");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(1, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  ASSERT_TRUE(Unlink("a").ok());
  ASSERT_TRUE(world_.Write(file, kSomeBytes, RandomText(2, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(Used().logical, 0u);
  ASSERT_TRUE(Restore().ok());
  EXPECT_EQ(Used().logical, 2 * kSomeBytes);
  ASSERT_TRUE(world_.Write(file, 2 * kSomeBytes, RandomText(3, kSomeBytes)).ok());
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_EQ(Used().logical, 3 * kSomeBytes);
  EXPECT_EQ(Used(), Recorded());
  Close(file);
}

TEST_F(QuotasTrashTest, WhatLiesInTheTrashMeanwhileIsRestoredUnderTheQuotaThatThereIs) {
  KeepTrash();
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  Save("a", RandomText(1, kSomeBytes));
  ASSERT_TRUE(Unlink("a").ok());
  ASSERT_TRUE(TakeOff().ok());
  ASSERT_TRUE(Restore().ok());
  EXPECT_EQ(world_.fs->names().Lookup({}, run_, "a")->quota, InodeId{});
  ASSERT_TRUE(Unlink("a").ok());
  ASSERT_TRUE(Set(4 * kSomeBytes).ok());
  EXPECT_EQ(Used().logical, 0u);
  ASSERT_TRUE(Restore().ok());
  EXPECT_EQ(Used().logical, kSomeBytes);
  EXPECT_EQ(Used(), Recorded());
}

}  // namespace
}  // namespace cairnfs::fs
