#include "fs/refusals.h"

#include <map>
#include <nlohmann/json.hpp>

#include "fixture.h"

namespace cairnfs::fs {
namespace {

using meta::RefusedCommit;
using nlohmann::json;

const std::string kNoNode(meta::kNodeIdBytes, '\0');

InodeId MakeAt(World& world, InodeId parent, std::string_view name, uint32_t mode, uint32_t uid) {
  meta::CreateParams params = WithMode(mode);
  params.uid = uid;
  auto made = world.fs->names().MakeNode({}, parent, name, params);
  EXPECT_TRUE(made.ok());
  return made->inode;
}

// What refuses, over what the store of the world has.
struct Refusing {
  explicit Refusing(World& world, std::string node = kNoNode)
      : refusals({*world.names, *world.kv, *queue}, std::move(node), Context()) {}
  ~Refusing() {
    refusals.Stop();
    queue.reset();
  }
  std::unique_ptr<TaskQueue> queue = std::make_unique<TaskQueue>("refusing", 3);
  Refusals refusals;
};

// Of what is in the store alone.
std::vector<RefusedCommit> KeptIn(World& world) {
  Refusing anew(world);
  return anew.refusals.List({});
}

// Returns once it is written.
void NoteAndAwait(World& world, const RefusedCommit& refused) {
  Refusing refusing(world);  // waits at its end for what it posted
  refusing.refusals.Note(refused);
}

Caller CallerOf(uint32_t uid) {
  Caller caller;
  caller.uid = uid;
  caller.gid = uid;
  return caller;
}

TEST(Refusals, AreKeptOverARestart) {
  World world;
  const RefusedCommit refused{
      .source = InodeId{77},
      .at = {100, 5},
      .uid = 5,
      .directory = "tmp",
      .causes = {{.file = "tmp/file", .why = "lost"}, {.file = "tmp/other", .why = "lost too"}}};
  {
    Refusing refusing(world);
    refusing.refusals.Note(refused);
    EXPECT_EQ(refusing.refusals.Last(InodeId{77})->directory, "tmp");
    EXPECT_FALSE(refusing.refusals.Last(InodeId{78}));
    EXPECT_EQ(refusing.refusals.List({}).size(), 1U) << "it is told once, whether or not it is written by now";
  }
  world.Reopen();
  const auto kept = KeptIn(world);
  ASSERT_EQ(kept.size(), 1U);
  EXPECT_EQ(kept[0].at, refused.at);
  EXPECT_EQ(kept[0].uid, 5U);
  EXPECT_EQ(kept[0].directory, "tmp");
  EXPECT_EQ(kept[0].causes, refused.causes);
}

TEST(Refusals, TheLastOfADirectoryAndHostTakesThePlaceOfTheOneBefore) {
  World world;
  RefusedCommit refused{.source = InodeId{77}, .directory = "tmp"};
  Refusing other(world, std::string(meta::kNodeIdBytes, 'o'));
  refused.at = {9, 0};
  other.refusals.Note(refused);
  for (uint32_t i = 1; i <= 3; ++i) {
    refused.at = {i, 0};
    refused.causes.assign(RefusedCommit::kCausesMax + i, {.file = "tmp/f", .host = "h", .why = "lost"});
    NoteAndAwait(world, refused);
  }
  for (;;) {
    const auto kept = KeptIn(world);
    if (kept.size() < 2) {  // the other host's is not written yet
      Clock::SleepFor(std::chrono::milliseconds(1));
      continue;
    }
    ASSERT_EQ(kept.size(), 2U);
    EXPECT_EQ(kept[0].at, (Timestamp{9, 0}));
    EXPECT_EQ(kept[1].at, (Timestamp{3, 0}));
    EXPECT_EQ(kept[1].causes.size(), RefusedCommit::kCausesMax);
    EXPECT_EQ(kept[1].left_out, 3U);
    break;
  }
}

// How many are kept of each user.
std::map<uint32_t, size_t> KeptByUser(World& world) {
  std::map<uint32_t, size_t> count;
  for (const RefusedCommit& kept : KeptIn(world)) ++count[kept.uid];
  return count;
}

void PutMany(World& world, uint64_t first, size_t count, RefusedCommit refused) {
  kv::Transaction transaction;
  for (size_t i = 0; i < count; ++i) {
    refused.at.nanoseconds = static_cast<uint32_t>(i);
    transaction.Put(meta::RefusalKey(InodeId{first + i}, kNoNode), refused.Encode());
  }
  ASSERT_TRUE(world.kv->Commit({}, transaction).ok());
}

TEST(Refusals, BeyondAThousandTheOldestGoesOfWhoHasMost) {
  World world;
  PutMany(world, 10'000, 3, {.at = {1, 0}, .uid = 7});  // the oldest of all
  PutMany(world, 20'000, Refusals::kKeptMax - 3, {.at = {2, 0}, .uid = 1234});
  NoteAndAwait(world, {.source = InodeId{20'000 + Refusals::kKeptMax}, .at = {3, 0}, .uid = 1234});
  EXPECT_EQ(KeptByUser(world), (std::map<uint32_t, size_t>{{7, 3}, {1234, Refusals::kKeptMax - 3}}));
  NoteAndAwait(world, {.source = InodeId{9}, .at = {0, 1}, .uid = 8});  // by a clock that is behind
  EXPECT_EQ(KeptByUser(world), (std::map<uint32_t, size_t>{{7, 3}, {8, 1}, {1234, Refusals::kKeptMax - 4}}));
  for (const RefusedCommit& kept : KeptIn(world)) {
    const bool is_oldest = kept.source == InodeId{20'000} || kept.source == InodeId{20'001};
    EXPECT_FALSE(kept.uid == 1234 && is_oldest);
  }
}

// A later version's, of which too many were kept.
TEST(Refusals, WhatDoesNotDecodeGoesFirst) {
  World world;
  PutMany(world, 10'000, Refusals::kKeptMax - 1, {.at = {1, 0}, .uid = 7});
  kv::Transaction transaction;
  transaction.Put(meta::RefusalKey(InodeId{5}, kNoNode), "\x09of a later version");
  transaction.Put(meta::RefusalKey(InodeId{6}, kNoNode), "");
  ASSERT_TRUE(world.kv->Commit({}, transaction).ok());
  NoteAndAwait(world, {.source = InodeId{4}, .at = {2, 0}, .uid = 8});
  EXPECT_EQ(KeptByUser(world), (std::map<uint32_t, size_t>{{7, Refusals::kKeptMax - 1}, {8, 1}}));
  EXPECT_FALSE(*world.kv->Get({}, meta::RefusalKey(InodeId{5}, kNoNode)));
}

class DescribedRefusalTest : public testing::Test {
 protected:
  static constexpr uint32_t kOwner = 1000, kOther = 2000;

  json Told(const Caller& caller) {
    auto text = refusing_.refusals.Describe(caller, directory_);
    EXPECT_TRUE(text.ok());
    return text.ok() ? json::parse(*text) : json();
  }
  std::vector<std::string> FilesTold(const Caller& caller) {
    std::vector<std::string> files;
    const json told = Told(caller);
    for (const json& cause : told["causes"]) files.push_back(cause["file"]);
    return files;
  }

  World world_;
  Refusing refusing_{world_};
  const InodeId run_ = MakeAt(world_, kRootInode, "run", S_IFDIR | 0755, 0);
  const InodeId directory_ = MakeAt(world_, run_, "tmp", S_IFDIR | 0777, kOwner);
};

TEST_F(DescribedRefusalTest, HasWhenWhereAndWhy) {
  EXPECT_EQ(refusing_.refusals.Describe(CallerOf(0), directory_).error().code, ErrorCode::kNoData);
  MakeAt(world_, directory_, "file", S_IFREG | 0600, kOwner);
  refusing_.refusals.Note({.source = directory_,
                           .at = {100, 5},
                           .host = "h",
                           .uid = kOwner,
                           .directory = "run/tmp",
                           .causes = {{"run/tmp/file", "other", "lost"}, {"", "h", "full"}},
                           .left_out = 2});
  const json expected = {
      {"at", 100},
      {"host", "h"},
      {"uid", kOwner},
      {"causes",
       {{{"file", "file"}, {"host", "other"}, {"cause", "lost"}}, {{"file", ""}, {"host", "h"}, {"cause", "full"}}}},
      {"left_out", 2}};
  EXPECT_EQ(Told(CallerOf(0)), expected);
  EXPECT_EQ(Told(CallerOf(kOwner)), expected);
  EXPECT_EQ(Told(CallerOf(kOther)),
            (json{{"at", 100}, {"host", "h"}, {"uid", kOwner}, {"causes", json::array()}, {"left_out", 4}}));
}

TEST_F(DescribedRefusalTest, OfHostsTheLastOneIsTold) {
  NoteAndAwait(world_, {.source = directory_, .at = {5, 0}, .directory = "run/tmp"});
  Refusing other(world_, std::string(meta::kNodeIdBytes, 'o'));
  other.refusals.Note({.source = directory_, .at = {4, 0}, .directory = "run/tmp"});
  EXPECT_EQ(json::parse(*other.refusals.Describe(CallerOf(0), directory_))["at"], 5);
  other.refusals.Note({.source = directory_, .at = {6, 0}, .directory = "run/tmp"});
  EXPECT_EQ(json::parse(*other.refusals.Describe(CallerOf(0), directory_))["at"], 6);
}

// Another user's directories below may not be entered, or not be listed. What was renamed since, so that the owner
// could put something of his own in its place, and what has another name elsewhere, is not told either.
TEST_F(DescribedRefusalTest, TheOwnerIsToldOfNoFileThatHeCouldNotFind) {
  RefusedCommit refused{.source = directory_, .at = {100, 0}, .uid = kOwner, .directory = "run/tmp"};
  const std::pair<const char*, uint32_t> below[] = {
      {"open", 0755}, {"private", 0700}, {"unlisted", 0711}, {"group", 0750}};
  for (const auto& [name, mode] : below) {
    const InodeId parent = MakeAt(world_, directory_, name, S_IFDIR | mode, kOther);
    MakeAt(world_, parent, "file", S_IFREG | 0600, kOther);
    refused.causes.push_back({.file = std::string("run/tmp/") + name + "/file", .why = "lost"});
  }
  refused.causes.push_back({.file = "run/elsewhere", .why = "lost"});
  refused.causes.push_back({.file = "run/tmp/open/gone", .why = "lost"});
  refused.causes.push_back({.file = "run/tmp/open/file/no/directory", .why = "lost"});
  refused.causes.push_back({.file = "#12", .why = "lost"});
  refusing_.refusals.Note(refused);

  using Files = std::vector<std::string>;
  const Files all = {"open/file",      "private/file", "unlisted/file",          "group/file",
                     "/run/elsewhere", "open/gone",    "open/file/no/directory", "/#12"};
  EXPECT_EQ(FilesTold(CallerOf(0)), all);
  Caller owner = CallerOf(kOwner);
  EXPECT_EQ(FilesTold(owner), Files{"open/file"});
  EXPECT_EQ(Told(owner)["left_out"], 7);
  owner.is_in_group = [](uint32_t gid) { return gid == 0; };  // that of what is made here
  EXPECT_EQ(FilesTold(owner), (Files{"open/file", "group/file"}));
  EXPECT_EQ(FilesTold(CallerOf(kOther)), Files{}) << "does not own the directory";
}

TEST_F(DescribedRefusalTest, FitsAnExtendedAttribute) {
  RefusedCommit refused{.source = directory_, .at = {100, 0}, .host = std::string(64, '\1'), .directory = "run/tmp"};
  refused.causes.assign(RefusedCommit::kCausesMax, {"", "\1", std::string(400, '\1')});
  refusing_.refusals.Note(refused);
  EXPECT_LT(refusing_.refusals.Describe(CallerOf(0), directory_)->size(), size_t{64} << 10);
}

}  // namespace
}  // namespace cairnfs::fs
