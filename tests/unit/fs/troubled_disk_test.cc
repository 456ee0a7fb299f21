// A disk that is full, fails or has damage: what is said to be durable, and what still works.
#include <random>

#include "fixture.h"
#include "fs/attributes.h"
#include "fs/filesystem.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/recipe.h"

namespace cairnfs::fs {
namespace {

Status Admitted(World& world, NameChange change) {
  std::promise<Status> promise;
  world.fs->names().WhenAdmitted(change, [&](Status status) { promise.set_value(std::move(status)); });
  return promise.get_future().get();
}

TEST(TroubledDisk, NamesDoNotPileUpWhileTheDiskIsFull) {
  World world;
  ASSERT_TRUE(world.fs->attributes()
                  .SetXattr({}, world.Create("first").attr.inode, "user.a", "1", meta::Namespace::XattrMode::kSet)
                  .ok());
  world.engine->full = true;
  const std::string value(60 * kKiB, 'x');
  std::vector<std::string> made;
  Status refused;
  for (int i = 0; i < 20000 && refused.ok(); ++i) {
    meta::CreateParams params;
    params.mode = S_IFIFO | 0600;
    std::string name = "fifo-" + std::to_string(i);
    refused = Admitted(world, NameChange::kMakes);
    if (!refused.ok()) break;
    auto attr = world.fs->names().MakeNode({}, kRootInode, name, params);
    ASSERT_TRUE(attr.ok()) << attr.error().message;
    made.push_back(name);
    refused = world.fs->attributes().SetXattr({}, attr->inode, "user.big", value, meta::Namespace::XattrMode::kSet);
  }
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoSpace) << refused.error().message;
  EXPECT_LT(world.kv->UnflushedBytes(), 200 * kMiB);
  // Deleting makes room again.
  for (const std::string& name : made) {
    ASSERT_TRUE(Admitted(world, NameChange::kRemoves).ok());
    ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, name).ok()) << name;
  }
  world.engine->full = false;
  ASSERT_TRUE(Eventually([&] { return Admitted(world, NameChange::kMakes).ok(); }));
  meta::CreateParams params;
  params.mode = S_IFIFO | 0600;
  EXPECT_TRUE(world.fs->names().MakeNode({}, kRootInode, "again", params).ok());
  world.Reopen();
  EXPECT_TRUE(world.fs->names().Lookup({}, kRootInode, "again").ok());
  EXPECT_FALSE(world.fs->names().Lookup({}, kRootInode, made.front()).ok());
}

// What others do does not make a file pending that is durable.
TEST(TroubledDisk, DurabilityIsAFilesOwn) {
  World world;
  auto durability = [&](InodeId inode) {
    auto value = World::Await<std::string>([&](Done<std::string> done) {
      world.fs->attributes().GetXattr(inode, "user.cairnfs.durability", std::move(done));
    });
    return value.ok() ? *value : value.error().message;
  };
  auto file = world.Create("file");
  ASSERT_TRUE(world.Write(file, 0, "bytes").ok());
  world.engine->full = true;  // nothing becomes durable
  EXPECT_EQ(durability(file.attr.inode), "pending");
  world.engine->full = false;
  ASSERT_TRUE(world.Fsync(file).ok());
  EXPECT_EQ(durability(file.attr.inode), "local");
  world.engine->full = true;
  auto other = world.Create("other");
  EXPECT_EQ(durability(file.attr.inode), "local");
  EXPECT_EQ(durability(other.attr.inode), "pending");
  EXPECT_EQ(durability(kRootInode), "pending");
  ASSERT_TRUE(
      world.fs->attributes().SetXattr({}, file.attr.inode, "user.a", "1", meta::Namespace::XattrMode::kSet).ok());
  EXPECT_EQ(durability(file.attr.inode), "pending");
  world.engine->full = false;
}

// The one whose round meets the loss is told what the round says, and which file it is of.
TEST(TroubledDisk, ARefusedCommitNamesTheFilesThatLostBytes) {
  World world;
  const auto directory = world.fs->names().MakeNode({}, kRootInode, "step.tmp", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(directory.ok());
  const auto create = [&](std::string_view name) {
    return *world.fs->open_files().Create({}, directory->inode, name, WithMode(S_IFREG | 0644), {.write = true});
  };
  const auto whole = create("whole"), file = create("weights");
  ASSERT_TRUE(world.Write(whole, 0, "whole").ok());
  ASSERT_TRUE(world.Fsync(whole).ok());
  world.engine->index_unreadable = true;
  ASSERT_TRUE(world.Write(file, 0, std::string(100000, 'a')).ok());
  Caller caller;
  caller.uid = 5;
  const auto causes_of_refused = [&] {
    EXPECT_FALSE(World::Await<void>([&](Done<void> done) {
                   world.fs->names().Rename({kRootInode, "step.tmp", kRootInode, "step"}, caller, std::move(done));
                 }).ok());
    const auto refused = world.fs->maintenance().GetRefusedCommits({});
    EXPECT_EQ(refused.size(), 1U);
    EXPECT_EQ(refused[0].directory + refused[0].host, "step.tmp");
    EXPECT_EQ(refused[0].uid, 5U);
    return refused[0].causes;
  };
  const auto at_first = causes_of_refused();
  ASSERT_EQ(at_first.size(), 2U);
  EXPECT_EQ(at_first[0].file, "");
  EXPECT_NE(at_first[0].why.find("the index is closed"), std::string::npos) << at_first[0].why;
  EXPECT_EQ(at_first[1].file, "step.tmp/weights");
  world.engine->index_unreadable = false;
  const auto later = causes_of_refused();
  ASSERT_EQ(later.size(), 1U);
  EXPECT_EQ(later[0], at_first[1]);
  world.CloseFile(whole);
  world.fs->open_files().Release(file.handle);  // a close would be told of the loss
}

// Bytes that could not be stored are never published by the rename of a directory, nor called durable, whoever else was
// told of them first.
TEST(TroubledDisk, LostBytesAreNotPublished) {
  World world;
  meta::CreateParams params;
  params.mode = S_IFDIR | 0755;
  auto directory = world.fs->names().MakeNode({}, kRootInode, "step.tmp", params);
  ASSERT_TRUE(directory.ok());
  params.mode = S_IFREG | 0644;
  auto file = world.fs->open_files().Create({}, directory->inode, "weights", params, {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  world.engine->index_unreadable = true;
  ASSERT_TRUE(world.Write(*file, 0, std::string(100000, 'a')).ok());
  auto other = world.Create("other");
  EXPECT_FALSE(world.Fsync(other).ok());  // this one is told
  world.engine->index_unreadable = false;
  EXPECT_TRUE(world.Fsync(other).ok());

  auto rename = [&] {
    auto result = World::Await<void>([&](Done<void> done) {
      world.fs->names().Rename({kRootInode, "step.tmp", kRootInode, "step", meta::RenameMode::kReplace}, {},
                               std::move(done));
    });
    return result;
  };
  auto durability = [&](InodeId inode) {
    auto value = World::Await<std::string>([&](Done<std::string> done) {
      world.fs->attributes().GetXattr(inode, "user.cairnfs.durability", std::move(done));
    });
    return value.ok() ? *value : value.error().message;
  };
  Status refused = rename();
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("weights"), std::string::npos) << refused.error().message;
  EXPECT_EQ(durability(file->attr.inode), "lost");
  EXPECT_EQ(durability(directory->inode), "lost");
  EXPECT_EQ(durability(other.attr.inode), "local");

  // Written again, in other pieces, all is well.
  EXPECT_FALSE(world.Write(*file, 0, "b").ok());  // the descriptor is told, once
  ASSERT_TRUE(world.Truncate(*file, 0).ok());
  ASSERT_TRUE(world.Write(*file, 0, std::string(100000, 'b')).ok());
  EXPECT_TRUE(rename().ok());
  EXPECT_EQ(durability(file->attr.inode), "local");
}

TEST(TroubledDisk, ATruncateThatCannotBeChangesNothing) {
  World world;
  auto directory = world.fs->names().MakeNode({}, kRootInode, "directory", WithMode(S_IFDIR | 0755));
  auto fifo = world.fs->names().MakeNode({}, kRootInode, "fifo", WithMode(S_IFIFO | 0644));
  auto file = world.Create("file");
  ASSERT_TRUE(directory.ok() && fifo.ok());
  auto truncate = [&](InodeId inode, uint64_t size) -> std::optional<ErrorCode> {
    SetAttrRequest request;
    request.size = size;
    request.mode = 0700;
    request.uid = 5;
    auto done = World::Await<meta::Attr>(
        [&](Done<meta::Attr> answer) { world.fs->attributes().SetAttr(inode, request, answer); });
    if (done.ok()) return std::nullopt;
    return done.error().code;
  };
  EXPECT_EQ(truncate(directory->inode, 0), ErrorCode::kIsDirectory);
  EXPECT_EQ(truncate(fifo->inode, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(truncate(file.attr.inode, UINT64_MAX), ErrorCode::kTooLarge);
  for (const meta::Attr& before : {*directory, *fifo, file.attr}) {
    auto attr = world.fs->names().GetAttr({}, before.inode);
    ASSERT_TRUE(attr.ok());
    EXPECT_EQ(attr->mode, before.mode);
    EXPECT_EQ(attr->uid, before.uid);
  }
  world.CloseFile(file);
}

TEST(TroubledDisk, AFileWhoseRecipeIsUnreadableCanBeEmptied) {
  World world;
  auto file = world.Create("file");
  std::mt19937_64 random(7);
  ASSERT_TRUE(world.Write(file, 0, RandomText(random, 3 * kMiB)).ok());
  ASSERT_TRUE(world.Fsync(file).ok());
  world.fs->open_files().Release(file.handle);
  world.Reopen();
  auto attr = world.fs->names().Lookup({}, kRootInode, "file");
  ASSERT_TRUE(attr.ok());
  world.engine->index_unreadable = true;
  auto open = [&](bool truncate) {
    return World::Await<HandleId>([&](Done<HandleId> done) {
      world.fs->open_files().Open(attr->inode, {.read = true, .write = true, .truncate = truncate}, std::move(done));
    });
  };
  SetAttrRequest longer;
  longer.size = 2 * kMiB;
  EXPECT_FALSE(World::Await<meta::Attr>([&](Done<meta::Attr> done) {
                 world.fs->attributes().SetAttr(attr->inode, longer, done);
               }).ok());
  EXPECT_TRUE(open(true).ok());
  world.engine->index_unreadable = false;
  auto after = world.fs->names().GetAttr({}, attr->inode);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->size, 0u);
  EXPECT_EQ(after->allocated_bytes, 0u);
}

}  // namespace
}  // namespace cairnfs::fs
