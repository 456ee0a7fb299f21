// What a directory's rename leaves of the save that it ended, on a host alone and among several.
#include "fs/commits.h"

#include <nlohmann/json.hpp>

#include "cluster_fixture.h"
#include "fixture.h"

namespace cairnfs::fs {
namespace {

using nlohmann::json;

template <typename Of>
Result<json> CommitOf(Of& at, InodeId directory) {
  auto text = Of::template Await<std::string>(
      [&](Done<std::string> done) { at.fs->attributes().GetXattr(directory, "user.cairnfs.commit", std::move(done)); });
  if (!text.ok()) return text.error();
  return json::parse(*text);
}

// Once what takes longer than the rename is there.
template <typename Of>
json WholeCommitOf(Of& at, InodeId directory) {
  for (;;) {
    const auto commit = CommitOf(at, directory);
    EXPECT_TRUE(commit.ok());
    if (!commit.ok()) return {};
    const bool was_written = !(*commit)["save_seconds"].is_null();
    const bool is_copied = !was_written || !(*commit)["copied_seconds"].is_null();
    if (!(*commit)["files"].is_null() && is_copied) return *commit;
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
}

InodeId MakeDirectoryAt(World& world, std::string_view name) {
  auto made = world.fs->names().MakeNode({}, kRootInode, name, WithMode(S_IFDIR | 0755));
  EXPECT_TRUE(made.ok());
  return made->inode;
}

FileSystem::Created CreateBelow(World& world, InodeId directory, std::string_view name) {
  auto made =
      world.fs->open_files().Create({}, directory, name, WithMode(S_IFREG | 0644), {.read = true, .write = true});
  EXPECT_TRUE(made.ok());
  return *made;
}

Status Move(World& world, std::string from, std::string to) {
  meta::RenameParams params{kRootInode, std::move(from), kRootInode, std::move(to)};
  Caller caller;
  caller.uid = 5;
  return World::Await<void>([&](Done<void> done) { world.fs->names().Rename(params, caller, std::move(done)); });
}

TEST(Commits, TellWhatASaveWasAndCost) {
  World world;
  const InodeId directory = MakeDirectoryAt(world, "tmp");
  EXPECT_EQ(CommitOf(world, directory).error().code, ErrorCode::kNoData);
  const std::string bytes = RandomText(1, 3 * kMiB);
  for (const char* name : {"a", "b"}) {  // the second one's chunks are known
    const auto file = CreateBelow(world, directory, name);
    ASSERT_TRUE(world.Write(file, 0, bytes).ok());
    world.CloseFile(file);
  }
  ASSERT_TRUE(Move(world, "tmp", "step-1").ok());
  json commit = WholeCommitOf(world, directory);
  EXPECT_EQ(commit["files"], 2);
  EXPECT_EQ(commit["bytes"], 2 * bytes.size());
  EXPECT_EQ(commit["written_bytes"], 2 * bytes.size());
  EXPECT_EQ(commit["new_bytes"], bytes.size());
  EXPECT_EQ(commit["uid"], 5);
  for (const char* key : {"save_seconds", "durable_seconds", "copied_seconds", "write_seconds", "wait_seconds"}) {
    EXPECT_TRUE(commit[key].is_number()) << key;
  }
  EXPECT_LE(commit["save_seconds"], commit["durable_seconds"]);

  // A move carries it along, over a restart too.
  ASSERT_TRUE(Move(world, "step-1", "kept").ok());
  EXPECT_EQ(WholeCommitOf(world, directory), commit);
  world.Reopen();
  EXPECT_EQ(WholeCommitOf(world, directory), commit);

  // What was written since begins a new one.
  auto found = world.fs->names().Lookup({}, directory, "a");
  ASSERT_TRUE(found.ok());
  FileSystem::Created again{.attr = *found, .handle = 0};
  auto handle = World::Await<HandleId>([&](Done<HandleId> done) {
    world.fs->open_files().Open(found->inode, {.read = true, .write = true}, std::move(done));
  });
  ASSERT_TRUE(handle.ok());
  again.handle = *handle;
  ASSERT_TRUE(world.Write(again, 0, "anew").ok());
  world.CloseFile(again);
  Clock::SleepFor(std::chrono::milliseconds(1));  // two commits are told apart by their times
  ASSERT_TRUE(Move(world, "kept", "step-2").ok());
  EXPECT_EQ(WholeCommitOf(world, directory)["written_bytes"], 4);
}

TEST(Commits, WhatIsAddedToTheRecordIsNotWaitedFor) {
  World world;
  const InodeId directory = MakeDirectoryAt(world, "tmp");
  ASSERT_TRUE(Move(world, "tmp", "step-1").ok());
  EXPECT_TRUE(WholeCommitOf(world, directory)["files"].is_number());
  EXPECT_EQ(*World::Await<std::string>([&](Done<std::string> done) {
    world.fs->attributes().GetXattr(directory, "user.cairnfs.durability", std::move(done));
  }),
            "local");
}

TEST(Commits, AnEmptyDirectoryHasOneToo) {
  World world;
  const InodeId directory = MakeDirectoryAt(world, "tmp");
  ASSERT_TRUE(Move(world, "tmp", "step-1").ok());
  const json commit = WholeCommitOf(world, directory);
  EXPECT_EQ(commit["files"], 0);
  EXPECT_TRUE(commit["save_seconds"].is_null());
}

TEST(Commits, FilesBelowDirectoriesCount) {
  World world;
  const InodeId directory = MakeDirectoryAt(world, "tmp");
  auto below = world.fs->names().MakeNode({}, directory, "deep", WithMode(S_IFDIR | 0755));
  ASSERT_TRUE(below.ok());
  const auto file = CreateBelow(world, below->inode, "file");
  ASSERT_TRUE(world.Write(file, 0, "0123456789").ok());
  world.CloseFile(file);
  const auto beside = world.Create("beside");  // in another directory
  ASSERT_TRUE(world.Write(beside, 0, "not below").ok());
  ASSERT_TRUE(Move(world, "tmp", "step-1").ok());
  const json commit = WholeCommitOf(world, directory);
  EXPECT_EQ(commit["files"], 1);
  EXPECT_EQ(commit["bytes"], 10);
  EXPECT_EQ(commit["written_bytes"], 10);
  world.CloseFile(beside);
}

// Of a filesystem that adds nothing to its records itself.
class CommitRecordsTest : public testing::Test {
 protected:
  CommitRecordsTest() {
    world.fs_options.read_only = true;
    world.Remake();
    gate.emplace(*world.kv);
  }
  InodeId CommitNew(const std::string& name, std::string_view bytes = {}) {
    const InodeId directory = MakeDirectoryAt(world, name + ".tmp");
    if (!bytes.empty()) {
      const auto file = CreateBelow(world, directory, "file");
      EXPECT_TRUE(world.Write(file, 0, bytes).ok());
      world.CloseFile(file);
    }
    EXPECT_TRUE(Move(world, name + ".tmp", name).ok());
    return directory;
  }
  meta::CommitPart Told(InodeId directory) {
    const auto commit = world.names->ReadCommit({}, directory);
    EXPECT_TRUE(commit.ok() && *commit);
    return (*commit)->sum;
  }
  bool IsComplete(InodeId directory) { return Told(directory).totals.has_value(); }
  void AwaitComplete(InodeId directory) {
    while (!IsComplete(directory)) Clock::SleepFor(std::chrono::milliseconds(20));
  }

  World world;
  Saves saves;
  std::optional<Gate> gate;
};

TEST_F(CommitRecordsTest, WhoCommitsMostKeepsNobodyWaiting) {
  constexpr uint32_t kStranger = 1234;
  std::atomic<int> held{0};
  std::atomic<bool> holds{true};
  gate->refuse = [&](const kv::Transaction&) -> std::optional<Error> {
    const bool is_stranger = ++held <= static_cast<int>(Commits::kUnderWayMax);
    while (is_stranger && holds) Clock::SleepFor(std::chrono::milliseconds(20));
    return std::nullopt;
  };
  Commits commits({*world.names, *gate, saves}, {});
  for (int i = 0; i < 3; ++i) commits.NoteCommitted({CommitNew("busy-" + std::to_string(i))}, {.uid = kStranger});
  ASSERT_TRUE(Eventually([&] { return held == static_cast<int>(Commits::kUnderWayMax); }));
  const InodeId last = CommitNew("last"), other = CommitNew("other");
  for (uint64_t i = 0; i < Commits::kWaitingMax; ++i) {
    commits.NoteCommitted({InodeId{1'000'000 + i}}, {.uid = kStranger});
  }
  commits.NoteCommitted({last}, {.uid = kStranger});
  commits.NoteCommitted({other}, {.uid = 0});
  AwaitComplete(other);
  const auto begun = Clock::Now();
  EXPECT_FALSE(IsComplete(last)) << "there was no place for it";
  holds = false;
  AwaitComplete(last);
  EXPECT_LE(Clock::Now() - begun, 2 * Commits::kLookAgainAfter);
}

TEST_F(CommitRecordsTest, WhatWasCutShortIsFoundAfterAStart) {
  const InodeId cut_short = CommitNew("cut"), whole = CommitNew("whole");
  {
    Commits commits({*world.names, *gate, saves}, {});
    commits.NoteCommitted({whole}, {});
    AwaitComplete(whole);
  }
  ASSERT_FALSE(IsComplete(cut_short));
  const uint64_t before = gate->commits;
  Commits commits({*world.names, *gate, saves}, {});
  commits.LookAtRecords();
  AwaitComplete(cut_short);
  commits.Stop();
  EXPECT_LE(gate->commits, before + 2) << "of the one that lacked something";
}

TEST_F(CommitRecordsTest, NoTrainerWaitsForATicketsRename) {
  using std::chrono::seconds;
  Commits commits({*world.names, *gate, saves}, {});
  const InodeId deferred = CommitNew("deferred"), waited_for = CommitNew("plain");
  commits.NoteCommitted({deferred}, {.took = seconds(3), .waited_for_it = false});
  commits.NoteCommitted({waited_for}, {.took = seconds(3)});
  AwaitComplete(deferred);
  AwaitComplete(waited_for);
  EXPECT_EQ(Told(deferred).wait_ns, 0U);
  EXPECT_TRUE(Told(deferred).durable);
  EXPECT_EQ(Told(waited_for).wait_ns, 3'000'000'000U);
}

// As of files that are synced while they grow: their ends are stored again and again.
TEST_F(CommitRecordsTest, NoMoreIsNewThanWasWritten) {
  const InodeId directory = CommitNew("step-1");
  std::atomic<bool> has_copies{false};
  Commits commits({*world.names, *gate, saves}, {.has_copies = [&] { return has_copies.load(); }});
  const SaveTallyPtr tally = saves.Of(directory, 0);
  tally->NoteWrite(100, std::chrono::milliseconds(1));
  *tally->new_bytes += 70;
  commits.NoteCommitted({directory}, {});
  AwaitComplete(directory);
  EXPECT_EQ(Told(directory).new_bytes, 70U);
  *tally->new_bytes += 70;  // known later
  has_copies = true;
  while (!Told(directory).copied) Clock::SleepFor(std::chrono::milliseconds(1));
  EXPECT_EQ(Told(directory).new_bytes, 100U);
}

TEST_F(CommitRecordsTest, WhatWasWrittenIsNotKnownOnceItsDaemonHasEnded) {
  Commits commits({*world.names, *gate, saves}, {});
  const InodeId directory = CommitNew("step-1", "0123456789"), empty = CommitNew("step-2");
  for (const InodeId each : {directory, empty}) {
    commits.NoteCommitted({each}, {});
    AwaitComplete(each);
  }
  const auto told = [&](InodeId each) { return json::parse(*commits.Describe({}, each, Commits::Tell::kAll)); };
  const json unknown = told(directory), known = told(empty);
  EXPECT_EQ(unknown["bytes"], 10);
  for (const char* key : {"written_bytes", "new_bytes", "write_seconds", "wait_seconds"}) {
    EXPECT_TRUE(unknown[key].is_null()) << key;
    EXPECT_EQ(known[key], 0) << key;
  }
}

class ClusterCommitsTest : public ClusterTest {};

TEST_F(ClusterCommitsTest, EachHostAddsWhatItWrote) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("tmp");
  ASSERT_TRUE(host(1).fs->names().Lookup({}, kRootInode, "tmp").ok());
  host(0).Put("shard-0", TextOf(1, 1000), directory);
  host(1).Put("shard-1", TextOf(2, 2000), directory);
  ASSERT_TRUE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  for (;;) {
    const json commit = WholeCommitOf(host(1), directory);
    ASSERT_EQ(commit["host"], "host1");
    ASSERT_EQ(commit["files"], 2);
    ASSERT_EQ(commit["bytes"], 3000);
    if (commit["written_bytes"] == 3000 && !commit["copied_seconds"].is_null()) break;
    Clock::SleepFor(std::chrono::milliseconds(1));
  }
}

TEST_F(ClusterCommitsTest, ARefusalIsToldOnEveryHost) {
  MakeHosts(2);
  const InodeId directory = host(0).MakeDirectory("tmp");
  host(1).chunks->syncs_fail = true;
  host(1).PutInVain("shard", TextOf(3, 1000), directory);
  ASSERT_FALSE(host(0).Rename(kRootInode, "tmp", kRootInode, "step-1").ok());
  for (size_t each : {size_t{0}, size_t{1}}) {
    std::vector<meta::RefusedCommit> refused;
    while ((refused = host(each).fs->maintenance().GetRefusedCommits({})).empty()) {
      Clock::SleepFor(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(refused[0].host, "host1");
    EXPECT_EQ(refused[0].directory, "tmp");
  }
  host(1).chunks->syncs_fail = false;
}

}  // namespace
}  // namespace cairnfs::fs
