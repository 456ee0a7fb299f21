#include "fs/sync_rounds.h"

#include <future>
#include <thread>

#include "base/clock.h"
#include "fixture.h"
#include "fs/extent_map.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/writer.h"
#include "io/faulty_disk.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

uint64_t RecordedSize(World& world, InodeId inode) {
  auto entry = world.kv->Get({}, meta::FileKey(inode));
  EXPECT_TRUE(entry.ok() && *entry);
  auto record = meta::FileRecord::Decode((*entry)->value);
  EXPECT_TRUE(record.ok());
  return record->size;
}

io::Slice Unowned(std::string_view bytes) {
  io::Slice slice;
  slice.data = reinterpret_cast<const std::byte*>(bytes.data());
  slice.size = bytes.size();
  return slice;
}

// What a sync point covered stays, though another writer is at work lower in the file when it ends.
TEST(SyncRounds, AWriterElsewhereInTheFileDoesNotCutOffWhatWasSynced) {
  World world;
  for (int round = 0; round < 20; ++round) {
    FileSystem::Created file = world.Create("f" + std::to_string(round));
    ASSERT_TRUE(world.Write(file, 16 * kMiB, RandomText(round, kMiB)).ok());
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      const std::string piece = RandomText(1000 + round, 8 * kKiB);
      for (uint64_t offset = 0; !stop && offset < 16 * kMiB; offset += piece.size()) {
        ASSERT_TRUE(world.Write(file, offset, piece).ok());
      }
    });
    EXPECT_TRUE(world.Fsync(file).ok());
    EXPECT_GE(RecordedSize(world, file.attr.inode), 17 * kMiB) << "round " << round;
    stop = true;
    writer.join();
    world.CloseFile(file);
  }
}

// The thread on which the sync was answered; a caller's thread may run the round itself.
std::thread::id SyncOnLentThread(World& world, const FileSystem::Created& file) {
  Caller caller;
  caller.lends_thread = true;
  std::promise<std::thread::id> answered;
  world.fs->open_files().Fsync(
      file.handle, file.attr.inode,
      [&](Result<void> synced) {
        EXPECT_TRUE(synced.ok()) << synced.error().message;
        answered.set_value(std::this_thread::get_id());
      },
      caller);
  return answered.get_future().get();
}

TEST(SyncRounds, ASyncOfLittleIsDoneOnALentThread) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;  // no round but those that are asked for
  world.Remake();
  FileSystem::Created file = world.Create("log");
  for (uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(world.Write(file, 100 * i, RandomText(i, 100)).ok());
    EXPECT_EQ(SyncOnLentThread(world, file), std::this_thread::get_id());
    EXPECT_EQ(RecordedSize(world, file.attr.inode), 100 * (i + 1));
  }
  world.CloseFile(file);
}

// Rounds of threads that lend themselves, of the rounds' own and of others at once: each sync covers what was before
// it.
TEST(SyncRounds, SyncsOnManyLentThreadsAtOnceCoverWhatWasWritten) {
  World world;
  std::vector<std::thread> writers;
  for (int number = 0; number < 4; ++number) {
    writers.emplace_back([&world, number] {
      FileSystem::Created file = world.Create("f" + std::to_string(number));
      for (uint64_t i = 0; i < 200; ++i) {
        ASSERT_TRUE(world.Write(file, 50 * i, RandomText(1000 * number + i, 50)).ok());
        if (i % 4 == 3) {
          ASSERT_TRUE(world.Fsync(file).ok());
        } else {
          SyncOnLentThread(world, file);
        }
        ASSERT_GE(RecordedSize(world, file.attr.inode), 50 * (i + 1));
      }
      world.CloseFile(file);
    });
  }
  for (std::thread& writer : writers) writer.join();
}

// A file that is no more than many small pieces can be made durable, and the recipe is not as long as they are many.
TEST(SyncRounds, ManySmallScatteredWritesAreMerged) {
  constexpr uint64_t kStride = 512, kPiece = 64, kCount = 30'000;
  World world;
  FileSystem::Created file = world.Create("scattered");
  std::string expected(kStride * kCount, '\0');
  const std::string pieces = RandomText(1, kPiece * kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    FileSystem::WriteRequest request;
    request.handle = file.handle;
    request.inode = file.attr.inode;
    request.offset = i * kStride;
    request.data = Unowned(std::string_view(pieces).substr(kPiece * i, kPiece));
    auto written =
        World::Await<size_t>([&](Done<size_t> done) { world.fs->writer().Write(std::move(request), std::move(done)); });
    ASSERT_TRUE(written.ok()) << written.error().message;
    expected.replace(i * kStride, kPiece, pieces, kPiece * i, kPiece);
  }
  expected.resize(kStride * (kCount - 1) + kPiece);
  ASSERT_TRUE(world.Fsync(file).ok());
  EXPECT_TRUE(*world.Read(file, 0, expected.size()) == expected);
  world.CloseFile(file);
  world.Reopen();
  file = world.OpenByName("scattered");
  EXPECT_TRUE(*world.Read(file, 0, expected.size()) == expected);
  world.CloseFile(file);
  auto entry = world.kv->Get({}, meta::FileKey(file.attr.inode));
  auto record = meta::FileRecord::Decode((*entry)->value);
  auto recipe = Recipe::Decode(record->recipe);
  ASSERT_TRUE(recipe.ok());
  uint64_t extents = recipe->extents.size();
  for (const PageRef& inner : recipe->inner) extents += inner.extent_count;
  EXPECT_LT(extents, kCount / 4);
}

// A recipe that can not be stored is one file's matter: names become durable, and the file follows.
TEST(SyncRounds, ARecipeThatCanNotBeStoredHoldsNobodyUp) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
  world.Remake();
  FileSystem::Created big = world.Create("big");
  ASSERT_TRUE(world.Write(big, 0, RandomText(1, 8 * kMiB)).ok());  // more chunks than an inline recipe holds
  ASSERT_TRUE(world.Fsync(big).ok());
  ASSERT_TRUE(world.Write(big, 0, "changed").ok());
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->open_files().Flush({big.handle}, done); }).ok());
  for (FsStatus status = world.fs->maintenance().GetStatus(); status.dirty_bytes > status.store.pending_bytes;) {
    Clock::SleepFor(std::chrono::milliseconds(1));
    status = world.fs->maintenance().GetStatus();
  }
  world.engine->index_unreadable = true;  // so that nothing can be put
  FileSystem::Created other = world.Create("other");
  Status synced = World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
  ASSERT_FALSE(synced.ok());
  EXPECT_NE(synced.error().message.find("recipe of inode"), std::string::npos) << synced.error().message;
  EXPECT_FALSE(world.kv->HasUnflushed());
  // Nor does it hold up changes of the file itself.
  EXPECT_TRUE(world.Truncate(big, 7 * kMiB + 1).ok());
  auto rename = [&] {
    return World::Await<void>([&](Done<void> done) {
      world.fs->names().Rename({kRootInode, "big", kRootInode, "final", meta::RenameMode::kReplace}, {},
                               std::move(done));
    });
  };
  for (int times = 0; times < 2; ++times) EXPECT_FALSE(rename().ok()) << "the new name would be of older bytes";
  world.engine->index_unreadable = false;
  EXPECT_FALSE(world.Fsync(big).ok());  // its descriptor is told, once
  EXPECT_TRUE(world.Fsync(big).ok());
  EXPECT_EQ(RecordedSize(world, big.attr.inode), 7 * kMiB + 1);
  EXPECT_TRUE(rename().ok());
  world.CloseFile(big);
  world.CloseFile(other);
}

// The kernel takes the names of a rename that failed to be what they were.
TEST(SyncRounds, ARenameThatIsNotDurableIsTakenBack) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;
  world.Remake();
  ASSERT_TRUE(world.fs->names().MakeNode({}, kRootInode, "step.tmp", WithMode(S_IFDIR | 0755)).ok());
  auto rename = [&] {
    return World::Await<void>([&](Done<void> done) {
      world.fs->names().Rename({kRootInode, "step.tmp", kRootInode, "step", meta::RenameMode::kReplace}, {},
                               std::move(done));
    });
  };
  ASSERT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  world.engine->full = true;
  Status refused = rename();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << refused.error().message;
  EXPECT_TRUE(world.fs->names().Lookup({}, kRootInode, "step.tmp").ok());
  EXPECT_FALSE(world.fs->names().Lookup({}, kRootInode, "step").ok());
  world.engine->full = false;
  EXPECT_TRUE(rename().ok());
  EXPECT_FALSE(world.fs->names().Lookup({}, kRootInode, "step.tmp").ok());
  EXPECT_TRUE(world.fs->names().Lookup({}, kRootInode, "step").ok());
}

// Lets changes in once a round has ended.
class ShutPublisher final : public Publisher {
 public:
  void BeginOperation() override {}
  void EndOperation() override {}
  Admission Admit(NameChange) const override { return rounds_ == 0 ? Admission::kAfterRound : Admission::kAtOnce; }
  bool AdmitsWhileFailing(NameChange) const override { return false; }
  bool HasUnflushedNames() const override { return false; }
  uint64_t UnwrittenBytes() const override { return 0; }
  bool MayRunOnCaller() const override { return false; }
  bool IsDiskFailure(const Error&) const override { return false; }
  bool is_open() const override { return is_open_; }
  Status ResolveDoubt() override { return {}; }
  void Open(const DirtyFiles::Selection&) override { is_open_ = true; }
  Status Finish(const Round&) override {
    is_open_ = false;
    rounds_++;
    return {};
  }
  void Stop() override {}

 private:
  std::atomic<int> rounds_{0};
  std::atomic<bool> is_open_{false};
};

// All threads that wait for rounds may wait for one that asks to be let in: it must not need any of them.
TEST(SyncRounds, WhoWaitsToBeLetInNeedsNoOtherThread) {
  World world;
  TaskQueue workers("worker", 1), waiters("waiter", 1);
  InodeTable table([](const InodePtr&) {});
  Streams streams(*world.chunks, *world.chunks, *world.pool, world.params, workers, {});
  DirtyFiles files(*world.chunks, *world.chunks, streams, table);
  ShutPublisher publisher;
  SyncRounds rounds({*world.names, files, publisher, waiters}, {.interval_ms = 600'000});
  std::promise<void> let_in;
  waiters.Post([&] { let_in.get_future().wait(); });
  EXPECT_TRUE(rounds.WaitUntilAdmitted({}, NameChange::kRemoves).ok());
  let_in.set_value();
  EXPECT_TRUE(rounds.Stop().ok());
}

// A world with files "old" and "new", whose renames wait; rounds run when they are asked for.
class DurableFileRename : public testing::Test {
 protected:
  DurableFileRename() {
    world_.fs_options.flush_interval_ms = 600'000;
    world_.fs_options.durable_file_rename = true;
    world_.Remake();
    for (std::string_view name : {"old", "new"}) {
      FileSystem::Created file = world_.Create(name);
      EXPECT_TRUE(world_.Write(file, 0, name).ok());
      world_.CloseFile(file);
    }
    EXPECT_TRUE(World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); }).ok());
  }
  Status Rename(const Caller& caller = {}) {
    return World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, "new", kRootInode, "old", meta::RenameMode::kReplace}, caller,
                                std::move(done));
    });
  }
  std::string TextOf(std::string_view name) {
    FileSystem::Created file = world_.OpenByName(name);
    auto text = world_.Read(file, 0, 100);
    world_.CloseFile(file);
    return text.ok() ? *text : text.error().message;
  }
  World world_;
};

// A loss is told to the next sync point on the host: one whose process was killed meanwhile is none.
TEST(SyncRounds, ALossIsNotToldToWhoWasKilled) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
  world.Remake();
  const std::string bytes = "bytes that are lost";
  FileSystem::Created file = world.Create("file"), other = world.Create("other");
  ASSERT_TRUE(world.Write(file, 0, bytes).ok());
  world.engine->index_unreadable = true;
  world.engine->HoldPutOf(bytes);
  std::stop_source kill;
  Caller killed;
  killed.context = Context(kill.get_token());
  auto fsync = std::async(std::launch::async, [&] {
    return World::Await<void>([&](Done<void> done) {
      world.fs->open_files().Fsync(other.handle, other.attr.inode, std::move(done), killed);
    });
  });
  world.engine->AwaitHold();
  kill.request_stop();
  const Status interrupted = fsync.get();
  ASSERT_FALSE(interrupted.ok());
  EXPECT_EQ(interrupted.error().code, ErrorCode::kInterrupted) << interrupted.error().message;
  world.engine->holding = false;
  const Status told = world.Fsync(other);
  ASSERT_FALSE(told.ok());
  EXPECT_NE(told.error().message.find("lost"), std::string::npos) << told.error().message;
  world.engine->index_unreadable = false;
  EXPECT_TRUE(world.Fsync(other).ok()) << "it is told once";
  for (const FileSystem::Created& open : {file, other}) world.fs->open_files().Release(open.handle);
}

// What another file has lost is told before the name is there, not after.
TEST_F(DurableFileRename, IsRefusedBeforeItHasHappened) {
  FileSystem::Created other = world_.Create("other");
  ASSERT_TRUE(world_.Write(other, 0, "lost").ok());
  world_.engine->index_unreadable = true;
  EXPECT_FALSE(Rename().ok());
  world_.engine->index_unreadable = false;
  EXPECT_EQ(TextOf("new"), "new");
  EXPECT_EQ(TextOf("old"), "old");
  EXPECT_TRUE(Rename().ok());
  EXPECT_EQ(TextOf("old"), "new");
  world_.fs->open_files().Release(other.handle);
}

// The kernel keeps the names of a rename that failed, but of one that was interrupted: those it looks up again.
TEST_F(DurableFileRename, ThatHasReplacedAFileAndIsNotDurableIsInterrupted) {
  world_.engine->full = true;
  const Status renamed = Rename();
  world_.engine->full = false;
  ASSERT_FALSE(renamed.ok());
  EXPECT_EQ(renamed.error().code, ErrorCode::kInterrupted) << renamed.error().message;
  EXPECT_EQ(TextOf("old"), "new");
  EXPECT_FALSE(world_.fs->names().Lookup({}, kRootInode, "new").ok());
}

// The bytes were accepted, their descriptor closed, and only then does the disk fail.
TEST(SyncRounds, AfterTheDiskHasFailedCloseAndRenameSayIt) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  auto sync = [&] {
    return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
  };
  auto flush = [&](const FileSystem::Created& file) {
    return World::Await<void>([&](Done<void> done) { world.fs->open_files().Flush({file.handle}, std::move(done)); });
  };
  const FileSystem::Created durable = world.Create("durable");
  ASSERT_TRUE(world.Write(durable, 0, "durable").ok());
  ASSERT_TRUE(sync().ok());
  const FileSystem::Created file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, 100'000)).ok());  // too much for the engine
  const FileSystem::Created second = world.OpenByName("file");
  ASSERT_TRUE(flush(file).ok());

  io::Faults faults;
  faults.sync_error_share = 1;
  disk.SetFaults(faults);
  EXPECT_FALSE(sync().ok());
  EXPECT_FALSE(flush(second).ok());
  EXPECT_TRUE(flush(durable).ok()) << "all of it is on the disk";
  for (std::string name : {"file", "durable"}) {
    const Status renamed = World::Await<void>([&](Done<void> done) {
      world.fs->names().Rename({kRootInode, name, kRootInode, "final", meta::RenameMode::kReplace}, {},
                               std::move(done));
    });
    EXPECT_FALSE(renamed.ok()) << name;
    EXPECT_TRUE(world.fs->names().Lookup({}, kRootInode, name).ok());
  }
  for (const FileSystem::Created& open : {durable, file, second}) world.fs->open_files().Release(open.handle);
  EXPECT_FALSE(world.fs->Stop().ok());
  world.fs.reset();
}

TEST(SyncRounds, WithLittleRoomForMetadataNamesAreRefusedAndRemovalsAreNot) {
  World world;
  world.disk_options.size_bytes = 64 * kMiB;
  world.store_options.reserve_bytes = 60 * kMiB;
  world.Remake();
  auto admitted = [&](NameChange change) {
    return World::Await<void>([&](Done<void> done) { world.fs->names().WhenAdmitted(change, std::move(done)); });
  };
  EXPECT_TRUE(admitted(NameChange::kMakes).ok());
  auto other = world.disk->Create("metadata-of-others");
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE((*other)->Allocate(54 * kMiB).ok());
  ASSERT_TRUE(Eventually([&] { return !admitted(NameChange::kMakes).ok(); }));  // it looks now and then
  Status refused = admitted(NameChange::kMakes);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_TRUE(admitted(NameChange::kAlters).ok());
  EXPECT_TRUE(admitted(NameChange::kRemoves).ok());
  ASSERT_TRUE(world.disk->Remove("metadata-of-others").ok());
  other->reset();
  EXPECT_TRUE(Eventually([&] { return admitted(NameChange::kMakes).ok(); }));
}

FileSystem::Created SaveAndSync(World& world, std::string_view name, const std::string& text) {
  FileSystem::Created file = world.Create(name);
  EXPECT_TRUE(world.Write(file, 0, text).ok());
  EXPECT_TRUE(world.Fsync(file).ok());
  return file;
}

// The collector has looked whether one is due, of all that was freed before.
void AwaitCollectorLook(World& world) {
  const uint64_t before = world.fs->maintenance().GetCollection().vain_looks_total;
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetCollection().vain_looks_total > before; }));
}

uint64_t AwaitCollections(World& world, uint64_t count) {
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetCollection().runs_total >= count; }));
  return world.fs->maintenance().GetCollection().runs_total;
}

TEST(Collector, WhatWasFreedBeforeAStopIsCollectedAfterIt) {
  World world;
  world.fs_options.collect_after_bytes = kMiB;
  world.fs_options.collect_delay_ms = 3'600'000;
  world.Remake();
  FileSystem::Created file = SaveAndSync(world, "gone", RandomText(1, 3 * kMiB));
  world.CloseFile(file);
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "gone").ok());
  world.fs->names().Forget(file.attr.inode, 1);
  world.fs_options.collect_delay_ms = 0;
  world.Reopen();  // sooner than the delay
  EXPECT_EQ(AwaitCollections(world, 1), 1u);
  EXPECT_EQ(world.fs->maintenance().GetStatus().store.chunk_count, 0u);
  world.Reopen();  // and only once
  AwaitCollectorLook(world);
  EXPECT_EQ(world.fs->maintenance().GetCollection().runs_total, 0u);
}

TEST(Collector, AFileThatIsOpenCountsWhenItIsClosed) {
  World world;
  world.fs_options.collect_after_bytes = kMiB;
  world.fs_options.collect_delay_ms = 0;
  world.Remake();
  FileSystem::Created file = SaveAndSync(world, "open", RandomText(1, 3 * kMiB));
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "open").ok());
  world.fs->names().Forget(file.attr.inode, 1);
  AwaitCollectorLook(world);
  EXPECT_EQ(world.fs->maintenance().GetCollection().runs_total, 0u);
  world.CloseFile(file);
  EXPECT_EQ(AwaitCollections(world, 1), 1u);
  EXPECT_EQ(world.fs->maintenance().GetStatus().store.chunk_count, 0u);
}

TEST(Collector, WhatWasWrittenAfterTheFileWasUnlinkedCounts) {
  World world;
  world.fs_options.collect_after_bytes = kMiB;
  world.fs_options.collect_delay_ms = 0;
  world.Remake();
  FileSystem::Created file = world.Create("spill");
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "spill").ok());
  world.fs->names().Forget(file.attr.inode, 1);
  ASSERT_TRUE(world.Write(file, 0, RandomText(1, 3 * kMiB)).ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  world.CloseFile(file);
  EXPECT_EQ(AwaitCollections(world, 1), 1u);
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetStatus().store.chunk_count == 0; }));
}

// Each sync writes the page of the recipe anew, in which the bytes that it overwrites stand.
TEST(Collector, PagesOfRecipesThatWereReplacedCount) {
  World world;
  world.fs_options.collect_after_bytes = kMiB;
  world.fs_options.collect_delay_ms = 0;
  world.Remake();
  FileSystem::Created file = SaveAndSync(world, "base", RandomText(1, 4 * kMiB));
  for (uint64_t page = 0; page < 400; ++page) {
    ASSERT_TRUE(world.Write(file, page * 2 * kPageBytes, RandomText(page, 512)).ok());
    ASSERT_TRUE(world.Fsync(file).ok());
  }
  world.CloseFile(file);
  EXPECT_GE(AwaitCollections(world, 1), 1u);
}

TEST(Collector, FilesThatGoAllTheTimeDoNotPutItOffForEver) {
  World world;
  world.fs_options.collect_after_bytes = 16 * kKiB;
  world.fs_options.collect_delay_ms = 100;
  world.Remake();
  const auto end = Clock::Now() + std::chrono::seconds(60);
  for (int i = 0; Clock::Now() < end && world.fs->maintenance().GetCollection().runs_total == 0; ++i) {
    FileSystem::Created file = SaveAndSync(world, "heartbeat", RandomText(static_cast<uint64_t>(i), 8 * kKiB));
    world.CloseFile(file);
    ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "heartbeat").ok());
    world.fs->names().Forget(file.attr.inode, 1);
    Clock::SleepFor(std::chrono::milliseconds(10));
  }
  EXPECT_GE(world.fs->maintenance().GetCollection().runs_total, 1u);
}

}  // namespace
}  // namespace cairnfs::fs
