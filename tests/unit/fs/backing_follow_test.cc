// A file that the kernel reads past the daemon has the file's bytes after each change, before the change is answered.
#include <unistd.h>

#include <cstdlib>
#include <random>
#include <string>

#include "backing_fixture.h"
#include "cairnfs/cairnfs.h"
#include "fixture.h"
#include "fs/atomic_files.h"
#include "fs/backing_files.h"

namespace cairnfs::fs {
namespace {

constexpr uint64_t kSizeMax = 3 * kMiB;

class BackingFollowTest : public testing::Test {
 protected:
  BackingFollowTest() { EXPECT_TRUE(world_.fs->backing_files().Begin({memory_, registry_}).ok()); }
  ~BackingFollowTest() override { world_.Close(); }

  // A file in its record and in memory, which somebody maps there; open for reading.
  FileSystem::Created MakeBacked(const std::string& text) {
    meta::CreateParams params;
    params.mode = S_IFREG | 0644;
    const FileSystem::Created made = *world_.fs->open_files().Create({}, kRootInode, "file", params, {.write = true});
    EXPECT_TRUE(world_.Write(made, 0, text).ok());
    EXPECT_TRUE(world_.Fsync(made).ok());
    world_.CloseFile(made);
    FileSystem::Created file = made;
    file.handle = Open({.read = true});
    const Status filled = world_.fs->backing_files().Fill({}, file.attr.inode, 0);
    EXPECT_TRUE(filled.ok()) << filled.error().message;
    if (!filled.ok()) std::abort();  // there is no file in memory to go on with
    memory_.last->SetUsed(true);
    EXPECT_TRUE(memory_.last->text() == text);
    return file;
  }
  Result<HandleId> TryOpen(const OpenFlags& flags) {
    auto attr = world_.fs->names().Lookup({}, kRootInode, "file");
    EXPECT_TRUE(attr.ok());
    return World::Await<HandleId>(
        [&](Done<HandleId> done) { world_.fs->open_files().Open(attr->inode, flags, std::move(done)); });
  }
  HandleId Open(const OpenFlags& flags) {
    auto handle = TryOpen(flags);
    EXPECT_TRUE(handle.ok());
    return handle.ok() ? *handle : 0;
  }
  std::string ReadAll(const FileSystem::Created& file) {
    std::string text;
    for (;;) {
      auto part = world_.Read(file, text.size(), kMiB);
      EXPECT_TRUE(part.ok());
      if (!part.ok() || part->empty()) return text;
      text += *part;
    }
  }
  bool IsBacked() { return world_.fs->backing_files().status().files > 0; }

  MemoryBackings memory_{kGiB};
  CountingRegistry registry_;
  World world_;
};

TEST_F(BackingFollowTest, AfterEachChangeItHasTheFilesBytes) {
  std::mt19937_64 random(7);
  FileSystem::Created file = MakeBacked(RandomText(random, 2 * kMiB));
  world_.CloseFile(file);
  file.handle = Open({.read = true, .write = true});
  uint64_t size = 2 * kMiB;
  for (int i = 0; i < 150; i++) {
    const uint64_t offset = random() % kSizeMax, length = 1 + random() % (kMiB / 4);
    SCOPED_TRACE(i);
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: ASSERT_TRUE(world_.Write(file, offset, RandomText(random, length)).ok()); break;
      case 3: ASSERT_TRUE(world_.Punch(file, offset, length).ok()); break;
      case 4: ASSERT_TRUE(world_.Fallocate(file, {.offset = offset, .length = length, .zero_range = true}).ok()); break;
      case 5: ASSERT_TRUE(world_.Fallocate(file, {.offset = offset, .length = length}).ok()); break;
      case 6: ASSERT_TRUE(world_.Truncate(file, offset).ok()); break;
      case 7:
        // As the kernel writes back: pages within the file.
        if (const uint64_t page = offset / kPageBytes * kPageBytes; page < size) {
          const uint64_t bytes = std::min<uint64_t>(kPageBytes, size - page);
          ASSERT_TRUE(world_.WriteBackPages(file, page, RandomText(random, bytes)).ok());
        }
        break;
    }
    const Status synced = i % 20 == 0 ? world_.Fsync(file) : Status();
    ASSERT_TRUE(synced.ok());
    const std::string text = ReadAll(file);
    size = text.size();
    ASSERT_TRUE(memory_.last->text() == text) << memory_.last->text().size() << " bytes, the file has " << size;
  }
  EXPECT_TRUE(IsBacked());
  world_.CloseFile(file);
}

TEST_F(BackingFollowTest, AnOpenThatEmptiesTheFileEmptiesIt) {
  FileSystem::Created file = MakeBacked(RandomText(1, 2 * kMiB));
  world_.CloseFile(file);
  file.handle = Open({.write = true, .truncate = true});
  EXPECT_EQ(memory_.last->text(), "");
  EXPECT_TRUE(world_.Write(file, 3, "new").ok());
  EXPECT_EQ(memory_.last->text(), std::string("\0\0\0new", 6));
  world_.CloseFile(file);
}

TEST_F(BackingFollowTest, WhatNobodyUsesIsGivenUpAtTheFirstChange) {
  FileSystem::Created file = MakeBacked(RandomText(1, 2 * kMiB));
  memory_.last->SetUsed(false);
  world_.CloseFile(file);
  EXPECT_TRUE(IsBacked());
  file.handle = Open({.write = true});
  EXPECT_TRUE(world_.Write(file, 0, "x").ok());
  EXPECT_FALSE(IsBacked());
  EXPECT_EQ(registry_.count(), 0U);
  EXPECT_EQ(world_.pool->lent_count(), 0U);
  world_.CloseFile(file);
}

TEST_F(BackingFollowTest, CopiesIntoItAreRefusedSoThatTheKernelWritesTheBytes) {
  const std::string text = RandomText(1, 2 * kMiB);
  FileSystem::Created file = MakeBacked(text);
  world_.CloseFile(file);
  file.handle = Open({.read = true, .write = true});
  const FileSystem::Created source = world_.Create("source");
  EXPECT_TRUE(world_.Write(source, 0, RandomText(2, kMiB)).ok());
  const auto copy = [&] {
    return World::Await<size_t>([&](Done<size_t> done) {
      world_.fs->writer().CopyRange({source.handle, 0, file.handle, 100, kMiB}, std::move(done));
    });
  };
  const auto refused = copy();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNotSupported);
  EXPECT_TRUE(ReadAll(file) == text);
  EXPECT_TRUE(memory_.last->text() == text);

  memory_.last->SetUsed(false);
  const auto copied = copy();
  ASSERT_TRUE(copied.ok());
  EXPECT_EQ(*copied, kMiB);
  EXPECT_FALSE(IsBacked());
  EXPECT_TRUE(ReadAll(file).substr(100, kMiB) == RandomText(2, kMiB));
  world_.CloseFile(file);
  world_.CloseFile(source);
}

TEST_F(BackingFollowTest, WhoCannotBePassedOpensItByTheIdBesideWhileOthersAre) {
  const std::string text = RandomText(1, 2 * kMiB);
  FileSystem::Created file = MakeBacked(text);
  OpenFiles& files = world_.fs->open_files();
  const InodeId id = file.attr.inode;
  const HandleId ordinary = Open({.read = true, .may_pass = true});
  EXPECT_EQ(files.BackingOf(ordinary), 0) << "it is open the ordinary way already";
  world_.CloseFile(file);
  files.Release(ordinary);
  const HandleId reader = Open({.read = true, .may_pass = true});
  EXPECT_NE(files.BackingOf(reader), 0);
  EXPECT_FALSE(files.NamesBeside(id));

  const auto sent = TryOpen({.write = true, .truncate = true});
  ASSERT_FALSE(sent.ok());
  EXPECT_EQ(sent.error().code, ErrorCode::kStale);
  EXPECT_TRUE(files.NamesBeside(id));
  EXPECT_TRUE(memory_.last->text() == text) << "nothing was changed";

  FileSystem::Created writer = file;
  writer.handle = Open({.write = true, .truncate = true, .is_beside = true});
  EXPECT_EQ(files.BackingOf(writer.handle), 0);
  EXPECT_TRUE(world_.Write(writer, 0, "seen by the reader").ok());
  EXPECT_EQ(memory_.last->text(), "seen by the reader");
  world_.CloseFile(writer);
  files.Release(reader);
  Clock::SleepFor(OpenModes::kSentFor);
  EXPECT_FALSE(files.NamesBeside(id));
  file.handle = Open({.read = true, .write = true});
  EXPECT_EQ(ReadAll(file), "seen by the reader");
  world_.CloseFile(file);
}

// The kernel looks a path up once more only, so it is to find the node id then by which the open will do.
TEST_F(BackingFollowTest, WhoIsSentBackForAnotherReasonIsSentBesideAtOnce) {
  FileSystem::Created file = MakeBacked(RandomText(1, 2 * kMiB));
  FileSystem& fs = *world_.fs;
  const InodeId id = file.attr.inode;
  Caller caller;
  caller.pid = static_cast<uint32_t>(gettid());
  const auto open = [&](const OpenFlags& flags) {
    return World::Await<HandleId>(
        [&](Done<HandleId> done) { fs.atomic_files().Open(id, flags, std::move(done), caller); });
  };
  world_.CloseFile(file);
  const HandleId reader = Open({.read = true, .may_pass = true});

  // Files of a directory with a rule: the name may be of a new file.
  const auto kSet = meta::Namespace::XattrMode::kSet;
  ASSERT_TRUE(fs.attributes().SetXattr({}, kRootInode, CAIRNFS_XATTR_ATOMIC_FILES, "*.pt", kSet).ok());
  OpenFlags empties{.write = true, .truncate = true};
  EXPECT_EQ(open(empties).error().code, ErrorCode::kStale);
  const auto found = World::Await<meta::Attr>([&](const Done<meta::Attr>& done) {
    fs.atomic_files().LookUpSentBack({caller, {}}, kRootInode, "file", done);
  });
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->inode, id);
  ASSERT_TRUE(fs.open_files().NamesBeside(id));
  empties.is_beside = true;
  const auto writer = open(empties);
  ASSERT_TRUE(writer.ok()) << writer.error().message;
  fs.open_files().Release(*writer);
  Clock::SleepFor(OpenModes::kSentFor);
  ASSERT_FALSE(fs.open_files().NamesBeside(id));

  // A program whose mode is in doubt.
  meta::AttrChanges changes;
  changes.mode = 04755;
  const auto told = world_.names->SetAttr({}, id, changes);
  ASSERT_TRUE(told.ok());
  fs.attributes().NoteReply(*told);
  changes.mode = 0755;
  ASSERT_TRUE(world_.names->SetAttr({}, id, changes).ok());
  OpenFlags executes{.read = true, .executes = true};
  EXPECT_EQ(open(executes).error().code, ErrorCode::kStale);
  ASSERT_TRUE(fs.open_files().NamesBeside(id));
  executes.is_beside = true;
  const auto program = open(executes);
  ASSERT_TRUE(program.ok()) << program.error().message;
  fs.open_files().Release(*program);
  fs.open_files().Release(reader);
}

TEST_F(BackingFollowTest, ItIsFilledAnewOnceItsWriterHasGone) {
  FileSystem::Created file = MakeBacked(RandomText(1, 2 * kMiB));
  world_.CloseFile(file);
  file.handle = Open({.write = true});
  memory_.last->SetUsed(false);
  EXPECT_TRUE(world_.Write(file, 0, "x").ok());
  const Status busy = world_.fs->backing_files().Fill({}, file.attr.inode, 0);
  ASSERT_FALSE(busy.ok());
  EXPECT_EQ(busy.error().code, ErrorCode::kBusy);
  EXPECT_TRUE(world_.Fsync(file).ok());
  world_.CloseFile(file);
  file.handle = Open({.read = true});
  EXPECT_TRUE(world_.fs->backing_files().Fill({}, file.attr.inode, 0).ok());
  EXPECT_TRUE(memory_.last->text() == ReadAll(file));
  world_.CloseFile(file);
}

}  // namespace
}  // namespace cairnfs::fs
