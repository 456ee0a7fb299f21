// The check: what is damaged is told once, with the files that it hurts; what only moves is not told; it disturbs
// nobody and ends when it is told to.
#include <map>
#include <thread>

#include "../../support/no_threads.h"
#include "chunking/digest.h"
#include "fixture.h"
#include "fs/maintenance.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/recipe.h"
#include "fs/writer.h"
#include "io/memory_disk.h"
#include "meta/records.h"
#include "store/chunk_index_format.h"

namespace cairnfs::fs {
namespace {

Result<CheckReport> Check(World& world, const Context& stop = {}) {
  return World::Await<CheckReport>(
      [&](Done<CheckReport> done) { world.fs->maintenance().Check(stop, std::move(done)); });
}

class Checked : public ::testing::Test {
 protected:
  InodeId MakeDirectory(InodeId parent, std::string_view name) {
    auto made = world_.fs->names().MakeNode({}, parent, name, WithMode(S_IFDIR | 0755));
    EXPECT_TRUE(made.ok());
    return made->inode;
  }
  InodeId Save(InodeId parent, std::string_view name, std::string_view text) {
    auto file =
        world_.fs->open_files().Create({}, parent, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
    EXPECT_TRUE(file.ok());
    EXPECT_TRUE(world_.Write(*file, 0, text).ok());
    EXPECT_TRUE(world_.Fsync(*file).ok());
    EXPECT_TRUE(world_.chunks->Sync().ok());  // from the journal to their segment
    world_.CloseFile(*file);
    return file->attr.inode;
  }
  // Flips a bit of stored bytes.
  void Damage(std::string_view bytes) {
    auto& disk = dynamic_cast<io::MemoryDisk&>(*world_.disk);
    auto names = disk.List();
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) {
      auto contents = disk.Contents(name);
      size_t at = contents ? contents->find(bytes) : std::string::npos;
      if (at != std::string::npos) {
        ASSERT_TRUE(disk.FlipBit(name, at * 8));
        world_.chunks->DropCache();
        return;
      }
    }
    FAIL() << "the bytes are not stored";
  }
  void ChangeLinks(InodeId inode, uint32_t nlink) {
    auto entry = world_.kv->Get({}, meta::InodeKey(inode));
    ASSERT_TRUE(entry.ok() && entry->has_value());
    auto record = meta::InodeRecord::Decode((*entry)->value);
    record->nlink = nlink;
    kv::Transaction transaction;
    transaction.Put(meta::InodeKey(inode), record->Encode());
    ASSERT_TRUE(world_.kv->Commit({}, transaction).ok());
  }
  World world_;
};

bool Mentions(const std::string& text, const std::string& word) { return text.find(word) != std::string::npos; }

TEST_F(Checked, ADamagedChunkIsToldOnceWithTheFilesThatNameIt) {
  std::string text = RandomText(1, 3000), other = RandomText(2, 3000);
  InodeId run = MakeDirectory(MakeDirectory(kRootInode, "runs"), "7");
  Save(run, "model", text);
  Save(kRootInode, "copy", text);
  Save(kRootInode, "whole", other);
  Damage(std::string_view(text).substr(100, 64));
  auto report = Check(world_);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->problem_count, 1u);
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_TRUE(Mentions(report->problems[0], "runs/7/model")) << report->problems[0];
  EXPECT_TRUE(Mentions(report->problems[0], "copy")) << report->problems[0];
  EXPECT_EQ(report->damaged_files, (std::vector<std::string>{"runs/7/model", "copy"}));
  EXPECT_EQ(report->damaged_file_count, 2u);
}

TEST_F(Checked, ADamagedPageOfARecipeIsToldOnce) {
  std::string text = RandomText(3, 2'000'000);  // more extents than a record holds
  InodeId inode = Save(kRootInode, "big", text);
  auto entry = world_.kv->Get({}, meta::FileKey(inode));
  auto recipe = Recipe::Decode(meta::FileRecord::Decode((*entry)->value)->recipe);
  ASSERT_TRUE(recipe->is_tree);
  auto page = store::GetText(*world_.chunks, recipe->inner[0].digest);
  Damage(*page);
  auto report = Check(world_);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->problem_count, 1u) << report->problems.back();
  EXPECT_EQ(report->damaged_files, std::vector<std::string>{"big"});
}

// Not kNotFound, which says that there is no such file.
TEST_F(Checked, AFileWhoseRecipeOrBytesAreNowhereIsDamaged) {
  const std::string text = RandomText(3, 2'000'000);  // more extents than a record holds
  auto forget = [&](const Digest& digest) {
    EXPECT_TRUE(world_.engine->Write({{store::ChunkKey(digest), std::nullopt}}, kv::WriteMode::kSynced).ok());
    world_.Reopen();
  };
  const InodeId inode = Save(kRootInode, "big", text);
  auto entry = world_.kv->Get({}, meta::FileKey(inode));
  auto recipe = Recipe::Decode(meta::FileRecord::Decode((*entry)->value)->recipe);
  ASSERT_TRUE(recipe->is_tree);
  const Digest inner = recipe->inner[0].digest;
  auto leaves = DecodePageRefs(*store::GetText(*world_.chunks, inner));
  auto extents = DecodeExtents(*store::GetText(*world_.chunks, leaves->at(0).digest), 0, kLeafBytes);

  forget(extents->at(0).digest);
  FileSystem::Created file = world_.OpenByName("big");
  auto copy = world_.Create("copy");
  auto copied = World::Await<size_t>([&](Done<size_t> done) {
    world_.fs->writer().CopyRange({file.handle, 0, copy.handle, 0, 9000}, std::move(done));
  });
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, ErrorCode::kCorrupt) << copied.error().message;
  world_.CloseFile(copy);
  world_.CloseFile(file);

  for (const Digest& page : {leaves->at(0).digest, inner}) {
    forget(page);
    ASSERT_TRUE(world_.fs->names().Lookup({}, kRootInode, "big").ok());
    auto opened = World::Await<HandleId>(
        [&](Done<HandleId> done) { world_.fs->open_files().Open(inode, {.read = true}, std::move(done)); });
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, ErrorCode::kCorrupt) << opened.error().message;
  }
}

TEST_F(Checked, AMissingChunkIsToldOnce) {
  std::string text = RandomText(4, 3000);
  Save(kRootInode, "a", text);
  Save(kRootInode, "b", text);
  ASSERT_TRUE(
      world_.engine
          ->Write({{store::ChunkKey(chunking::ComputeDigest(AsBytes(text))), std::nullopt}}, kv::WriteMode::kSynced)
          .ok());
  auto report = Check(world_);
  ASSERT_TRUE(report.ok()) << report.error().message;
  // The index notices too that it holds less than it counted.
  EXPECT_EQ(report->problem_count, 2u);
  EXPECT_TRUE(Mentions(report->problems[0], "is missing; it is part of a ")) << report->problems[0];
  EXPECT_EQ(report->damaged_files, (std::vector<std::string>{"a", "b"}));
}

TEST_F(Checked, WrongLinkCountsAndNamesOfNothingAreTold) {
  InodeId directory = MakeDirectory(kRootInode, "d");
  InodeId file = Save(directory, "f", "text");
  ChangeLinks(file, 7);
  kv::Transaction transaction;
  transaction.Put(meta::DentryKey(directory, "nothing"), meta::DentryRecord{InodeId{999'999'999}, S_IFREG}.Encode());
  ASSERT_TRUE(world_.kv->Commit({}, transaction).ok());
  auto report = Check(world_);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->problem_count, 2u);
  std::string all = report->problems.at(0) + report->problems.at(1);
  EXPECT_TRUE(Mentions(all, "d/f (inode ") && Mentions(all, "says 7 links, but 1 names lead to it")) << all;
  EXPECT_TRUE(Mentions(all, "d/nothing (inode 999999999)") && Mentions(all, "it is not there")) << all;
  EXPECT_EQ(report->damaged_file_count, 0u);
}

// Though everything in it can be read, from memory.
TEST_F(Checked, ADamagedTableOfMetadataIsAProblem) {
  Save(kRootInode, "f", "text");
  world_.engine->verified = MakeError(ErrorCode::kCorrupt, "the database is damaged: 000007.sst fails its checksum");
  auto report = Check(world_);
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->problems, std::vector<std::string>{"the database is damaged: 000007.sst fails its checksum"});
  EXPECT_EQ(report->problem_count, 1u);
  EXPECT_EQ(report->damaged_file_count, 0u);
  world_.engine->verified = MakeError(ErrorCode::kInterrupted, "stopped");
  EXPECT_EQ(Check(world_).error().code, ErrorCode::kInterrupted);
}

TEST_F(Checked, OneAtATimeAndItEndsWhenToldTo) {
  Save(kRootInode, "f", RandomText(5, 500'000));
  world_.engine->name_scans_until_hold = 0;
  std::stop_source stop;
  std::promise<Result<CheckReport>> first;
  world_.fs->maintenance().Check(Context(stop.get_token()),
                                 [&](Result<CheckReport> report) { first.set_value(std::move(report)); });
  world_.engine->AwaitHold();
  for (int i = 0; i < 40; i++) {
    auto refused = Check(world_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  }
  auto file = world_.OpenByName("f");
  EXPECT_EQ(world_.Read(file, 0, 500'000)->size(), 500'000u);
  world_.CloseFile(file);
  stop.request_stop();
  world_.engine->holding = false;
  auto report = first.get_future().get();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
  EXPECT_TRUE(Check(world_).ok());
}

TEST_F(Checked, WithoutAThreadItIsRefusedAndCanBeAskedForAgain) {
  {
    const NoThreads none;
    auto refused = Check(world_);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << refused.error().message;
  }
  EXPECT_TRUE(Check(world_).ok());
}

TEST_F(Checked, StopOfTheFilesystemEndsIt) {
  world_.engine->name_scans_until_hold = 0;
  std::promise<Result<CheckReport>> answer;
  world_.fs->maintenance().Check({}, [&](Result<CheckReport> report) { answer.set_value(std::move(report)); });
  world_.engine->AwaitHold();
  std::thread stop([&] { EXPECT_TRUE(world_.fs->Stop().ok()); });
  // Whoever asks now is told that another check runs, until Stop has come so far.
  EXPECT_TRUE(Eventually([&] { return Check(world_).error().code == ErrorCode::kUnavailable; }));
  world_.engine->holding = false;
  stop.join();
  auto report = answer.get_future().get();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.error().code, ErrorCode::kInterrupted);
}

TEST_F(Checked, OthersGoOnWhileASuspectIsLookedAtAgain) {
  ChangeLinks(Save(kRootInode, "f", "text"), 7);
  world_.engine->name_scans_until_hold = 1;  // the first finds the suspect
  std::promise<Result<CheckReport>> answer;
  world_.fs->maintenance().Check({}, [&](Result<CheckReport> report) { answer.set_value(std::move(report)); });
  world_.engine->AwaitHold();
  Save(kRootInode, "another", "made and synced meanwhile");
  world_.engine->holding = false;
  auto report = answer.get_future().get();
  ASSERT_TRUE(report.ok()) << report.error().message;
  EXPECT_EQ(report->problem_count, 1u);
}

TEST_F(Checked, WhatOnlyMovesIsNoProblem) {
  InodeId a = MakeDirectory(kRootInode, "a"), b = MakeDirectory(kRootInode, "b");
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; thread++) {
    threads.emplace_back([&, thread] {
      std::string name = "moving" + std::to_string(thread), link = "link" + std::to_string(thread);
      InodeId inode = Save(a, name, RandomText(thread, 20'000));
      for (int i = 0; !over; i++) {
        auto rename = [&](InodeId from, InodeId to) {
          EXPECT_TRUE(World::Await<void>([&](Done<void> done) {
                        world_.fs->names().Rename({from, name, to, name}, {}, std::move(done));
                      }).ok());
        };
        rename(a, b);
        EXPECT_TRUE(World::Await<meta::Attr>([&](Done<meta::Attr> done) {
                      world_.fs->names().Link(inode, a, link, std::move(done));
                    }).ok());
        EXPECT_TRUE(world_.fs->names().Unlink({}, a, link).ok());
        rename(b, a);
        std::string made = link + "-" + std::to_string(i);
        Save(b, made, RandomText(i, 5'000));
        EXPECT_TRUE(world_.fs->names().Unlink({}, b, made).ok());
      }
    });
  }
  std::thread collector([&] {
    while (!over) {
      static_cast<void>(
          World::Await<CollectionStatus>([&](Done<CollectionStatus> done) { world_.fs->maintenance().Collect(done); }));
    }
  });
  for (int i = 0; i < 30; i++) {
    auto report = Check(world_);
    ASSERT_TRUE(report.ok()) << report.error().message;
    EXPECT_EQ(report->problems, std::vector<std::string>());
  }
  over = true;
  for (auto& thread : threads) thread.join();
  collector.join();
}

}  // namespace
}  // namespace cairnfs::fs
