#include "fs/unsaved.h"

#include <unistd.h>

#include <map>

#include "base/answer.h"
#include "cairnfs/cairnfs.h"
#include "fixture.h"
#include "fs/atomic_files.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

// No round but those that are asked for.
struct QuietWorld : World {
  QuietWorld() {
    fs_options.flush_interval_ms = 600'000;
    Remake();
  }
};

Unsaved List(World& world) {
  Unsaved unsaved;
  world.fs->maintenance().ListUnsaved({}, [&](const Unsaved& told) { unsaved = told; });
  return unsaved;
}

std::map<std::string, uint64_t> FilesOf(const Unsaved& unsaved) {
  std::map<std::string, uint64_t> files;
  for (const UnsavedFile& file : unsaved.files) files[file.path] = file.bytes;
  return files;
}

Status SyncAll(World& world) {
  return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
}

TEST(Unsaved, FilesAreListedWithWhatIsNotDurableOfThem) {
  QuietWorld world;
  const auto durable = world.Create("durable");
  ASSERT_TRUE(world.Write(durable, 0, RandomText(1, 30'000)).ok());
  ASSERT_TRUE(SyncAll(world).ok());
  EXPECT_TRUE(List(world).empty());
  ASSERT_TRUE(world.Write(durable, 30'000, "ten bytes.").ok());
  const auto closed = world.Create("closed");
  ASSERT_TRUE(world.Write(closed, 0, RandomText(2, 100'000)).ok());
  world.CloseFile(closed);
  const auto open = world.Create("open\n");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(world.Write(open, 0, RandomText(i, 5'000)).ok());

  const Unsaved unsaved = List(world);
  EXPECT_EQ(FilesOf(unsaved),
            (std::map<std::string, uint64_t>{{"closed", 100'000}, {"open\n", 5'000}, {"durable", 10}}));
  EXPECT_EQ(unsaved.files.front().path, "closed") << "the one with most bytes first";
  EXPECT_EQ(unsaved.file_count, 3u);
  EXPECT_EQ(unsaved.bytes, 105'010u);
  EXPECT_TRUE(unsaved.has_names);

  ASSERT_TRUE(SyncAll(world).ok());
  EXPECT_TRUE(List(world).empty());
  for (const auto& file : {durable, open}) world.CloseFile(file);
}

TEST(Unsaved, WhatWasCopiedIsListedWithItsBytes) {
  QuietWorld world;
  const auto from = world.Create("from");
  ASSERT_TRUE(world.Write(from, 0, RandomText(1, 200'000)).ok());
  ASSERT_TRUE(SyncAll(world).ok());
  const auto to = world.Create("to");
  const auto copied = World::Await<size_t>([&](Done<size_t> done) {
    world.fs->writer().CopyRange({from.handle, 1000, to.handle, 0, 150'000}, std::move(done));
  });
  ASSERT_TRUE(copied.ok());
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"to", *copied}}));
  ASSERT_TRUE(SyncAll(world).ok());
  EXPECT_TRUE(List(world).empty());
  for (const auto& file : {from, to}) world.CloseFile(file);
}

// Their records are made, and the disk has not taken them.
TEST(Unsaved, WhatARoundCouldNotEndIsNotDurable) {
  QuietWorld world;
  const auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, 100'000)).ok());
  world.CloseFile(file);
  world.engine->full = true;
  ASSERT_FALSE(SyncAll(world).ok());
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"file", 100'000}}));
  world.engine->full = false;
  ASSERT_TRUE(SyncAll(world).ok());
  EXPECT_TRUE(List(world).empty());
}

TEST(Unsaved, WhatADiskHasLostIsListedAtTheEnd) {
  QuietWorld world;
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  const auto file = world.Create("file");
  ASSERT_TRUE(SyncAll(world).ok());
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, 100'000)).ok());  // too much for the engine
  world.fs->open_files().Release(file.handle);
  io::Faults faults;
  faults.sync_error_share = 1;
  disk.SetFaults(faults);
  ASSERT_FALSE(SyncAll(world).ok());
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"file", 100'000}}));

  std::map<std::string, uint64_t> at_the_end;
  const auto look = [&](const Status& synced) {
    EXPECT_FALSE(synced.ok());
    at_the_end = FilesOf(List(world));
  };
  EXPECT_FALSE(world.fs->Stop(look).ok());
  EXPECT_EQ(at_the_end, (std::map<std::string, uint64_t>{{"file", 100'000}}));
  world.fs.reset();
}

// The loss was told once: a sync is fine from then on, and the bytes are lost all the same.
TEST(Unsaved, WhatWasToldAsLostIsNotDurableAfterASyncThatIsFine) {
  QuietWorld world;
  const auto file = world.Create("file");
  ASSERT_TRUE(SyncAll(world).ok());
  ASSERT_TRUE(world.Write(file, 0, "bytes that are lost").ok());
  EXPECT_FALSE(List(world).has_lost);
  world.engine->index_unreadable = true;
  EXPECT_FALSE(SyncAll(world).ok());
  world.engine->index_unreadable = false;
  EXPECT_TRUE(SyncAll(world).ok());
  EXPECT_TRUE(List(world).has_lost);
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"file", 19}}));
  world.fs->open_files().Release(file.handle);
}

// What was found by then is told with its name.
TEST(Unsaved, WithoutTimeForNamesFilesAreListedByTheirNumbers) {
  QuietWorld world;
  const auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "bytes").ok());
  Unsaved unsaved;
  world.fs->maintenance().ListUnsaved(Context::Over(), [&](const Unsaved& told) { unsaved = told; });
  EXPECT_EQ(FilesOf(unsaved), (std::map<std::string, uint64_t>{{"#" + std::to_string(file.attr.inode.value), 5}}));
  world.CloseFile(file);
}

TEST(Unsaved, OfVeryManyFilesTheLargestAreListed) {
  QuietWorld world;
  const size_t count = Unsaved::kFilesMax + 50;
  for (size_t i = 0; i < count; ++i) {
    const auto file = world.Create("f" + std::to_string(i));
    ASSERT_TRUE(world.Write(file, 0, std::string(i + 1, 'x')).ok());
    world.CloseFile(file);
  }
  const Unsaved unsaved = List(world);
  EXPECT_EQ(unsaved.file_count, count);
  EXPECT_EQ(unsaved.bytes, count * (count + 1) / 2);
  ASSERT_EQ(unsaved.files.size(), Unsaved::kFilesMax);
  EXPECT_EQ(unsaved.files.front().path, "f" + std::to_string(count - 1));
  EXPECT_EQ(unsaved.files.back().bytes, 51u);
}

// A file that is deleted and still open is nobody's loss.
TEST(Unsaved, AFileWithoutANameIsNotListed) {
  QuietWorld world;
  const auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "bytes").ok());
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "file").ok());
  EXPECT_TRUE(List(world).files.empty());
  world.fs->open_files().Release(file.handle);
}

// The bytes of the open file are not taken by the disk; what was closed does not wait for them.
TEST(Unsaved, BeforeAnEndWhatIsClosedBecomesDurableFirst) {
  QuietWorld world;
  const std::string stuck = RandomText(1, 1000);
  const auto open = world.Create("open");
  ASSERT_TRUE(world.Write(open, 0, stuck).ok());
  const auto closed = world.Create("closed");
  ASSERT_TRUE(world.Write(closed, 0, RandomText(2, 100'000)).ok());
  world.CloseFile(closed);
  world.engine->HoldPutOf(stuck);
  world.fs->EndBy(Clock::Now() + std::chrono::seconds(25));
  std::promise<Status> synced;
  world.fs->maintenance().Sync([&](const Status& status) { synced.set_value(status); });
  world.engine->AwaitHold();
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"open", 1000}}));
  world.engine->LetGo();
  EXPECT_TRUE(synced.get_future().get().ok());
  EXPECT_TRUE(List(world).empty());
  world.CloseFile(open);
}

// Nor does a commit.
TEST(Unsaved, BeforeAnEndACommitWaitsForWhatIsClosedAlone) {
  QuietWorld world;
  const std::string stuck = RandomText(1, 1000);
  const auto open = world.Create("open");
  ASSERT_TRUE(world.Write(open, 0, stuck).ok());
  ASSERT_TRUE(world.fs->names().MakeNode({}, kRootInode, "step.tmp", WithMode(S_IFDIR | 0755)).ok());
  world.engine->HoldPutOf(stuck);
  world.fs->EndBy(Clock::Now() + std::chrono::seconds(25));
  std::promise<Status> renamed, synced;
  world.fs->names().Rename({kRootInode, "step.tmp", kRootInode, "step", meta::RenameMode::kReplace}, {},
                           [&](const Status& status) { renamed.set_value(status); });
  world.fs->maintenance().Sync([&](const Status& status) { synced.set_value(status); });
  EXPECT_TRUE(renamed.get_future().get().ok());
  world.engine->AwaitHold();
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"open", 1000}}));
  EXPECT_FALSE(List(world).has_names);
  world.engine->LetGo();
  EXPECT_TRUE(synced.get_future().get().ok());
  world.CloseFile(open);
}

// No sync gives it its name, and a stop drops it.
TEST(Unsaved, WhatIsToAppearWholeIsNotDurableUntilItIsClosed) {
  QuietWorld world;
  AtomicFiles& files = world.fs->atomic_files();
  const InodeId run = world.fs->names().MakeNode({}, kRootInode, "run", WithMode(S_IFDIR | 0755))->inode;
  constexpr auto kSet = meta::Namespace::XattrMode::kSet;
  ASSERT_TRUE(world.fs->attributes().SetXattr({}, kRootInode, CAIRNFS_XATTR_ATOMIC_FILES, "*.pt", kSet).ok());
  Caller self;
  self.pid = static_cast<uint32_t>(gettid());
  const auto begin = [&](InodeId directory) {
    const auto made = files.Create({self, {}}, directory, "a.pt", WithMode(S_IFREG | 0644), {.write = true});
    const auto handle = World::Await<HandleId>(
        [&](Done<HandleId> done) { files.Open((*made)->inode, {.write = true}, std::move(done), self); });
    return FileSystem::Created{**made, *handle};
  };
  const auto below = begin(run), at_root = begin(kRootInode);
  ASSERT_TRUE(world.Write(below, 0, RandomText(1, 100'000)).ok());
  ASSERT_TRUE(SyncAll(world).ok());
  ASSERT_TRUE(world.Write(below, 100'000, "ten bytes.").ok());
  const Unsaved unsaved = List(world);
  EXPECT_EQ(FilesOf(unsaved), (std::map<std::string, uint64_t>{{"run/a.pt", 100'010}, {"a.pt", 0}}));
  EXPECT_EQ(unsaved.unclosed_count, 2u);
  EXPECT_FALSE(unsaved.has_lost);
  world.fs->maintenance().ListUnsaved(Context::Over(), [&](const Unsaved& told) {
    EXPECT_EQ(told.files.front().path, "#" + std::to_string(run.value) + "/a.pt");
    EXPECT_EQ(told.files.back().path, "a.pt");
  });

  const Status late = world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25)));
  EXPECT_EQ(late.error().message, "2 files that are to appear whole, and not closed yet");
  EXPECT_EQ(FilesOf(List(world)), FilesOf(unsaved));
  for (const auto& file : {below, at_root}) {
    ASSERT_TRUE(World::Await<void>([&](Done<void> done) {
                  files.Flush(file.attr.inode, {file.handle}, std::move(done), self);
                }).ok());
    files.Release(file.attr.inode, file.handle);
  }
  EXPECT_TRUE(world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25))).ok());
  EXPECT_TRUE(List(world).empty());
}

// The bytes of the open file are not taken by the disk.
TEST(Unsaved, ADrainMakesWhatIsClosedDurableFirst) {
  QuietWorld world;
  const std::string stuck = RandomText(1, 1000);
  const auto open = world.Create("open");
  ASSERT_TRUE(world.Write(open, 0, stuck).ok());
  const auto closed = world.Create("closed");
  ASSERT_TRUE(world.Write(closed, 0, RandomText(2, 100'000)).ok());
  world.CloseFile(closed);
  world.engine->HoldPutOf(stuck);
  const Status late = world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25)));
  ASSERT_FALSE(late.ok());
  EXPECT_EQ(late.error().message, "the time was up");
  EXPECT_EQ(FilesOf(List(world)), (std::map<std::string, uint64_t>{{"open", 1000}}));
  // Who commits during a drain waits for what is open, as ever.
  ASSERT_TRUE(world.fs->names().MakeNode({}, kRootInode, "step.tmp", WithMode(S_IFDIR | 0755)).ok());
  Answer<Status> renamed;
  world.fs->names().Rename({kRootInode, "step.tmp", kRootInode, "step", meta::RenameMode::kReplace}, {},
                           [&](const Status& status) { renamed.Set(status); });
  EXPECT_FALSE(world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25))).ok());
  EXPECT_FALSE(renamed.Wait(Context().WithTimeout(std::chrono::milliseconds(1))));
  world.engine->LetGo();
  EXPECT_TRUE(world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25))).ok());
  ASSERT_TRUE(renamed.Wait({}));
  EXPECT_TRUE(renamed.Take().ok());
  EXPECT_TRUE(List(world).empty());
  world.CloseFile(open);
}

}  // namespace
}  // namespace cairnfs::fs
