// Which files come into memory by themselves, and who is passed to them.
#include <sys/stat.h>

#include <string>
#include <vector>

#include "../../support/eventually.h"
#include "backing_fixture.h"
#include "fixture.h"
#include "fs/backing_files.h"

namespace cairnfs::fs {
namespace {

constexpr uint32_t kItsOwner = 1000, kAnother = 1001;

class PassingTest : public testing::Test {
 protected:
  PassingTest() { EXPECT_TRUE(world_.fs->backing_files().Begin({memory_, registry_}).ok()); }
  ~PassingTest() override { world_.Close(); }

  // Written and durable.
  InodeId Make(std::string_view name, InodeId directory = kRootInode, OpenFlags flags = {.write = true}) {
    meta::CreateParams params;
    params.mode = S_IFREG | 0644;
    params.uid = kItsOwner;
    auto made = world_.fs->open_files().Create({}, directory, name, params, flags);
    EXPECT_TRUE(made.ok());
    EXPECT_TRUE(world_.Write(*made, 0, text_).ok());
    EXPECT_TRUE(world_.Fsync(*made).ok());
    world_.CloseFile(*made);
    EXPECT_TRUE(world_.fs->names().Lookup({}, directory, name).ok());  // the kernel knows it
    return made->attr.inode;
  }
  HandleId Open(InodeId inode, uint32_t uid = kItsOwner) {
    Caller caller;
    caller.uid = uid;
    const auto handle = World::Await<HandleId>([&](Done<HandleId> done) {
      world_.fs->open_files().Open(inode, {.read = true, .may_pass = true}, std::move(done), caller);
    });
    EXPECT_TRUE(handle.ok());
    return handle.ok() ? *handle : 0;
  }
  bool IsPassed(InodeId inode, uint32_t uid = kItsOwner) {
    const HandleId handle = Open(inode, uid);
    const bool is_passed = world_.fs->open_files().BackingOf(handle) != 0;
    world_.fs->open_files().Release(handle);
    return is_passed;
  }
  void ReadThrough(InodeId inode, uint32_t uid = kItsOwner) {
    FileSystem::Created file;
    file.attr.inode = inode;
    file.handle = Open(inode, uid);
    for (size_t at = 0; at < text_.size(); at += kMiB) EXPECT_TRUE(world_.Read(file, at, kMiB).ok());
    world_.CloseFile(file);
  }
  bool ComesIntoMemory(uint64_t files) {
    return Eventually([&] { return world_.fs->backing_files().status().files == files; });
  }
  void SetMode(InodeId inode, uint32_t mode) {
    meta::AttrChanges changes;
    changes.mode = mode;
    EXPECT_TRUE(world_.names->SetAttr({}, inode, changes).ok());
  }

  const std::string text_ = RandomText(1, 2 * kMiB);
  MemoryBackings memory_{kGiB};
  CountingRegistry registry_;
  World world_;
};

TEST_F(PassingTest, WhatWasReadThroughIsFilledAtTheNextOpen) {
  const InodeId file = Make("file");
  EXPECT_FALSE(IsPassed(file));
  ReadThrough(file);
  EXPECT_EQ(world_.fs->backing_files().status().files, 0U) << "who reads it once only does not pay for it";
  EXPECT_FALSE(IsPassed(file));
  EXPECT_TRUE(ComesIntoMemory(1));
  EXPECT_TRUE(memory_.last->text() == text_);
  EXPECT_TRUE(IsPassed(file));
}

TEST_F(PassingTest, AProgramIsNot) {
  const InodeId file = Make("file");
  SetMode(file, 0755);
  for (int i = 0; i < 3; i++) ReadThrough(file);
  EXPECT_EQ(world_.fs->backing_files().status().filled_total, 0U);
  SetMode(file, 0644);
  ReadThrough(file);
  EXPECT_TRUE(ComesIntoMemory(1));
  EXPECT_TRUE(IsPassed(file));
  SetMode(file, 0755);
  EXPECT_FALSE(IsPassed(file));
}

TEST_F(PassingTest, StrangersArePassedOnlyWhereNobodyCanWrite) {
  const InodeId file = Make("file");
  for (int i = 0; i < 3; i++) ReadThrough(file, kAnother);
  EXPECT_EQ(world_.fs->backing_files().status().filled_total, 0U);
  IsPassed(file);
  EXPECT_TRUE(ComesIntoMemory(1));
  EXPECT_TRUE(IsPassed(file, 0));
  EXPECT_FALSE(IsPassed(file, kAnother));
  SetMode(file, 0444);
  EXPECT_TRUE(IsPassed(file, kAnother));
  SetMode(file, 0464);
  EXPECT_FALSE(IsPassed(file, kAnother));
}

TEST_F(PassingTest, WhatIsCommittedIsFilledWhereTheCommitBeforeWasRead) {
  struct Step {
    InodeId model, shard;
    std::vector<InodeId> others;
  };
  const auto commit = [&](const std::string& name) {
    meta::CreateParams params;
    params.mode = S_IFDIR | 0755;
    params.uid = kItsOwner;
    const InodeId step = world_.fs->names().MakeNode({}, kRootInode, "tmp", params)->inode;
    const InodeId below = world_.fs->names().MakeNode({}, step, "below", params)->inode;
    Step made{Make("model", step), Make("shard", below), {}};
    made.others = {Make("updated", step, {.read = true, .write = true}), Make("elsewhere " + name),
                   Make("program", step)};
    SetMode(made.others.back(), 0755);
    const meta::RenameParams rename{kRootInode, "tmp", kRootInode, name};
    EXPECT_TRUE(
        World::Await<void>([&](Done<void> done) { world_.fs->names().Rename(rename, {}, std::move(done)); }).ok());
    return made;
  };
  const Step first = commit("step-1");
  EXPECT_FALSE(IsPassed(first.model));  // and it counts as read
  const Step second = commit("step-2");
  EXPECT_TRUE(ComesIntoMemory(2));
  const Step third = commit("step-3");  // the second was not
  EXPECT_FALSE(IsPassed(third.model));
  const Step fourth = commit("step-4");
  EXPECT_TRUE(ComesIntoMemory(4)) << "those of the second and the fourth: one follows the other in the queue";
  for (const Step& step : {second, fourth}) {
    EXPECT_TRUE(IsPassed(step.model));
    EXPECT_TRUE(IsPassed(step.shard));
    for (const InodeId inode : step.others) EXPECT_FALSE(IsPassed(inode));
  }
  EXPECT_FALSE(IsPassed(first.shard));
  EXPECT_FALSE(IsPassed(third.shard));
}

}  // namespace
}  // namespace cairnfs::fs
