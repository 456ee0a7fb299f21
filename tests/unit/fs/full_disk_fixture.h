// A filesystem whose disk has no room for bytes that it has accepted.
#pragma once

#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "io/faulty_disk.h"

namespace cairnfs::fs {

// A file "old" that reaches beyond the reserve, after which no segment is there to be written on.
inline void SaveOld(World& world) {
  auto old = world.Create("old");
  ASSERT_TRUE(world.Write(old, 0, RandomText(1, 80 * kMiB)).ok());
  world.CloseFile(old);
  world.Reopen();
}

// No segment is there yet, so nothing of the file finds room until the disk has some.
class NoRoomForAccepted : public testing::Test {
 protected:
  NoRoomForAccepted() {
    world_.fs_options.flush_interval_ms = 600'000;  // rounds run when they are asked for
    disk_ = &world_.RemakeOnFaultyDisk();
    file_ = world_.Create("file");
    EXPECT_TRUE(world_.Write(file_, 0, text_).ok());
    SetFull();
    const Status synced = Sync();
    EXPECT_TRUE(!synced.ok() && synced.error().code == ErrorCode::kNoSpace);
  }
  ~NoRoomForAccepted() override {
    disk_->SetFaults({});
    world_.engine->LetGo();
    world_.fs->open_files().Release(file_.handle);
    world_.Close();
  }
  void SetFull() {
    io::Faults full;
    full.growth_bytes_max = 0;
    disk_->SetFaults(full);
  }
  // All is durable, no segment is there to be written on, and the file has these bytes at those offsets, for which
  // there is no room.
  void ReopenWithoutRoom(const std::vector<std::pair<uint64_t, std::string>>& pieces) {
    ASSERT_TRUE(Sync().ok());
    world_.fs->open_files().Release(file_.handle);
    world_.Reopen();
    file_ = world_.OpenByName("file");
    for (const auto& [offset, bytes] : pieces) ASSERT_TRUE(world_.Write(file_, offset, bytes).ok());
    SetFull();
  }
  Status Flush() {
    return World::Await<void>([&](Done<void> done) { world_.fs->open_files().Flush({file_.handle}, std::move(done)); });
  }
  Status Sync() {
    return World::Await<void>([&](Done<void> done) { world_.fs->maintenance().Sync(std::move(done)); });
  }
  Status Rename() {
    return World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, "file", kRootInode, "done", meta::RenameMode::kReplace}, {},
                                std::move(done));
    });
  }

  const std::string text_ = RandomText(1, 20'000);
  World world_;
  io::FaultyDisk* disk_ = nullptr;  // the world's
  FileSystem::Created file_;
};

}  // namespace cairnfs::fs
