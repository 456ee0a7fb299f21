// What the rename of a finished directory costs: the same however many files lie below it, once their bytes are safe.
#include "cluster_fixture.h"
#include "fixture.h"
#include "fs/attributes.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/writer.h"

namespace cairnfs::fs {
namespace {

struct EngineCalls {
  uint64_t gets, scans, writes, written_keys;
  bool operator==(const EngineCalls&) const = default;
};

std::ostream& operator<<(std::ostream& out, const EngineCalls& calls) {
  return out << calls.gets << " gets, " << calls.scans << " scans, " << calls.writes << " writes of "
             << calls.written_keys << " keys";
}

EngineCalls CallsOf(const FullableEngine& engine) {
  return {engine.gets_total, engine.scans_total, engine.writes_total, engine.written_keys_total};
}

void MakeSmallFile(World& world, InodeId directory, const std::string& name) {
  static const std::string text = "bytes of a small file";
  auto file =
      world.fs->open_files().Create({}, directory, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
  ASSERT_TRUE(file.ok());
  FileSystem::WriteRequest request;
  request.handle = file->handle;
  request.inode = file->attr.inode;
  request.data.data = reinterpret_cast<const std::byte*>(text.data());
  request.data.size = text.size();
  ASSERT_TRUE(World::Await<size_t>([&](Done<size_t> done) {
                world.fs->writer().Write(std::move(request), std::move(done));
              }).ok());
  world.CloseFile(*file);
}

// On one host; what was read before it is not in memory.
EngineCalls CostOfRename(uint64_t file_count) {
  World world;
  world.fs_options.flush_interval_ms = 3'600'000;
  world.fs_options.read_only = true;  // so nothing is added to the record of the commit after the rename
  world.Remake();
  auto directory = world.fs->names().MakeNode({}, kRootInode, "step.tmp", WithMode(S_IFDIR | 0755));
  EXPECT_TRUE(directory.ok());
  for (uint64_t i = 0; i < file_count; i++) MakeSmallFile(world, directory->inode, "file" + std::to_string(i));
  EXPECT_TRUE(World::Await<void>([&](Done<void> done) { world.fs->maintenance().Sync(std::move(done)); }).ok());
  world.Reopen();
  // The count of what is there, which a start begins with, is over.
  EXPECT_TRUE(Eventually([&] { return world.fs->maintenance().GetStatus().inode_count == file_count + 2; }));
  const EngineCalls before = CallsOf(*world.engine);
  EXPECT_TRUE(World::Await<void>([&](Done<void> done) {
                meta::RenameParams params{kRootInode, "step.tmp", kRootInode, "step", meta::RenameMode::kReplace};
                world.fs->names().Rename(params, {}, std::move(done));
              }).ok());
  const EngineCalls after = CallsOf(*world.engine);
  return {after.gets - before.gets, after.scans - before.scans, after.writes - before.writes,
          after.written_keys - before.written_keys};
}

TEST(CommitCost, OnOneHostIsTheSameForTwoFilesAndTwoThousand) {
  const EngineCalls few = CostOfRename(2);
  EXPECT_GT(few.writes, 0u);
  EXPECT_EQ(CostOfRename(2000), few);
}

// Of a directory that has a record of its commit: whether anything was written below it since is to be found out.
EngineCalls CostOfSecondRename(uint64_t written_beside) {
  World world;
  world.fs_options.flush_interval_ms = 3'600'000;
  world.Remake();
  const auto make = [&](const std::string& name) {
    auto directory = world.fs->names().MakeNode({}, kRootInode, name, WithMode(S_IFDIR | 0755));
    EXPECT_TRUE(directory.ok());
    return directory->inode;
  };
  const auto rename = [&](const std::string& from, const std::string& to) {
    EXPECT_TRUE(World::Await<void>([&](Done<void> done) {
                  world.fs->names().Rename({kRootInode, from, kRootInode, to}, {}, std::move(done));
                }).ok());
  };
  const InodeId checkpoint = make("step.tmp");
  MakeSmallFile(world, checkpoint, "file");
  rename("step.tmp", "step");
  const auto is_recorded = [&] {
    const auto commit = World::Await<std::string>([&](Done<std::string> done) {
      world.fs->attributes().GetXattr(checkpoint, "user.cairnfs.commit", std::move(done));
    });
    // What is added later would be written with the names of the rename.
    return commit.ok() && commit->find("\"files\":1") != std::string::npos &&
           commit->find("\"copied_seconds\":null") == std::string::npos;
  };
  EXPECT_TRUE(Eventually(is_recorded));
  for (uint64_t i = 0; i < written_beside; i++) MakeSmallFile(world, make("beside" + std::to_string(i)), "file");
  world.fs_options.read_only = true;  // so nothing is added to the record of the commit meanwhile
  EXPECT_TRUE(World::Await<void>([&](Done<void> done) {
                world.fs->maintenance().Change(world.fs_options, std::move(done));
              }).ok());
  const EngineCalls before = CallsOf(*world.engine);
  rename("step", "kept");
  const EngineCalls after = CallsOf(*world.engine);
  return {after.gets - before.gets, after.scans - before.scans, after.writes - before.writes,
          after.written_keys - before.written_keys};
}

TEST(CommitCost, OfASecondRenameIsTheSameBesideManyWrittenDirectories) {
  const EngineCalls few = CostOfSecondRename(1);
  EXPECT_GT(few.writes, 0u);
  EXPECT_EQ(CostOfSecondRename(200), few);
}

class ClusterCommitCost : public ClusterTest {
 protected:
  // So nothing is added to the records of commits, which takes trips of its own, after the rename.
  void SetUp() override {
    ClusterTest::SetUp();
    options_.read_only = true;
  }
};

TEST_F(ClusterCommitCost, IsTheSameForTwoFilesAndFiveHundred) {
  MakeHosts(2);
  auto cost = [&](const std::string& name, unsigned file_count) {
    const InodeId directory = host(0).MakeDirectory(name + ".tmp");
    for (unsigned i = 0; i < file_count; i++) {
      host(i % 2).Put("file" + std::to_string(i), "bytes", directory);
      if (i % 16 == 15 || i + 1 == file_count) {  // each holds a buffer until it is stored
        EXPECT_TRUE(host(0).Sync().ok() && host(1).Sync().ok());
      }
    }
    const uint64_t before = host(0).gate->trips + host(1).gate->trips;
    EXPECT_TRUE(host(0).Rename(kRootInode, name + ".tmp", kRootInode, name).ok());
    return host(0).gate->trips + host(1).gate->trips - before;
  };
  cost("warm", 1);
  const uint64_t few = cost("few", 2);
  EXPECT_GT(few, 0u);
  EXPECT_EQ(cost("many", 500), few);
}

}  // namespace
}  // namespace cairnfs::fs
