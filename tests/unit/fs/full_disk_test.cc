// A disk without room for new bytes: what is refused, what is lost, and the way out.
#include "base/clock.h"
#include "fs/attributes.h"
#include "fs/collector.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/writer.h"
#include "full_disk_fixture.h"

namespace cairnfs::fs {
namespace {

class FullDiskTest : public testing::Test {
 protected:
  FullDiskTest() {
    world_.disk_options.size_bytes = 96 * kMiB;
    world_.store_options.reserve_bytes = 8 * kMiB;
    world_.Remake();
  }
  // Until the disk refuses even small pieces.
  void Fill(const FileSystem::Created& file) {
    uint64_t offset = 0;
    for (size_t size : {kMiB, 64 * kKiB}) {
      Status status;
      for (; status.ok() && offset < kGiB; offset += size)
        status = world_.Write(file, offset, RandomText(offset, size));
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().code, ErrorCode::kNoSpace) << status.error().message;
    }
  }
  std::string Durability(InodeId inode) {
    auto value = World::Await<std::string>([&](Done<std::string> done) {
      world_.fs->attributes().GetXattr(inode, "user.cairnfs.durability", std::move(done));
    });
    return value.ok() ? *value : value.error().message;
  }
  void Remove(const FileSystem::Created& file, std::string_view name) {
    world_.fs->open_files().Release(file.handle);
    ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, name).ok());
    world_.fs->names().Forget(file.attr.inode, 1);
  }
  Status Rename(std::string_view from, std::string_view to, meta::RenameMode mode = meta::RenameMode::kReplace) {
    return World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, std::string(from), kRootInode, std::string(to), mode}, {},
                                std::move(done));
    });
  }
  Status RenameStep() { return Rename("step.tmp", "step"); }

  World world_;
};

TEST_F(FullDiskTest, AllocatingWhatTheFileHasNeedsNoRoom) {
  auto file = world_.Create("file");
  ASSERT_TRUE(world_.Write(file, 0, RandomText(1, 60 * kMiB)).ok());
  auto allocate = [&](uint64_t length) {
    FallocateRequest request;
    request.length = length;
    return world_.Fallocate(file, request);
  };
  EXPECT_TRUE(allocate(61 * kMiB).ok()) << "accepted";
  ASSERT_TRUE(world_.Fsync(file).ok());
  EXPECT_TRUE(allocate(61 * kMiB).ok()) << "stored";
  EXPECT_EQ(allocate(200 * kMiB).error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(world_.fs->names().GetAttr({}, file.attr.inode)->size, 61 * kMiB);
  world_.CloseFile(file);
}

// The kernel drops pages whose writeback is refused, and tells one descriptor at most.
TEST_F(FullDiskTest, StoresThroughAMappingThatFindNoRoomAreLostAndKnown) {
  meta::CreateParams params;
  params.mode = S_IFDIR | 0755;
  auto directory = world_.fs->names().MakeNode({}, kRootInode, "step.tmp", params);
  ASSERT_TRUE(directory.ok());
  params.mode = S_IFREG | 0644;
  auto mapped = world_.fs->open_files().Create({}, directory->inode, "weights", params, {.read = true, .write = true});
  ASSERT_TRUE(mapped.ok());
  ASSERT_TRUE(world_.Write(*mapped, 0, std::string(kMiB, 'o')).ok());
  ASSERT_TRUE(world_.Fsync(*mapped).ok());
  auto fill = world_.Create("fill");
  Fill(fill);

  const std::string stores = RandomText(7, 512 * kKiB);
  const Status refused = world_.WriteBackPages(*mapped, 64 * kKiB, stores);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace);
  EXPECT_EQ(Durability(mapped->attr.inode), "lost");
  EXPECT_EQ(Durability(directory->inode), "lost");
  EXPECT_FALSE(world_.Read(*mapped, 64 * kKiB, 4096).ok());
  EXPECT_EQ(*world_.Read(*mapped, 0, 4), "oooo") << "beside them";
  EXPECT_FALSE(RenameStep().ok());
  EXPECT_FALSE(world_.Fsync(*mapped).ok());

  // Room alone brings nothing back; the bytes written again do.
  Remove(fill, "fill");
  static_cast<void>(world_.Fsync(*mapped));
  Status step = RenameStep();
  ASSERT_FALSE(step.ok());
  EXPECT_NE(step.error().message.find("weights"), std::string::npos) << step.error().message;
  const std::string first = stores.substr(0, 4096);
  ASSERT_TRUE(world_.Write(*mapped, 64 * kKiB, first).ok());
  auto read = world_.Read(*mapped, 64 * kKiB, first.size());
  ASSERT_TRUE(read.ok()) << "they are in memory, and may stay there for long: " << read.error().message;
  EXPECT_EQ(*read, first);
  EXPECT_FALSE(world_.Read(*mapped, 68 * kKiB, 4096).ok()) << "beside them";
  ASSERT_TRUE(world_.Write(*mapped, 64 * kKiB, stores).ok());
  ASSERT_TRUE(world_.Fsync(*mapped).ok());
  EXPECT_EQ(*world_.Read(*mapped, 64 * kKiB, stores.size()), stores);
  EXPECT_EQ(Durability(mapped->attr.inode), "local");
  EXPECT_TRUE(RenameStep().ok());
  world_.fs->open_files().Release(mapped->handle);
}

// Many programs do not look at what close returns, and one that exits does not at all.
TEST_F(FullDiskTest, AFileWithLostBytesTakesTheNameOfNoOther) {
  auto good = world_.Create("weights");
  ASSERT_TRUE(world_.Write(good, 0, "good").ok());
  world_.CloseFile(good);
  auto mapped = world_.Create("weights.tmp");
  ASSERT_TRUE(world_.Write(mapped, 0, std::string(kMiB, 'o')).ok());
  ASSERT_TRUE(world_.Fsync(mapped).ok());
  auto fill = world_.Create("fill");
  Fill(fill);
  const std::string stores = RandomText(7, 64 * kKiB);
  ASSERT_FALSE(world_.WriteBackPages(mapped, 0, stores).ok());
  Remove(fill, "fill");
  const Status closed =
      World::Await<void>([&](Done<void> done) { world_.fs->open_files().Flush({mapped.handle}, std::move(done)); });
  EXPECT_FALSE(closed.ok());
  EXPECT_FALSE(world_.Fsync(mapped).ok());

  for (int times = 0; times < 2; ++times) {
    const Status renamed = Rename("weights.tmp", "weights");
    ASSERT_FALSE(renamed.ok()) << "whoever was told before";
    EXPECT_EQ(renamed.error().code, ErrorCode::kIo) << renamed.error().message;
    EXPECT_FALSE(Rename("weights.tmp", "beside").ok());
    EXPECT_FALSE(Rename("weights.tmp", "weights", meta::RenameMode::kExchange).ok());
    EXPECT_FALSE(Rename("weights", "weights.tmp", meta::RenameMode::kExchange).ok());
  }
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "weights")->inode, good.attr.inode);

  ASSERT_TRUE(world_.Write(mapped, 0, stores).ok());
  ASSERT_TRUE(world_.Fsync(mapped).ok());
  EXPECT_TRUE(Rename("weights.tmp", "weights").ok());
  EXPECT_EQ(world_.fs->names().Lookup({}, kRootInode, "weights")->inode, mapped.attr.inode);
  world_.fs->open_files().Release(mapped.handle);
}

TEST_F(FullDiskTest, WhoDeletesAndTriesAgainFindsRoomAtOnce) {
  auto old = world_.Create("old");
  ASSERT_TRUE(world_.Write(old, 0, RandomText(1, 40 * kMiB)).ok());
  ASSERT_TRUE(world_.Fsync(old).ok());
  auto fill = world_.Create("fill");
  Fill(fill);
  auto file = world_.Create("new");
  ASSERT_FALSE(world_.Write(file, 0, RandomText(2, 4 * kMiB)).ok());  // a collection was in vain
  Remove(old, "old");
  EXPECT_TRUE(world_.Write(file, 0, RandomText(2, 4 * kMiB)).ok());
  world_.fs->open_files().Release(file.handle);
  Remove(fill, "fill");
}

// Somebody else's file takes the reserve too, so that compaction has nowhere to copy to.
TEST_F(FullDiskTest, ACollectionThatFoundNoRoomIsSeenAndTriedAgainOnceThereIsSome) {
  world_.fs_options.collect_after_bytes = kMiB;
  world_.fs_options.collect_delay_ms = 1000;  // after all removals: one between them might find nothing worth moving
  world_.Remake();
  std::vector<FileSystem::Created> files;
  for (uint64_t i = 0; i < 200; ++i) {
    files.push_back(world_.Create("f" + std::to_string(i)));
    if (!world_.Write(files.back(), 0, RandomText(i, kMiB)).ok()) break;
    ASSERT_TRUE(world_.Fsync(files.back()).ok());
  }
  auto rest = world_.Create("rest");  // no segment is left that a collection could move chunks to
  Fill(rest);
  auto foreign = world_.disk->Create("foreign");
  ASSERT_TRUE(foreign.ok());
  uint64_t foreign_bytes = 0;
  while ((*foreign)->Allocate(foreign_bytes + 64 * kKiB).ok()) foreign_bytes += 64 * kKiB;
  for (size_t i = 0; i < files.size(); ++i) {
    if (i % 2 == 0) {
      Remove(files[i], "f" + std::to_string(i));
    } else {
      world_.fs->open_files().Release(files[i].handle);
    }
  }
  ASSERT_TRUE(Eventually([&] { return world_.fs->maintenance().GetStatus().collection_failed; }));
  const std::string error = world_.fs->maintenance().GetStatus().last_error;
  EXPECT_TRUE(error.starts_with("collection failed: ")) << error;
  EXPECT_NE(error.find("quarter of the reserve"), std::string::npos) << error;

  foreign->reset();
  ASSERT_TRUE(world_.disk->Remove("foreign").ok());
  EXPECT_TRUE(Eventually([&] { return !world_.fs->maintenance().GetStatus().collection_failed; }));
  EXPECT_EQ(world_.fs->maintenance().GetStatus().last_error, "");
  auto file = world_.Create("new");
  EXPECT_TRUE(world_.Write(file, 0, RandomText(1000, 16 * kMiB)).ok());
  world_.fs->open_files().Release(file.handle);
}

// Far less than what makes a collection begin else.
TEST(FullDisk, LittleThatIsDeletedMakesRoomForWhatWasAccepted) {
  World world;
  world.fs_options.collect_after_bytes = kGiB;
  world.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  ASSERT_NO_FATAL_FAILURE(SaveOld(world));
  auto sync = [&] {
    return World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); });
  };
  auto file = world.Create("file");
  const std::string bytes = RandomText(2, 20'000);
  ASSERT_TRUE(world.Write(file, 0, bytes).ok());
  io::Faults full;
  full.growth_bytes_max = 0;
  disk.SetFaults(full);
  const Status refused = sync();
  EXPECT_TRUE(!refused.ok() && refused.error().code == ErrorCode::kNoSpace);
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "old").ok());
  EXPECT_TRUE(Eventually([&] { return sync().ok(); }));
  EXPECT_EQ(*world.Read(file, 0, bytes.size()), bytes);
  world.fs->open_files().Release(file.handle);
  disk.SetFaults({});
}

// Who is told that the disk is full deletes something, which does not mend it.
TEST(FullDisk, WhereTheDiskIsBrokenToo) {
  World world;
  world.fs_options.flush_interval_ms = 600'000;
  io::FaultyDisk& disk = world.RemakeOnFaultyDisk();
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "there is a segment now").ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  ASSERT_TRUE(world.Write(file, 0, "what is left of it has room for this").ok());
  io::Faults faults;
  faults.growth_bytes_max = 0;
  faults.sync_error_share = 1;
  disk.SetFaults(faults);
  const std::string large(2 * world.store_options.segment_bytes, 'l');
  ASSERT_TRUE(Eventually([&] { return world.fs->maintenance().GetStatus().store.available_bytes < large.size(); }));
  FileSystem::WriteRequest request;
  request.handle = file.handle;
  request.inode = file.attr.inode;
  request.data.data = reinterpret_cast<const std::byte*>(large.data());
  request.data.size = large.size();
  auto written =
      World::Await<size_t>([&](Done<size_t> done) { world.fs->writer().Write(std::move(request), std::move(done)); });
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ErrorCode::kIo) << written.error().message;
  world.fs->open_files().Release(file.handle);
  EXPECT_FALSE(world.fs->Stop().ok());
  world.fs.reset();
}

// A pool of which bytes that find no room hold every buffer that writes may have.
class NoRoomInThePool : public testing::Test {
 protected:
  NoRoomInThePool() : world_(16 * io::BufferPool::kBufferBytes) {
    world_.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
    world_.store_options.reserve_bytes = kMiB;
    disk_ = &world_.RemakeOnFaultyDisk();
    auto old = world_.Create("old");
    EXPECT_TRUE(world_.Write(old, 0, RandomText(99, 16 * kMiB)).ok());  // beyond the reserve
    world_.CloseFile(old);
    world_.Close();
    {
      // Each buffer was used once: none is waited for that is only being touched.
      std::vector<io::BufferRef> all;
      while (all.size() < world_.pool->count()) all.push_back(world_.pool->AcquireReserved());
    }
    world_.Open(false);  // no segment is there to be written on
    file_ = world_.Create("file");
    for (uint64_t offset = 0; world_.pool->free_count() > world_.pool->reserved_count(); offset += kMiB) {
      pieces_.push_back(RandomText(offset, 1000));
      EXPECT_TRUE(world_.Write(file_, offset, pieces_.back()).ok());
    }
    io::Faults full;
    full.growth_bytes_max = 0;
    disk_->SetFaults(full);
  }
  ~NoRoomInThePool() override {
    disk_->SetFaults({});
    world_.engine->LetGo();
    if (file_.handle != 0) world_.fs->open_files().Release(file_.handle);
    world_.Close();
  }
  // As for a write that waits: a buffer, or why none comes; neither where that is not known in a time that no machine
  // needs.
  std::pair<io::BufferRef, std::optional<Error>> AwaitBuffer() {
    const auto since = Clock::Now();
    const auto deadline = since + std::chrono::seconds(60);
    std::optional<Error> why;
    io::BufferRef buffer = world_.pool->Acquire([&](std::chrono::milliseconds without_release) {
      why = world_.fs->WhyNoBufferComes(without_release, since);
      return why || Clock::Now() > deadline;
    });
    return {std::move(buffer), why};
  }
  void ExpectNoSpace() {
    const auto [buffer, why] = AwaitBuffer();
    EXPECT_FALSE(buffer);
    ASSERT_TRUE(why);
    EXPECT_EQ(why->code, ErrorCode::kNoSpace) << why->message;
  }
  void ExpectAllIsThere() {
    EXPECT_TRUE(world_.Fsync(file_).ok());
    for (uint64_t i = 0; i < pieces_.size(); ++i) {
      auto read = world_.Read(file_, i * kMiB, pieces_[i].size());
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(*read, pieces_[i]);
    }
  }

  World world_;
  io::FaultyDisk* disk_ = nullptr;  // the world's
  FileSystem::Created file_{};
  std::vector<std::string> pieces_;
};

TEST_F(NoRoomInThePool, AWriteThatWaitsForABufferIsRefused) {
  ExpectNoSpace();
  ExpectNoSpace();
}

TEST_F(NoRoomInThePool, NothingIsLostAndWritesGoOnOnceThereIsRoom) {
  ExpectNoSpace();
  disk_->SetFaults({});
  EXPECT_TRUE(Eventually([&] { return static_cast<bool>(AwaitBuffer().first); }));
  ExpectAllIsThere();
}

// Who deletes and tries again at once is not told what was found before.
TEST_F(NoRoomInThePool, WhatIsDeletedIsCollectedBeforeTheNextWriteIsRefused) {
  ExpectNoSpace();
  ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, "old").ok());
  const auto [buffer, why] = AwaitBuffer();
  EXPECT_TRUE(buffer);
  EXPECT_FALSE(why) << why->message;
  ExpectAllIsThere();
}

TEST_F(NoRoomInThePool, WhenTheFileIsRemovedItsBuffersComeBack) {
  ExpectNoSpace();
  world_.fs->open_files().Release(std::exchange(file_.handle, 0));
  ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, "file").ok());
  world_.fs->names().Forget(file_.attr.inode, 1);
  EXPECT_TRUE(Eventually([&] { return static_cast<bool>(AwaitBuffer().first); }));
}

// What found no room a moment ago may find some now, however slowly.
TEST_F(NoRoomInThePool, ADiskThatIsSlowRefusesNobody) {
  ExpectNoSpace();
  world_.engine->HoldPutOf(pieces_[0]);
  const auto since = Clock::Now();
  auto why = [&] { return world_.fs->WhyNoBufferComes(std::chrono::hours(1), since); };
  ASSERT_TRUE(Eventually([&] {
    static_cast<void>(why());
    return world_.engine->holding.load();
  })) << "it is tried again";
  disk_->SetFaults({});
  EXPECT_TRUE(Eventually([&] { return !why(); })) << "what was found before is old";
  bool is_refused = false;
  int asked_count = 0;
  io::BufferRef buffer = world_.pool->Acquire([&](std::chrono::milliseconds) {
    is_refused = is_refused || why();
    return ++asked_count == 40;
  });
  EXPECT_FALSE(buffer);
  EXPECT_FALSE(is_refused);
  world_.engine->holding = false;
  EXPECT_TRUE(AwaitBuffer().first);
  ExpectAllIsThere();
}

// The kernel drops the page.
TEST_F(NoRoomInThePool, AStoreThroughAMappingThatIsRefusedIsKnownToBeLost) {
  FileSystem::WriteRequest request;
  request.handle = file_.handle;
  request.inode = file_.attr.inode;
  request.offset = 512 * kKiB;
  request.data.size = 4096;
  const Error why = MakeError(ErrorCode::kNoSpace, "no space");
  world_.fs->writer().NoteRefused(request, why);  // a write(2) is told itself
  EXPECT_TRUE(world_.Read(file_, request.offset, 4096).ok());
  request.from_page_cache = true;
  world_.fs->writer().NoteRefused(request, why);
  EXPECT_FALSE(world_.Read(file_, request.offset, 4096).ok());
  EXPECT_EQ(*world_.Read(file_, 0, pieces_[0].size()), pieces_[0]) << "beside them";
  disk_->SetFaults({});
  ASSERT_TRUE(world_.Truncate(file_, 0).ok());
  EXPECT_TRUE(Eventually([&] { return world_.Fsync(file_).ok(); })) << "once it has told of it";
}

TEST_F(NoRoomForAccepted, TheFileCanBeEmptied) {
  EXPECT_TRUE(world_.Truncate(file_, 0).ok());
  EXPECT_EQ(world_.fs->names().GetAttr({}, file_.attr.inode)->size, 0u);
  EXPECT_TRUE(Sync().ok()) << "nothing is left that needs room";
  // Its error was of bytes that are no more.
  EXPECT_TRUE(Rename().ok());
}

// Nor is whoever makes room refused for the time that a round takes with other files.
TEST_F(NoRoomForAccepted, TheFileCanBeEmptiedWhileARoundIsAtWork) {
  disk_->SetFaults({});
  // The room is looked at now and then.
  ASSERT_TRUE(Eventually([&] { return world_.fs->maintenance().GetStatus().store.available_bytes > kMiB; }));
  const std::string bytes = "bytes of another file";
  auto other = world_.Create("other");
  ASSERT_TRUE(world_.Write(other, 0, bytes).ok());
  SetFull();
  world_.engine->HoldPutOf(bytes);
  std::future<Status> round = std::async(std::launch::async, [&] { return Sync(); });
  world_.engine->AwaitHold();
  std::future<Status> emptied = std::async(std::launch::async, [&] { return world_.Truncate(file_, 0); });
  EXPECT_FALSE(IsReadyWithin(emptied, std::chrono::milliseconds(500)));
  world_.engine->holding = false;
  const Status status = emptied.get();
  EXPECT_TRUE(status.ok()) << status.error().message;
  EXPECT_FALSE(round.get().ok()) << "the other file's bytes have no room";
  world_.fs->open_files().Release(other.handle);
}

TEST_F(NoRoomForAccepted, TheFileCanBeOpenedAnew) {
  auto opened = World::Await<HandleId>([&](Done<HandleId> done) {
    world_.fs->open_files().Open(file_.attr.inode, {.read = true, .write = true, .truncate = true}, std::move(done));
  });
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  FileSystem::Created anew{file_.attr, *opened};
  disk_->SetFaults({});
  EXPECT_TRUE(Eventually([&] { return world_.Write(anew, 0, "anew").ok(); }));  // the room is looked at now and then
  EXPECT_TRUE(world_.Fsync(anew).ok());
  EXPECT_EQ(*world_.Read(anew, 0, 100), "anew");
  world_.fs->open_files().Release(anew.handle);
}

TEST_F(NoRoomForAccepted, WhatFoundRoomAfterAllIsNotToldAsAnError) {
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  EXPECT_TRUE(Rename().ok());
  EXPECT_EQ(*world_.Read(file_, 0, text_.size()), text_);
}

// The bytes that found no room are tried again by each round, and others of the file may be known and need none.
TEST_F(NoRoomForAccepted, TheSameErrorIsToldOnce) {
  // Chunks of their own, of which the round's thread takes the first and the last.
  const std::string first = RandomText(4, 20'000), known = RandomText(2, 20'000), unknown = RandomText(3, 1000);
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  ASSERT_TRUE(world_.Write(file_, 4 * kMiB, known).ok());
  ASSERT_TRUE(world_.Write(file_, 5 * kMiB, first).ok());
  ReopenWithoutRoom({{kMiB / 2, first}, {kMiB, known}, {2 * kMiB, unknown}});
  world_.engine->HoldPutOf(known);
  std::future<Status> round = std::async(std::launch::async, [&] { return Sync(); });
  world_.engine->AwaitHold();
  EXPECT_TRUE(Eventually([&] { return !Flush().ok(); })) << "the others have found no room";
  world_.engine->holding = false;
  EXPECT_FALSE(round.get().ok());
  EXPECT_FALSE(Sync().ok());
  const Status closed = Flush();
  EXPECT_TRUE(closed.ok()) << closed.error().message;
}

// An error that was told is no reason to keep a later one that is over before anybody was told.
TEST_F(NoRoomForAccepted, WhatFoundRoomAfterAllIsNotToldAfterAnotherError) {
  disk_->SetFaults({});
  ReopenWithoutRoom({});
  disk_->SetFaults({});
  ASSERT_TRUE(Eventually([&] { return world_.Write(file_, 0, "lost").ok(); }));  // the room is looked at now and then
  world_.engine->index_unreadable = true;
  EXPECT_FALSE(Sync().ok());
  EXPECT_FALSE(Flush().ok());
  world_.engine->index_unreadable = false;
  ASSERT_TRUE(world_.Write(file_, 0, "anew").ok());
  SetFull();
  EXPECT_FALSE(Sync().ok());
  disk_->SetFaults({});
  ASSERT_TRUE(Sync().ok());
  const Status renamed = Rename();
  EXPECT_TRUE(renamed.ok()) << renamed.error().message;
  EXPECT_TRUE(Flush().ok());
}

// Whoever has made room and tries again gets nothing until the next one.
TEST(FullDisk, AfterACollectionThatTookLongTheNextIsNotPutOffForLong) {
  using namespace std::chrono;
  EXPECT_EQ(Collector::PauseForRoomAfter(milliseconds(1)), seconds(2));
  EXPECT_EQ(Collector::PauseForRoomAfter(seconds(3)), seconds(12));
  EXPECT_EQ(Collector::PauseForRoomAfter(hours(1)), seconds(30));
}

}  // namespace
}  // namespace cairnfs::fs
