#include "cluster_waits_fixture.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

using ClusterUnsavedTest = ClusterWaitsTest;

constexpr size_t kPiece = 512 * kKiB;  // of one write

Unsaved List(Host& host) {
  Unsaved unsaved;
  host.fs->maintenance().ListUnsaved({}, [&](const Unsaved& told) { unsaved = told; });
  return unsaved;
}

TEST_F(ClusterUnsavedTest, WhatLacksCopiesIsListedUntilItIsPublished) {
  MakeHosts(2);
  Host& writer = host(0);
  const InodeId step = writer.MakeDirectory("step.tmp");
  auto file = writer.Create("part", step);
  ASSERT_TRUE(writer.Fsync(file).ok());
  EXPECT_EQ(List(writer).bytes, 0u);
  ASSERT_TRUE(writer.Write(file, 0, TextOf(1, 50'000)).ok());
  writer.chunks->HangSyncs();
  std::promise<Status> synced;
  writer.fs->open_files().Fsync(file.handle, file.attr.inode, [&](const Status& status) { synced.set_value(status); });
  ASSERT_TRUE(Eventually([&] { return writer.chunks->hanging_syncs() > 0; }));
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1u);
  EXPECT_EQ(unsaved.files[0].path, "step.tmp/part");
  EXPECT_EQ(unsaved.files[0].bytes, 50'000u);
  EXPECT_FALSE(unsaved.has_names) << "names are durable once they are made";
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(synced.get_future().get().ok());
  EXPECT_EQ(List(writer).bytes, 0u);
  EXPECT_TRUE(writer.CloseFile(file).ok());
  EXPECT_TRUE(writer.Sync().ok());
  EXPECT_TRUE(List(writer).empty());
}

// It can never be published, and nothing is left that a sync would wait for.
TEST_F(ClusterUnsavedTest, WhatIsDroppedWithTheSessionIsListed) {
  MakeHosts(2);
  Host& writer = host(0);
  auto file = writer.Create("part");
  ASSERT_TRUE(writer.Write(file, 0, TextOf(1, 50'000)).ok());
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  LoseSession(0);
  ASSERT_TRUE(Eventually([&] { return List(writer).has_lost; }));
  EXPECT_TRUE(writer.Sync().ok());
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1u);
  EXPECT_EQ(unsaved.files[0].inode, file.attr.inode);
  EXPECT_EQ(unsaved.bytes, 50'000u);
}

FileSystem::Created WriteNew(Host& host, const std::string& name, InodeId directory, uint64_t bytes) {
  auto file = host.Create(name, directory);
  const std::string text = TextOf(static_cast<int>(bytes), bytes);
  for (size_t at = 0; at < bytes; at += kPiece) {
    EXPECT_TRUE(host.Write(file, at, std::string_view(text).substr(at, kPiece)).ok());
  }
  return file;
}
void WriteAndRelease(Host& host, const std::string& name, InodeId directory, uint64_t bytes) {
  host.fs->open_files().Release(WriteNew(host, name, directory, bytes).handle);
}

using Ended = std::shared_ptr<std::promise<Status>>;
Done<void> Tell(const Ended& ended) {
  return [ended](const Status& status) { ended->set_value(status); };
}
std::future<Status> WriteAndClose(Host& host, const std::string& name, InodeId directory, uint64_t bytes) {
  const auto file = WriteNew(host, name, directory, bytes);
  const auto ended = std::make_shared<std::promise<Status>>();
  host.fs->open_files().Flush({file.handle}, Tell(ended), {});
  return ended->get_future();
}
Status Commit(Host& host, const std::string& name = "step") {
  return Host::Await<void>([&](Done<void> done) {
    host.fs->names().Rename({kRootInode, name + ".tmp", kRootInode, name, meta::RenameMode::kReplace}, {},
                            std::move(done));
  });
}

TEST_F(ClusterUnsavedTest, BeforeAnEndWhatIsClosedIsPublishedInPortions) {
  MakeHosts(2);
  Host& writer = host(0);
  for (const char* name : {"a", "b", "c"}) WriteAndRelease(writer, name, kRootInode, 3 * kMiB);
  auto open = writer.Create("open");
  ASSERT_TRUE(writer.Write(open, 0, TextOf(1, 50'000)).ok());
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  const uint64_t syncs = writer.chunks->syncs;
  EXPECT_TRUE(writer.Sync().ok());
  EXPECT_EQ(writer.chunks->syncs - syncs, 3U) << "of two files, of one, and of the open one";
  EXPECT_EQ(writer.chunks->syncs_of_some, 2U);
  EXPECT_TRUE(List(writer).empty());
  EXPECT_TRUE(writer.CloseFile(open).ok());
}

TEST_F(ClusterUnsavedTest, BeforeAnEndACommitNeedsWhatLiesBelowItAlone) {
  MakeHosts(2);
  Host& writer = host(0);
  WriteAndRelease(writer, "beside", kRootInode, 50'000);
  const InodeId step = writer.MakeDirectory("step.tmp");
  WriteAndRelease(writer, "part", step, 60'000);
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  EXPECT_TRUE(Commit(writer).ok());
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1U);
  EXPECT_EQ(unsaved.files[0].path, "beside");
  EXPECT_TRUE(writer.Sync().ok());
  EXPECT_TRUE(List(writer).empty());
}

// The disk takes long for `big`; nobody is told of an error meanwhile.
TEST_F(ClusterUnsavedTest, BeforeAnEndARoundIsCutShortForACommit) {
  MakeHosts(2);
  Host& writer = host(0);
  const InodeId step = writer.MakeDirectory("step.tmp");
  writer.chunks->HangSyncs();
  writer.chunks->passing_chunks_max = 2;
  auto big = WriteAndClose(writer, "big", kRootInode, 9 * kMiB);
  ASSERT_TRUE(Eventually([&] { return writer.chunks->hanging_syncs() > 0; }));
  WriteAndRelease(writer, "part", step, 1000);
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  EXPECT_TRUE(Commit(writer).ok());
  EXPECT_EQ(writer.fs->names().GetAttr({}, step)->inode, step);
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1U);
  EXPECT_EQ(unsaved.files[0].path, "big");
  EXPECT_FALSE(IsReadyWithin(big, std::chrono::seconds(1)));
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(big.get().ok());
  EXPECT_TRUE(writer.Sync().ok());
}

// It becomes known only then that the store has not taken the file's record, since another host's came before.
TEST_F(ClusterUnsavedTest, BeforeAnEndACommitNeedsWhatTheRoundBeforeCouldNotPublish) {
  MakeHosts(2);
  Host& writer = host(0);
  const InodeId step = writer.MakeDirectory("step.tmp");
  writer.Put("part", TextOf(1, 10'000), step);
  auto file = writer.Open("part", {.read = true, .write = true}, step);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(writer.Write(*file, 10'000, "mine").ok());
  bool is_refused = false;
  writer.gate->refuse = [&is_refused](const kv::Transaction& transaction) -> std::optional<Error> {
    const auto& writes = transaction.writes;
    const auto is_record = [](const kv::KvWrite& write) { return write.key.starts_with('D') && write.value; };
    if (is_refused || std::none_of(writes.begin(), writes.end(), is_record)) return std::nullopt;
    is_refused = true;
    return Gate::Away();
  };
  EXPECT_FALSE(writer.CloseFile(*file).ok());
  EXPECT_TRUE(is_refused);
  auto other = host(1).Open("part", {.read = true, .write = true}, step);
  ASSERT_TRUE(other.ok());
  ASSERT_TRUE(host(1).Write(*other, 0, "other").ok());
  ASSERT_TRUE(host(1).CloseFile(*other).ok());
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  EXPECT_TRUE(Commit(writer).ok());
  EXPECT_TRUE(List(writer).empty());
  EXPECT_EQ(host(1).Cat("part", step).substr(10'000), "mine");
}

// It comes after all that was closed before it, as ever.
TEST_F(ClusterUnsavedTest, BeforeAnEndARenameOfAFileNeedsAllThatIsClosed) {
  MakeHosts(2);
  Host& writer = host(0);
  writer.chunks->HangSyncs();
  writer.chunks->passing_chunks_max = 2;
  auto big = WriteAndClose(writer, "big", kRootInode, 9 * kMiB);
  ASSERT_TRUE(Eventually([&] { return writer.chunks->hanging_syncs() > 0; }));
  WriteAndRelease(writer, "small", kRootInode, 1000);
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  const auto ended = std::make_shared<std::promise<Status>>();
  auto renamed = ended->get_future();
  writer.fs->names().Rename({kRootInode, "small", kRootInode, "renamed", meta::RenameMode::kReplace}, {}, Tell(ended));
  EXPECT_FALSE(IsReadyWithin(renamed, std::chrono::seconds(1)));
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(renamed.get().ok());
  EXPECT_TRUE(big.get().ok());
}

// The disk takes for ever for `big`.
TEST_F(ClusterUnsavedTest, BeforeAnEndAPortionOfWhatIsClosedComesBetweenCommits) {
  MakeHosts(2);
  Host& writer = host(0);
  writer.chunks->HangSyncs();
  writer.chunks->passing_chunks_max = 2;
  auto big = WriteAndClose(writer, "big", kRootInode, 9 * kMiB);
  WriteAndRelease(writer, "beside", kRootInode, 1000);
  for (const char* step : {"1", "2"}) {
    WriteAndRelease(writer, "part", writer.MakeDirectory(std::string(step) + ".tmp"), 1001);
  }
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  EXPECT_TRUE(Commit(writer, "1").ok());
  EXPECT_TRUE(Commit(writer, "2").ok());
  const Unsaved unsaved = List(writer);
  ASSERT_EQ(unsaved.files.size(), 1U);
  EXPECT_EQ(unsaved.files[0].path, "big");
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(big.get().ok());
}

TEST_F(ClusterUnsavedTest, BeforeAnEndACloseWaitsForNoLargerFile) {
  MakeHosts(2);
  Host& writer = host(0);
  writer.chunks->HangSyncs();
  writer.chunks->passing_chunks_max = 2;
  auto big = WriteAndClose(writer, "big", kRootInode, 9 * kMiB);
  auto small = WriteAndClose(writer, "small", kRootInode, 1000);
  ASSERT_TRUE(Eventually([&] { return writer.chunks->hanging_syncs() > 0; }));
  writer.fs->EndBy(Clock::Now() + std::chrono::hours(1));
  EXPECT_TRUE(small.get().ok());
  EXPECT_FALSE(IsReadyWithin(big, std::chrono::seconds(1)));
  writer.chunks->LetSyncsGo();
  EXPECT_TRUE(big.get().ok());
}

}  // namespace
}  // namespace cairnfs::fs
