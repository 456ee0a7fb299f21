#include "fs/filesystem.h"

#include <random>
#include <thread>

#include "base/clock.h"
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/reader.h"
#include "fs/recipe.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

TEST(FileSystem, BytesComeBackAfterAReopen) {
  World world;
  std::mt19937_64 random(1);
  std::string text = RandomText(random, 3'000'001);
  auto file = world.Create("a");
  ASSERT_TRUE(world.Write(file, 0, text).ok());
  EXPECT_EQ(*world.Read(file, 0, text.size()), text);
  world.CloseFile(file);
  world.Reopen();
  auto again = world.OpenByName("a");
  EXPECT_EQ(again.attr.size, text.size());
  EXPECT_EQ(*world.Read(again, 0, text.size() + 10), text);
  EXPECT_EQ(*world.Read(again, 12345, 70000), text.substr(12345, 70000));
  world.CloseFile(again);
}

TEST(FileSystem, ReadAheadGoesOnIntoTheNextPageOfTheRecipe) {
  World world;
  FileSystem::Created file = world.Create("long");
  const uint64_t begin = kLeafBytes - 2 * kMiB;
  ASSERT_TRUE(world.Write(file, begin, RandomText(3, 4 * kMiB)).ok());
  ASSERT_TRUE(world.Write(file, 3 * kLeafBytes, "the end, whose page an open loads").ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  world.CloseFile(file);
  world.Reopen();
  file = world.OpenByName("long");
  for (uint64_t offset = begin - 8 * kMiB; offset < begin + kMiB; offset += 256 * kKiB) {
    ASSERT_TRUE(world.Read(file, offset, 256 * kKiB).ok());
  }
  // Everything comes without being read, also what the page names that no read has touched.
  EXPECT_TRUE(Eventually([&] { return world.chunks->Stats().disk_read_bytes_total >= 4 * kMiB; }));
  world.CloseFile(file);
}

TEST(FileSystem, TheSameBytesAreStoredOnce) {
  World world;
  std::mt19937_64 random(2);
  std::string text = RandomText(random, 2'000'000);
  for (const char* name : {"a", "b"}) {
    auto file = world.Create(name);
    ASSERT_TRUE(world.Write(file, 0, text).ok());
    ASSERT_TRUE(world.Fsync(file).ok());
    world.CloseFile(file);
  }
  EXPECT_LT(world.chunks->Stats().unique_bytes, text.size() + 100'000);
}

TEST(FileSystem, SyncsInTheMiddleOfAStreamDoNotMoveItsCuts) {
  World world;
  std::mt19937_64 random(3);
  std::string text = RandomText(random, 1'000'000);
  auto plain = world.Create("plain");
  ASSERT_TRUE(world.Write(plain, 0, text).ok());
  ASSERT_TRUE(world.Fsync(plain).ok());
  uint64_t before = world.chunks->Stats().chunk_count;
  auto synced = world.Create("synced");
  for (size_t at = 0; at < text.size(); at += 100'000) {
    ASSERT_TRUE(world.Write(synced, at, std::string_view(text).substr(at, 100'000)).ok());
    ASSERT_TRUE(world.Fsync(synced).ok());
  }
  world.CloseFile(synced);
  world.CloseFile(plain);
  // Each sync may store one tail that the next cut replaces, and pages of recipes; no more.
  EXPECT_LE(world.chunks->Stats().chunk_count, before + 30);
}

// Where the pool runs dry in a stream, its chunks do not end there.
TEST(FileSystem, EqualBytesAreCutAlikeThoughThePoolIsSmaller) {
  World world(10 * kMiB);
  world.fs_options.flush_interval_ms = 60'000;  // a sync stores a tail
  world.Remake();
  // Two buffers are left beside the reserve: whoever writes on waits until what is in the older one is stored.
  std::vector<io::BufferRef> held;
  while (world.pool->free_count() > world.pool->reserved_count() + 2) held.push_back(world.pool->Acquire());
  std::vector<uint64_t> new_bytes;
  // A machine so slow that nothing gives a buffer back for a second cuts otherwise: then once more.
  for (unsigned seed = 4; seed < 9; ++seed) {
    const std::string text = RandomText(seed, 16 * kMiB);
    new_bytes.clear();
    for (std::string_view name : {"first", "second"}) {
      const uint64_t before = world.chunks->Stats().new_bytes_total;
      auto file = world.Create(std::string(name) + std::to_string(seed));
      ASSERT_TRUE(world.Write(file, 0, text).ok());
      ASSERT_TRUE(world.Fsync(file).ok());
      world.CloseFile(file);
      new_bytes.push_back(world.chunks->Stats().new_bytes_total - before);
    }
    EXPECT_GE(new_bytes[0], text.size());
    if (new_bytes[1] <= 200'000U) break;
  }
  // A page of the recipe, and a tail.
  EXPECT_LE(new_bytes[1], 200'000U);
}

TEST(FileSystem, TailsOfMoreStreamsThanThePoolHasBuffersGiveTheirsBack) {
  World world(10 * kMiB);
  std::vector<FileSystem::Created> files;
  for (int i = 0; i < 40; ++i) {
    files.push_back(world.Create("f" + std::to_string(i)));
    ASSERT_TRUE(world.Write(files.back(), 0, RandomText(i, 1000)).ok());
  }
  for (int i = 0; i < 40; ++i) {
    auto read = world.Read(files[i], 0, 1000);
    ASSERT_TRUE(read.ok());
    EXPECT_EQ(*read, RandomText(i, 1000));
    world.CloseFile(files[i]);
  }
}

TEST(FileSystem, ACollectionFreesWhatNothingNames) {
  World world;
  std::mt19937_64 random(4);
  std::string kept_text = RandomText(random, 500'000);
  auto kept = world.Create("kept");
  ASSERT_TRUE(world.Write(kept, 0, kept_text).ok());
  world.CloseFile(kept);
  auto gone = world.Create("gone");
  ASSERT_TRUE(world.Write(gone, 0, RandomText(random, 5'000'000)).ok());
  world.CloseFile(gone);
  ASSERT_TRUE(world.Fsync(kept).ok());
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "gone").ok());
  world.fs->names().Forget(gone.attr.inode, 1);
  auto collected = World::Await<CollectionStatus>(
      [&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(std::move(done)); });
  ASSERT_TRUE(collected.ok()) << collected.error().message;
  EXPECT_LT(world.chunks->Stats().unique_bytes, 600'000u);
  auto report =
      World::Await<CheckReport>([&](Done<CheckReport> done) { world.fs->maintenance().Check({}, std::move(done)); });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->problems, std::vector<std::string>());
  EXPECT_EQ(report->unreferenced_chunks, 0u);
  auto again = world.OpenByName("kept");
  EXPECT_EQ(*world.Read(again, 0, kept_text.size()), kept_text);
  world.CloseFile(again);
}

TEST(FileSystem, CopiesAreReferences) {
  World world;
  std::mt19937_64 random(5);
  std::string text = RandomText(random, 900'000);
  auto from = world.Create("from");
  auto to = world.Create("to");
  ASSERT_TRUE(world.Write(from, 0, text).ok());
  ASSERT_TRUE(world.Fsync(from).ok());
  uint64_t before = world.chunks->Stats().unique_bytes;
  auto copied = World::Await<size_t>([&](Done<size_t> done) {
    world.fs->writer().CopyRange({from.handle, 1000, to.handle, 77, 800'000}, std::move(done));
  });
  ASSERT_TRUE(copied.ok());
  EXPECT_EQ(*copied, 800'000u);
  EXPECT_EQ(*world.Read(to, 0, 1'000'000), std::string(77, '\0') + text.substr(1000, 800'000));
  ASSERT_TRUE(world.Fsync(to).ok());
  EXPECT_LT(world.chunks->Stats().unique_bytes, before + 50'000);
  world.CloseFile(from);
  world.CloseFile(to);
}

// Random writes, truncations, syncs, copies, closings and reopenings of one file against a string, while rounds and
// collections run beside.
TEST(FileSystem, AFileIsAStringOfBytes) {
  const char* given = std::getenv("CAIRNFS_FS_SEED");
  uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("replay with CAIRNFS_FS_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  World world;
  std::string model;
  auto file = world.Create("f");
  for (int step = 0; step < 1500; step++) {
    uint64_t offset = random() % 300'000;
    switch (random() % 14) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4: {
        if (random() % 2 == 0) offset = model.size();
        std::string text = RandomText(random, 1 + random() % (random() % 4 == 0 ? 100'000 : 3000));
        ASSERT_TRUE(world.Write(file, offset, text).ok());
        if (model.size() < offset + text.size()) model.resize(offset + text.size());
        model.replace(offset, text.size(), text);
        break;
      }
      case 5:
        if (random() % 3 != 0) break;
        ASSERT_TRUE(world.Truncate(file, offset).ok());
        model.resize(offset);
        break;
      case 6: {
        const uint64_t length = 1 + random() % 50'000;
        ASSERT_TRUE(world.Punch(file, offset, length).ok());
        for (uint64_t i = offset; i < std::min<uint64_t>(model.size(), offset + length); i++) model[i] = '\0';
        break;
      }
      case 7: ASSERT_TRUE(world.Fsync(file).ok()); break;
      case 8:
        if (random() % 4 != 0) break;
        world.CloseFile(file);
        if (random() % 3 == 0) world.Reopen();
        file = world.OpenByName("f");
        EXPECT_EQ(file.attr.size, model.size());
        break;
      case 9:
        if (random() % 8 == 0) {
          auto collected = World::Await<CollectionStatus>(
              [&](Done<CollectionStatus> done) { world.fs->maintenance().Collect(std::move(done)); });
          ASSERT_TRUE(collected.ok()) << collected.error().message;
        }
        break;
      case 10: {
        uint64_t from = random() % 150'000, to = 150'000 + random() % 150'000, length = random() % 100'000;
        length = std::min(length, to - from);
        auto copied = World::Await<size_t>([&](Done<size_t> done) {
          world.fs->writer().CopyRange({file.handle, from, file.handle, to, length}, std::move(done));
        });
        ASSERT_TRUE(copied.ok());
        uint64_t expected = from >= model.size() ? 0 : std::min(length, model.size() - from);
        ASSERT_EQ(*copied, expected);
        if (expected == 0) break;
        std::string piece = model.substr(from, expected);
        if (model.size() < to + expected) model.resize(to + expected);
        model.replace(to, expected, piece);
        break;
      }
      default: {
        auto read = world.Read(file, offset, 100'000);
        ASSERT_TRUE(read.ok()) << read.error().message;
        ASSERT_EQ(*read == (offset < model.size() ? model.substr(offset, 100'000) : ""), true) << "step " << step;
      }
    }
    ASSERT_EQ(world.fs->names().GetAttr({}, file.attr.inode)->size, model.size()) << "step " << step;
  }
  world.CloseFile(file);
  world.Reopen();
  file = world.OpenByName("f");
  auto whole = world.Read(file, 0, model.size() + 1);
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  ASSERT_TRUE(*whole == model);
  world.CloseFile(file);
}

TEST(FileSystem, ReadsOfWhoOpenedItSoLeaveTheAccessTimeAlone) {
  World world;
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "text").ok());
  world.CloseFile(file);
  SetAttrRequest times;
  times.atime = Timestamp{1000, 0};
  times.mtime = Timestamp{2000, 0};
  const InodeId inode = file.attr.inode;
  ASSERT_TRUE(World::Await<meta::Attr>([&](Done<meta::Attr> done) {
                world.fs->attributes().SetAttr(inode, times, done);
              }).ok());
  auto atime_after_read = [&](const OpenFlags& flags) {
    FileSystem::Created opened = file;
    opened.handle =
        *World::Await<HandleId>([&](Done<HandleId> done) { world.fs->open_files().Open(inode, flags, done); });
    EXPECT_EQ(*world.Read(opened, 0, 100), "text");
    world.fs->open_files().Release(opened.handle);
    return world.fs->names().GetAttr({}, inode)->atime.seconds;
  };
  EXPECT_EQ(atime_after_read({.read = true, .no_atime = true}), 1000);
  EXPECT_NE(atime_after_read({.read = true}), 1000);
}

// Whoever takes the answers may go once Stop has returned.
TEST(FileSystem, AStopWaitsUntilAReadsAnswerIsTaken) {
  World world;
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "bytes").ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  std::promise<void> answering;
  std::atomic<bool> stopped{false}, taken{false};
  std::thread reader([&] {
    world.fs->reader().Read(file.handle, file.attr.inode, 0, 5, [&](Result<FileSystem::ReadResult> read) {
      EXPECT_TRUE(read.ok());
      answering.set_value();
      for (int i = 0; i < 500 && !stopped; ++i) Clock::SleepFor(std::chrono::milliseconds(1));
      taken = true;
    });
  });
  answering.get_future().wait();
  EXPECT_TRUE(world.fs->Stop().ok());
  EXPECT_TRUE(taken);
  stopped = true;
  reader.join();
  world.fs.reset();
}

// A caller is asked whether it is being killed only while its request is there.
TEST(FileSystem, ManyFilesByManyThreads) {
  World world;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&world, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (int i = 0; i < 40; i++) {
        std::string name = "t" + std::to_string(t) + "-" + std::to_string(i);
        std::string text = RandomText(random, random() % 200'000);
        auto file = world.Create(name);
        EXPECT_TRUE(world.Write(file, 0, text).ok());
        if (i % 5 == 0) {
          EXPECT_TRUE(world.Fsync(file).ok());
        }
        EXPECT_EQ(*world.Read(file, 0, text.size()) == text, true);
        world.CloseFile(file);
        if (i % 3 == 0) {
          EXPECT_TRUE(world.fs->names().Unlink({}, kRootInode, name).ok());
          world.fs->names().Forget(file.attr.inode, 1);
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  auto report =
      World::Await<CheckReport>([&](Done<CheckReport> done) { world.fs->maintenance().Check({}, std::move(done)); });
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->problems, std::vector<std::string>());
}

TEST(FileSystem, WhoMayRenameADirectoryIsJudgedAsByTheKernel) {
  World world;
  auto make = [&](InodeId parent, const char* name, uint32_t mode, uint32_t uid, uint32_t gid) {
    meta::CreateParams params = WithMode(S_IFDIR | mode);
    params.uid = uid;
    params.gid = gid;
    auto made = world.fs->names().MakeNode({}, parent, name, params);
    EXPECT_TRUE(made.ok());
    return made.ok() ? made->inode : InodeId{};
  };
  auto may = [&](const Credentials& caller, InodeId directory, InodeId final_parent) {
    Status status = world.fs->names().CheckMayRename({}, caller, directory, final_parent);
    EXPECT_TRUE(status.ok() || status.error().code == ErrorCode::kPermission);
    return status.ok();
  };
  const Credentials root{0, 0, {}}, owner{1000, 100, {}}, member{1001, 101, {7, 100}}, stranger{1002, 102, {}};
  const InodeId home = make(kRootInode, "home", 0770, 1000, 100);
  const InodeId step = make(home, "step", 0755, 1000, 100);
  for (const Credentials& caller : {root, owner, member}) EXPECT_TRUE(may(caller, step, home)) << caller.uid;
  EXPECT_FALSE(may(stranger, step, home));
  EXPECT_FALSE(may(owner, home, kRootInode)) << "the root directory is root's";
  const InodeId other = make(kRootInode, "other", 0777, 0, 0);
  EXPECT_TRUE(may(owner, step, other));
  EXPECT_FALSE(may(member, step, other)) << "its .. changes, and it may not be written to";
  EXPECT_FALSE(may(stranger, step, other));
  const InodeId locked = make(kRootInode, "locked", 0707, 1000, 100);
  const InodeId inner = make(locked, "inner", 0777, 1000, 100);
  EXPECT_TRUE(may(stranger, inner, locked));
  EXPECT_FALSE(may(member, inner, locked)) << "the class of the group counts, not that of others";
  const InodeId sticky = make(kRootInode, "sticky", 01777, 0, 0);
  const InodeId mine = make(sticky, "mine", 0777, 1001, 101);
  EXPECT_TRUE(may(member, mine, sticky));
  EXPECT_TRUE(may(root, mine, sticky));
  EXPECT_FALSE(may(owner, mine, sticky));
  EXPECT_EQ(world.fs->names().CheckMayRename({}, root, InodeId{9999}, home).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::fs
