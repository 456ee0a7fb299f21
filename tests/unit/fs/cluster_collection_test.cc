// Collections over several hosts: what no record names goes on every host, and nothing else does.
#include "cluster/epochs.h"
#include "cluster/held_dumps.h"
#include "cluster_fixture.h"

namespace cairnfs::fs {
namespace {

class ClusterCollectionTest : public ClusterTest {
 protected:
  uint64_t ChunksOn(size_t index) { return host(index).local->Stats().chunk_count; }
  Result<cluster::EpochState> State() { return cluster::Epochs(*host(0).fenced, *host(0).membership).Read({}); }
  // What the file took is dead then.
  void PutAndRemove(Host& by, const std::string& text) {
    const InodeId gone = by.Put("gone", text);
    ASSERT_TRUE(by.Unlink("gone").ok());
    by.fs->names().Forget(gone, 1);
    SettleOrphans(by);
  }
  // All of these hosts have taken their part in the last collection.
  void AwaitOver() {
    ASSERT_TRUE(Eventually([&] {
      const auto state = State();
      return state.ok() && state->IsOver();
    }));
  }
};

TEST_F(ClusterCollectionTest, FreesOnEachHostWhatNoRecordNames) {
  MakeHosts(3);
  const std::string kept = TextOf(1, 200'000);
  for (size_t i = 0; i < 3; i++) {
    host(i).Put("kept" + std::to_string(i), kept.substr(i * 7));
    const InodeId gone = host(i).Put("gone" + std::to_string(i), TextOf(10 + i, 300'000));
    ASSERT_GT(ChunksOn(i), 10U);
    // Another host removes it.
    ASSERT_TRUE(host((i + 1) % 3).Unlink("gone" + std::to_string(i)).ok());
    host(i).fs->names().Forget(gone, 1);
    SettleOrphans(host((i + 1) % 3));
  }
  std::vector<uint64_t> before;
  for (size_t i = 0; i < 3; i++) before.push_back(ChunksOn(i));
  const auto collected = host(1).Collect();
  ASSERT_TRUE(collected.ok()) << collected.error().message;
  const uint64_t freed = host(1).fs->maintenance().GetCollection().chunks_freed;
  uint64_t left = 0, had = 0;
  for (size_t i = 0; i < 3; i++) {
    EXPECT_LT(ChunksOn(i) + 8, before[i]) << i;
    left += ChunksOn(i);
    had += before[i];
    EXPECT_EQ(host((i + 1) % 3).Cat("kept" + std::to_string(i)), kept.substr(i * 7));
  }
  EXPECT_EQ(freed, had - left);
  // Nothing is left to free.
  ASSERT_TRUE(host(2).Collect().ok());
  EXPECT_EQ(host(2).fs->maintenance().GetCollection().chunks_freed, 0U);
}

// Each host counts its own chunks, to the byte, whoever has the files; and frees none.
TEST_F(ClusterCollectionTest, CountsOnEachHostWhatRecordsName) {
  MakeHosts(2);
  const auto count = [&](size_t index) {
    const auto counted =
        Host::Await<LiveCount>([&](Done<LiveCount> done) { host(index).fs->maintenance().CountLive(std::move(done)); });
    EXPECT_TRUE(counted.ok());
    return counted.ok() ? counted->totals : store::LiveTotals();
  };
  host(0).Put("kept", TextOf(1, 200'000));
  PutAndRemove(host(0), TextOf(2, 300'000));
  std::vector<store::LiveTotals> before;
  for (size_t i = 0; i < 2; i++) {
    before.push_back(count(i));
    EXPECT_EQ(before[i].live_bytes + before[i].unreferenced_bytes, host(i).local->Stats().unique_bytes);
    EXPECT_EQ(before[i].live_chunks + before[i].unreferenced_chunks, ChunksOn(i));
  }
  EXPECT_GT(before[0].unreferenced_bytes, 0U);
  EXPECT_GT(before[0].live_bytes, 0U);
  ASSERT_TRUE(host(1).Collect().ok());
  AwaitOver();
  for (size_t i = 0; i < 2; i++) {
    EXPECT_EQ(host(i).local->Stats().unique_bytes, before[i].live_bytes) << i;
    EXPECT_EQ(count(i).unreferenced_bytes, 0U) << i;
  }
  EXPECT_EQ(host(1).Cat("kept"), TextOf(1, 200'000));
}

TEST_F(ClusterCollectionTest, BeginsByItselfOnceEnoughWasDeleted) {
  options_.collect_after_bytes = 100'000;
  options_.collect_delay_ms = 1;
  MakeHosts(2);
  host(0).Put("kept", TextOf(1, 50'000));
  const InodeId gone = host(0).Put("gone", TextOf(2, 300'000));
  const uint64_t before = ChunksOn(0);
  // By a host that has never read it.
  ASSERT_TRUE(host(1).Unlink("gone").ok());
  host(0).fs->names().Forget(gone, 1);
  EXPECT_TRUE(Eventually([&] { return ChunksOn(0) < before; }));
  EXPECT_EQ(host(1).Cat("kept"), TextOf(1, 50'000));
}

TEST_F(ClusterCollectionTest, KeepsWhatIsNotPublishedYet) {
  MakeHosts(2);
  const std::string text = TextOf(2, 400'000);
  auto file = host(1).Create("open");
  ASSERT_TRUE(host(1).Write(file, 0, text).ok());
  for (int times = 0; times < 3; times++) ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_EQ(host(1).chunks->epochs_begun, 3U);
  ASSERT_TRUE(host(1).CloseFile(file).ok());
  EXPECT_EQ(host(0).Cat("open"), text);
}

// The record is made, and an epoch begins before it is published: what it names is asked for anew.
TEST_F(ClusterCollectionTest, APublishOfAnEarlierEpochIsTriedAgain) {
  MakeHosts(2);
  ASSERT_TRUE(host(0).Collect().ok());
  const std::string text = TextOf(3, 100'000);
  auto file = host(0).Create("file");
  ASSERT_TRUE(host(0).Write(file, 0, text).ok());
  host(0).chunks->before_sync = [&] { EXPECT_TRUE(host(1).Collect().ok()); };
  const uint64_t syncs = host(0).chunks->syncs;
  ASSERT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_EQ(host(0).chunks->syncs, syncs + 2) << "one for each attempt";
  EXPECT_EQ(host(0).chunks->epochs_begun, 2U);
  EXPECT_EQ(host(1).Cat("file"), text);
}

// Others free nothing that a host has accepted and cannot find any more at this moment.
TEST_F(ClusterCollectionTest, NothingIsFreedWhileAHostIsNotSafe) {
  MakeHosts(2);
  PutAndRemove(host(0), TextOf(4, 200'000));
  const uint64_t before = ChunksOn(0);
  host(1).chunks->is_unsafe = true;
  const auto refused = host(0).Collect();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().message, "host host2: nobody has it");
  EXPECT_EQ(ChunksOn(0), before);
  host(1).chunks->is_unsafe = false;
  ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_LT(ChunksOn(0), before);
}

// A reader that has the file open, and its old recipe in memory.
TEST_F(ClusterCollectionTest, WhoHasAReplacedFileOpenReadsTheNewOne) {
  MakeHosts(2);
  const std::string old_text = TextOf(5, 150'000), new_text = TextOf(6, 150'000);
  const InodeId id = host(0).Put("file", old_text);
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  ASSERT_EQ(*host(1).Read(*reader, 0, 150'000), old_text);
  auto writer = host(0).Open("file");
  ASSERT_TRUE(writer.ok());
  ASSERT_TRUE(host(0).Truncate(id, 0, writer->handle).ok());
  ASSERT_TRUE(host(0).Write(*writer, 0, new_text).ok());
  ASSERT_TRUE(host(0).CloseFile(*writer).ok());
  ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_EQ(host(0).Cat("file"), new_text);
  const auto read = host(1).Read(*reader, 0, 150'000);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, new_text);
}

// A recipe of several pages, of which few are in memory: those that the old record named are gone.
class ReplacedTree : public ClusterCollectionTest {
 protected:
  static constexpr uint64_t kFar = 3ULL << 30;  // a page of the recipe that is not loaded by an open
  void SetUp() override {
    ClusterCollectionTest::SetUp();
    MakeHosts(2);
    auto file = host(0).Create("file");
    for (uint64_t i = 0; i < 100; i++) {
      ASSERT_TRUE(host(0).Write(file, i * (kFar / 50), TextOf(i, 5000)).ok());
    }
    ASSERT_TRUE(host(0).CloseFile(file).ok());
    id_ = file.attr.inode;
    auto opened = host(1).Open("file");
    ASSERT_TRUE(opened.ok());
    opened_ = *opened;
  }
  // By host 0, and what the record before named is freed.
  void Replace() {
    auto file = host(0).Open("file");
    ASSERT_TRUE(file.ok());
    for (uint64_t i = 0; i < 100; i++) {
      ASSERT_TRUE(host(0).Write(*file, i * (kFar / 50) + 100, TextOf(1000 + i, 5000)).ok());
    }
    ASSERT_TRUE(host(0).CloseFile(*file).ok());
    ASSERT_TRUE(host(0).Collect().ok());
    for (size_t i = 0; i < 2; i++) host(i).local->DropCache();
  }
  InodeId id_;
  FileSystem::Created opened_;
};

TEST_F(ReplacedTree, IsReadAsItIsNow) {
  Replace();
  const auto read = host(1).Read(opened_, 10 * (kFar / 50) + 100, 5000);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(*read, TextOf(1010, 5000));
}

// Bytes that were accepted before, and some that come after.
TEST_F(ReplacedTree, TakesWhatAnotherHostWrites) {
  ASSERT_TRUE(host(1).Write(opened_, 20 * (kFar / 50), "before").ok());
  Replace();
  ASSERT_TRUE(host(1).Write(opened_, 70 * (kFar / 50), "after").ok());
  const Status closed = host(1).CloseFile(opened_);
  ASSERT_TRUE(closed.ok()) << closed.error().message;
  auto file = host(0).Open("file", {.read = true});
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*host(0).Read(*file, 20 * (kFar / 50), 6), "before");
  EXPECT_EQ(*host(0).Read(*file, 70 * (kFar / 50), 5), "after");
  EXPECT_EQ(*host(0).Read(*file, 20 * (kFar / 50) + 100, 5000), TextOf(1020, 5000));
  ASSERT_TRUE(host(0).CloseFile(*file).ok());
}

// One that another host removed, and that a process here has open, is there for as long as it is open.
TEST_F(ClusterCollectionTest, KeepsADeletedFileThatIsOpen) {
  MakeHosts(2);
  const std::string text = TextOf(7, 150'000);
  host(0).Put("file", text);
  auto reader = host(1).Open("file", {.read = true});
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(host(0).Unlink("file").ok());
  ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_EQ(*host(1).Read(*reader, 0, 150'000), text);
}

// A host that joined after the epoch was put knows nothing of who counts on its chunks, and frees none of them.
TEST_F(ClusterCollectionTest, WhoJoinsLaterFreesNothing) {
  MakeHosts(2);
  ASSERT_TRUE(host(0).Collect().ok());
  AddHost(3);
  AwaitOver();
  const auto state = State();
  ASSERT_TRUE(state.ok());
  const auto part = state->parts.find(host(2).membership->self());
  ASSERT_NE(part, state->parts.end());
  EXPECT_EQ(part->second.phase, cluster::CollectionPart::Phase::kDone);
  EXPECT_EQ(part->second.chunks_freed, 0U);
  // It takes its part in the next one.
  ASSERT_TRUE(host(2).Collect().ok());
}

TEST_F(ClusterCollectionTest, AHostThatLostItsSessionTakesPartInTheNext) {
  MakeHosts(2);
  ASSERT_TRUE(host(0).Collect().ok());
  LoseSession(1);
  PutAndRemove(host(1), TextOf(8, 200'000));
  const uint64_t before = ChunksOn(1);
  ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_LT(ChunksOn(1), before);
}

TEST_F(ClusterCollectionTest, NothingIsCollectedWhileItIsHeldUp) {
  MakeHosts(2);
  cluster::Epochs epochs(*host(0).fenced, *host(0).membership);
  ASSERT_TRUE(epochs.Hold({}, "the test says so").ok());
  const auto refused = host(1).Collect();
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_NE(refused.error().message.find("the test says so"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("--after-restore"), std::string::npos) << refused.error().message;
  ASSERT_TRUE(host(1).fs->maintenance().AllowCollections().ok());
  EXPECT_TRUE(host(1).Collect().ok());
}

TEST_F(ClusterCollectionTest, WhatDoesNotDecodeIsSaidAndCollectsNothing) {
  MakeHosts(2);
  ASSERT_TRUE(host(0).Collect().ok());
  AwaitOver();
  for (const std::string& key : {std::string("WA"), cluster::Epochs::EpochKey()}) {
    const auto entry = store_->Get({}, key);
    ASSERT_TRUE(entry.ok() && entry->has_value());
    const std::string value = (*entry)->value;
    for (size_t size = 0; size < value.size(); size++) {
      ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(key, value.substr(0, size))).ok());
      EXPECT_EQ(State().error().code, ErrorCode::kCorrupt) << key << " " << size;
    }
    EXPECT_EQ(host(0).Collect().error().code, ErrorCode::kCorrupt);
    ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(key, value)).ok());
  }
}

// A dump has the record; the file goes, and its chunks stay until the hold is released.
TEST_F(ClusterCollectionTest, KeepsWhatAHeldDumpNames) {
  MakeHosts(2);
  const InodeId gone = host(0).Put("gone", TextOf(2, 300'000));
  const uint64_t before = ChunksOn(0);
  uint64_t id = 0;
  {
    cluster::HoldInTheMaking made(*host(1).fenced, *host(1).membership);
    ASSERT_TRUE(made.Begin({}, "host2").ok());
    const auto record = store_->Get({}, meta::FileKey(gone));
    ASSERT_TRUE(record.ok() && record->has_value());
    ASSERT_TRUE(made.Add({}, (*record)->key, (*record)->value).ok());
    const auto held = made.Finish({}, std::chrono::hours(1));
    ASSERT_TRUE(held.ok());
    id = held->id;
  }
  ASSERT_TRUE(host(0).Unlink("gone").ok());
  host(0).fs->names().Forget(gone, 1);
  SettleOrphans(host(0));
  ASSERT_TRUE(host(0).Collect().ok());
  EXPECT_EQ(ChunksOn(0), before);
  ASSERT_TRUE(cluster::ReleaseHold({}, *host(0).fenced, id).ok());
  ASSERT_TRUE(host(1).Collect().ok());
  EXPECT_LT(ChunksOn(0), before);
}

// As after a backup was restored while all hosts were down.
TEST_F(ClusterCollectionTest, AnOlderAnnouncementThanRememberedHoldsThemUp) {
  MakeHosts(2);
  ASSERT_TRUE(host(0).Collect().ok());
  AwaitOver();
  const auto old = store_->Get({}, "WA");
  ASSERT_TRUE(old.ok() && old->has_value());
  Clock::SleepFor(std::chrono::milliseconds(1));
  ASSERT_TRUE(host(0).Collect().ok());
  AwaitOver();
  host(1).Close();
  ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put("WA", (*old)->value)).ok());
  before_start_ = [&](Host& made) {  // on the same disk
    const auto remembered = host(1).engine->Get("WA");
    ASSERT_TRUE(remembered.ok() && remembered->has_value());
    ASSERT_TRUE(made.engine->Write({{"WA", **remembered}}, kv::WriteMode::kSynced).ok());
  };
  AddHost(3);
  EXPECT_TRUE(Eventually([&] { return HasKey("WH"); }));
  EXPECT_FALSE(host(2).Collect().ok());
  ASSERT_TRUE(host(2).fs->maintenance().AllowCollections().ok());
  EXPECT_TRUE(host(2).Collect().ok());
}

}  // namespace
}  // namespace cairnfs::fs
