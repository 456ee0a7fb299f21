// Rounds that make durable what was done before a freeze point. fs/local_publisher.h says what that is.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "fixture.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

// A freeze point after each closed file, and no rounds but those that are asked for.
struct PointsWorld : World {
  explicit PointsWorld(unsigned flush_interval_ms = 600'000, uint64_t step_bytes = 1) {
    fs_options.flush_interval_ms = flush_interval_ms;
    fs_options.freeze_step_bytes = step_bytes;
    Remake();
  }

  FileSystem::Created WriteClosed(const std::string& name, std::string_view bytes) {
    const auto file = Create(name);
    EXPECT_TRUE(Write(file, 0, bytes).ok());
    CloseFile(file);
    return file;
  }
  void AwaitPoints(size_t count) {
    EXPECT_TRUE(Eventually([&] { return kv->freeze_points() == count; }))
        << kv->freeze_points() << " instead of " << count;
  }
  void RunRoundsAfter(unsigned ms) {
    fs_options.flush_interval_ms = ms;
    fs->maintenance().Change(fs_options, [](const Status&) {});
  }
  std::set<std::string> UnsavedFiles() {
    std::set<std::string> files;
    fs->maintenance().ListUnsaved({}, [&](const Unsaved& told) {
      files.clear();
      for (const UnsavedFile& file : told.files) files.insert(file.path);
    });
    return files;
  }
  // As after kill -9: what no round has flushed is gone.
  void Crash() {
    engine->full = true;
    static_cast<void>(fs->Stop().ok());
    fs.reset();
    Close();
    engine->writes_until_full = -1;
    engine->full = false;
    Open(false);
  }
  bool Exists(const std::string& name) { return fs->names().Lookup({}, kRootInode, name).ok(); }
};

TEST(FreezePoints, WhatWasClosedFirstIsDurableBeforeAnEndThatComesTooEarly) {
  PointsWorld world;
  const std::string stuck = RandomText(1, 1000);
  world.WriteClosed("a", RandomText(2, 50'000));
  world.AwaitPoints(1);
  world.WriteClosed("b", RandomText(3, 50'000));
  world.AwaitPoints(2);
  world.engine->HoldPutOf(stuck);
  world.WriteClosed("c", stuck);
  world.AwaitPoints(3);
  world.WriteClosed("d", RandomText(4, 50'000));
  world.AwaitPoints(4);
  EXPECT_FALSE(world.fs->maintenance().Drain(Context().WithTimeout(std::chrono::seconds(25))).ok());
  EXPECT_EQ(world.UnsavedFiles(), (std::set<std::string>{"c", "d"}));
  world.engine->LetGo();
  EXPECT_TRUE(world.fs->maintenance().Drain(Context()).ok());
  EXPECT_TRUE(world.UnsavedFiles().empty());
}

// Nor do the rounds of every second take all that waits.
TEST(FreezePoints, ARoundThatNobodyAwaitsTakesOneAfterTheOther) {
  PointsWorld world;
  for (size_t i = 1; i <= 4; ++i) {
    world.WriteClosed(std::to_string(i), RandomText(i, 50'000));
    world.AwaitPoints(i);
  }
  world.RunRoundsAfter(50);
  EXPECT_TRUE(Eventually([&] { return world.UnsavedFiles().empty(); }));
  EXPECT_GE(world.fs->maintenance().GetStatus().sync_rounds_total, 4u);
  EXPECT_EQ(world.kv->freeze_points(), 0u);
}

// It takes away bytes that what came after it needs no more, and what came before it does.
TEST(FreezePoints, ATruncatedFileIsOfTheRoundThatTakesWhatCameAfter) {
  PointsWorld world;
  const auto file = world.WriteClosed("a", RandomText(1, 50'000));
  world.AwaitPoints(1);
  world.WriteClosed("b", RandomText(2, 50'000));
  world.AwaitPoints(2);
  ASSERT_TRUE(world.Truncate(file, 0).ok());
  EXPECT_EQ(world.kv->freeze_points(), 0u);
}

// Also where the round has all of it in its record, with what was closed after that round had begun.
TEST(FreezePoints, SoIsOneThatTheRoundBeforeHasPublishedWhole) {
  PointsWorld world(600'000, 1000);
  const std::string stuck = RandomText(1, 600), added = RandomText(2, 20'000);
  world.engine->HoldPutOf(stuck);
  const auto file = world.WriteClosed("a", RandomText(3, 500));
  world.WriteClosed("b", stuck);
  world.AwaitPoints(1);
  world.RunRoundsAfter(50);
  world.AwaitPoints(0);  // the round that has both files waits for the second
  const auto opened = world.OpenByName("a");
  ASSERT_TRUE(world.Write(opened, 500, added).ok());
  world.CloseFile(opened);
  world.AwaitPoints(1);
  ASSERT_TRUE(Eventually([&] { return world.chunks->Stats().chunk_count == 2; })) << "all but the stuck one";
  world.engine->HoldRecordOf(file.attr.inode);
  world.engine->holding = false;
  world.engine->AwaitHold();
  const auto reopened = world.OpenByName("a");
  ASSERT_TRUE(world.Truncate(reopened, 0).ok());
  EXPECT_EQ(world.kv->freeze_points(), 0u);
  world.engine->LetGo();
}

TEST(FreezePoints, SoIsOneThatIsRemoved) {
  PointsWorld world;
  world.WriteClosed("a", RandomText(1, 50'000));
  world.AwaitPoints(1);
  world.WriteClosed("b", RandomText(2, 50'000));
  world.AwaitPoints(2);
  ASSERT_TRUE(world.fs->names().Unlink({}, kRootInode, "b").ok());
  EXPECT_EQ(world.kv->freeze_points(), 0u);
}

TEST(FreezePoints, ThereAreFewHoweverMuchWaits) {
  PointsWorld world;
  for (int i = 0; i < 60; ++i) {
    world.WriteClosed(std::to_string(i), RandomText(static_cast<uint64_t>(i), 2000));
    EXPECT_LE(world.kv->freeze_points(), 8u);
  }
  EXPECT_TRUE(world.fs->maintenance().Drain(Context()).ok());
  EXPECT_TRUE(world.UnsavedFiles().empty());
}

TEST(FreezePoints, AfterARoundOfEverythingThereAreNewOnes) {
  PointsWorld world(600'000, 10'000);
  for (size_t i = 1; i <= 8; ++i) {
    world.WriteClosed(std::to_string(i), RandomText(i, 10'000));
    world.AwaitPoints(i);
  }
  world.WriteClosed("9", RandomText(9, 10'000));  // from here on they come after 20,000 bytes
  world.AwaitPoints(5);
  world.WriteClosed("10", RandomText(10, 12'000));
  EXPECT_TRUE(world.fs->maintenance().Drain(Context()).ok());
  world.WriteClosed("11", RandomText(11, 6'000));
  world.AwaitPoints(1);
}

// The tree as it was after each change of names; and the contents that each file had, one after the other.
class History {
 public:
  explicit History(PointsWorld& world, uint64_t seed) : world_(world), random_(seed) { Note(); }

  void Step() {
    const std::string name = Name();
    const size_t points = world_.kv->freeze_points();
    switch (Below(is_held_ ? 11 : 12)) {
      case 0: Remove(name); break;
      case 1:
      case 2: Rename(name, Name()); break;
      case 3:
      case 4:
      case 5: Append(name); break;
      case 11: Truncate(name); break;
      default: Make(name); break;
    }
    const auto has_point = [&] { return world_.kv->freeze_points() > points; };
    if (Below(2) == 0) static_cast<void>(Eventually(has_point, std::chrono::milliseconds(20)));
    if (Below(6) == 0) Hold();
  }

  // What a crash has left is the tree as it was at some moment, and each file has what was closed by then, or what was
  // written to it since; but what was cut off later is there.
  void Check() {
    std::map<std::string, InodeId> left;
    for (const char* name : kNames) {
      if (auto attr = world_.fs->names().Lookup({}, kRootInode, name); attr.ok()) left[name] = attr->inode;
    }
    const auto is_like = [&](const Moment& moment) { return moment.names == left && HasContents(moment); };
    EXPECT_TRUE(std::any_of(moments_.begin(), moments_.end(), is_like)) << left.size() << " names are left";
  }
  void LetGo() { world_.engine->LetGo(); }

 private:
  struct Moment {
    std::map<std::string, InodeId> names;
    std::map<InodeId, size_t> versions;  // of each file the last that was closed
  };
  static constexpr std::array kNames = {"a", "b", "c", "d", "e", "f", "g", "h"};

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  std::string Name() { return kNames[Below(kNames.size())]; }
  std::string Bytes() { return RandomText(random_, 1 + Below(Below(2) == 0 ? 3'000 : 30'000)); }
  void Note() { moments_.push_back({names_, versions_}); }

  void NoteContent(InodeId inode, std::string content) {
    contents_[inode].push_back(std::move(content));
    versions_[inode] = contents_[inode].size() - 1;
    Note();
  }
  // As the kernel does with one that is gone.
  void ForgetInode(const std::string& name) {
    if (names_.contains(name)) world_.fs->names().Forget(names_[name], UINT64_MAX);
  }
  void Make(const std::string& name) {
    if (!names_.contains(name)) WriteNew(name, Bytes());
  }
  void WriteNew(const std::string& name, const std::string& bytes) {
    const auto file = world_.Create(name);
    contents_[file.attr.inode] = {""};
    versions_[file.attr.inode] = 0;
    names_[name] = file.attr.inode;
    Note();
    ASSERT_TRUE(world_.Write(file, 0, bytes).ok());
    world_.CloseFile(file);
    NoteContent(file.attr.inode, bytes);
  }
  void Append(const std::string& name) {
    if (!names_.contains(name)) return;
    const auto file = world_.OpenByName(name);
    std::string content = contents_[file.attr.inode].back();
    const std::string bytes = Bytes();
    ASSERT_TRUE(world_.Write(file, content.size(), bytes).ok());
    world_.CloseFile(file);
    NoteContent(file.attr.inode, content + bytes);
  }
  void Truncate(const std::string& name) {
    if (!names_.contains(name)) return;
    const auto file = world_.OpenByName(name);
    ASSERT_TRUE(world_.Truncate(file, 0).ok());
    world_.CloseFile(file);
    NoteContent(file.attr.inode, "");
    truncations_[file.attr.inode].insert(versions_[file.attr.inode]);
  }
  void Rename(const std::string& from, const std::string& to) {
    if (!names_.contains(from) || from == to) return;
    const auto renamed = World::Await<void>([&](Done<void> done) {
      world_.fs->names().Rename({kRootInode, from, kRootInode, to, meta::RenameMode::kReplace}, {}, std::move(done));
    });
    ASSERT_TRUE(renamed.ok());
    ForgetInode(to);
    names_[to] = names_[from];
    names_.erase(from);
    Note();
  }
  void Remove(const std::string& name) {
    if (!names_.contains(name)) return;
    ASSERT_TRUE(world_.fs->names().Unlink({}, kRootInode, name).ok());
    ForgetInode(name);
    names_.erase(name);
    Note();
  }
  void AppendAndAwaitPoint(const std::string& name) {
    const size_t points = world_.kv->freeze_points();
    Append(name);
    static_cast<void>(Eventually([&] { return world_.kv->freeze_points() > points; }, std::chrono::milliseconds(20)));
  }
  // A truncation waits for the round that has the file, and comes before that has ended.
  void EndHold() {
    const auto is_held = [this](const auto& entry) { return entry.second == held_; };
    const auto held = std::find_if(names_.begin(), names_.end(), is_held);
    if (held == names_.end() || Below(2) == 0) {
      world_.engine->holding = false;
      return;
    }
    const auto file = world_.OpenByName(held->first);
    auto truncated = std::async(std::launch::async, [&] { return world_.Truncate(file, 0); });
    world_.engine->holding = false;
    ASSERT_TRUE(truncated.get().ok());
    world_.CloseFile(file);
    NoteContent(held_, "");
    truncations_[held_].insert(versions_[held_]);
  }
  // The round that takes the next file does not end before some steps were done.
  void Hold() {
    if (std::exchange(is_held_, false)) return EndHold();
    if (names_.size() == kNames.size()) return;
    const std::string stuck = RandomText(random_, 900);
    world_.engine->HoldPutOf(stuck);
    const auto free =
        std::find_if(kNames.begin(), kNames.end(), [&](const char* name) { return !names_.contains(name); });
    WriteNew(*free, stuck);
    world_.engine->AwaitHold();
    is_held_ = true;
    held_ = names_[*free];
    if (Below(2) == 0) AppendAndAwaitPoint(*free);
  }
  bool HasContents(const Moment& moment) {
    return std::all_of(moment.names.begin(), moment.names.end(), [&](const auto& entry) {
      const auto& [name, inode] = entry;
      const auto file = world_.OpenByName(name);
      const auto content = world_.Read(file, 0, kMiB);
      world_.CloseFile(file);
      const auto& versions = contents_[inode];
      const size_t first = moment.versions.at(inode);
      const auto cut = truncations_[inode].upper_bound(first);
      const size_t end = cut == truncations_[inode].end() ? versions.size() : *cut;
      const auto at = [&](size_t index) { return versions.begin() + static_cast<ptrdiff_t>(index); };
      return content.ok() && std::find(at(first), at(end), *content) != at(end);
    });
  }

  PointsWorld& world_;
  std::mt19937_64 random_;
  std::map<std::string, InodeId> names_;
  std::map<InodeId, std::vector<std::string>> contents_;
  std::map<InodeId, size_t> versions_;
  std::map<InodeId, std::set<size_t>> truncations_;  // the versions that they made
  std::vector<Moment> moments_;
  bool is_held_ = false;
  InodeId held_;
};

TEST(FreezePoints, ACrashLeavesTheTreeAsItWasAtSomeMoment) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    PointsWorld world(50);
    History history(world, seed);
    world.engine->writes_until_full = static_cast<int>(4 + seed % 30);
    for (int step = 0; step < 40 && !world.engine->full; ++step) history.Step();
    world.engine->full = true;
    history.LetGo();
    world.Crash();
    history.Check();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace cairnfs::fs
