// Quotas over several hosts: what outlives the session of a host, and what a commit says of bytes that were refused.
#include "cluster_fixture.h"
#include "fs/quota_settings.h"
#include "fs/trash.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr uint64_t kLimit = 256 * kKiB;

class ClusterQuotasTest : public ClusterTest {
 protected:
  void SetUp() override {
    ClusterTest::SetUp();
    options_.trash_ms = 3'600'000;
    options_.metadata_wait_ms = 10'000;
    MakeHosts(2);
    run_ = host(0).MakeDirectory("run");
    step_ = host(0).MakeDirectory("step.tmp", run_);
    const Status set =
        host(0).fs->quotas().Set({}, {.directory = run_, .logical_bytes = kLimit}, [](uint64_t) { return true; });
    ASSERT_TRUE(set.ok()) << set.error().message;
  }
  // How many bytes the host accepts, unpublished.
  uint64_t Fill(Host& by, const FileSystem::Created& file, uint64_t size_max = 2 * kLimit) {
    const std::string piece = TextOf(size_max, 16 * kKiB);
    for (uint64_t at = 0; at < size_max; at += piece.size()) {
      const Status written = by.Write(file, at, piece);
      if (written.ok()) continue;
      EXPECT_EQ(written.error().code, ErrorCode::kQuotaExceeded) << written.error().message;
      return at;
    }
    return size_max;
  }

  static uint64_t Used(Host& by) {
    const auto all = by.fs->quotas().All({});
    return all.size() == 1 ? all[0].used.logical : UINT64_MAX;
  }

  InodeId run_, step_;
};

TEST_F(ClusterQuotasTest, StoresThroughAMappingThatItRefusesRefuseTheCommit) {
  auto mapped = host(0).Create("mapped", step_);
  ASSERT_TRUE(host(0).Truncate(mapped.attr.inode, kPageBytes, mapped.handle).ok());
  host(0).Put("full", TextOf(1, kLimit), run_);
  FileSystem::WriteRequest pages = host(0).RequestOf(mapped, 0, TextOf(2, kPageBytes));
  pages.from_page_cache = true;
  EXPECT_EQ(host(0).Send(std::move(pages)).error().code, ErrorCode::kQuotaExceeded);
  EXPECT_FALSE(host(0).CloseFile(mapped).ok());
  EXPECT_FALSE(host(0).Rename(run_, "step.tmp", run_, "step").ok());
  ASSERT_TRUE(host(0).Unlink("full", run_).ok());
  host(0).fs->names().Forget(mapped.attr.inode, 1);
  auto again = host(0).Open("mapped", {.read = true, .write = true}, step_);
  ASSERT_TRUE(again.ok());
  ASSERT_TRUE(Eventually([&] { return host(0).Write(*again, 0, TextOf(2, kPageBytes)).ok(); }));
  static_cast<void>(host(0).CloseFile(*again).ok());  // tells of the loss, perhaps
  EXPECT_TRUE(host(0).Rename(run_, "step.tmp", run_, "step").ok()) << "what was lost is there again";
}

TEST_F(ClusterQuotasTest, WhatAHostMayAcceptEndsWithItsSession) {
  auto before = host(0).Create("before", run_);
  ASSERT_TRUE(host(0).Write(before, 0, "x").ok());  // takes a share, of which most is left
  LoseSession(0);
  auto other = host(1).Create("other", run_), after = host(0).Create("after", run_);
  EXPECT_EQ(Fill(host(1), other), kLimit);
  EXPECT_EQ(Fill(host(0), after), 0u);
  EXPECT_TRUE(host(1).CloseFile(other).ok());
  for (const auto& file : {before, after}) host(0).fs->open_files().Release(file.handle);
}

// Whoever has it open need not look its name up again.
TEST_F(ClusterQuotasTest, WhatAnotherHostRestoredCountsWhenItIsWritten) {
  auto file = host(0).Create("a", run_);
  ASSERT_EQ(Fill(host(0), file, kLimit / 4), kLimit / 4);
  ASSERT_TRUE(host(0).Fsync(file).ok());
  ASSERT_TRUE(host(0).Unlink("a", run_).ok());
  ASSERT_TRUE(host(0).Write(file, 0, "written in the trash").ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(Eventually([&] { return Used(host(1)) == 0; }));
  const auto restored = host(1).fs->names().Restore({}, {}, file.attr.inode, {});
  ASSERT_TRUE(restored.ok()) << restored.error().message;
  EXPECT_TRUE(Eventually([&] { return Used(host(0)) == kLimit / 4; }));
  ASSERT_TRUE(host(0).Write(file, kLimit / 4, TextOf(3, 16 * kKiB)).ok());
  ASSERT_TRUE(host(0).Fsync(file).ok());
  EXPECT_TRUE(Eventually([&] { return Used(host(1)) == kLimit / 4 + 16 * kKiB; }));
  EXPECT_TRUE(host(0).CloseFile(file).ok());
}

TEST_F(ClusterQuotasTest, HostsThatWriteAtOnceStopAtTheLimit) {
  auto first = host(0).Create("first", run_), second = host(1).Create("second", run_);
  uint64_t accepted = 0;
  std::thread beside([&] { accepted = Fill(host(1), second); });
  const uint64_t of_first = Fill(host(0), first);
  beside.join();
  EXPECT_LE(of_first + accepted, kLimit);
  EXPECT_GE(of_first + accepted, kLimit / 100 * 99);
  EXPECT_TRUE(host(0).CloseFile(first).ok());
  EXPECT_TRUE(host(1).CloseFile(second).ok());
}

// What is found for one is taken by others: nobody is refused for that.
TEST_F(ClusterQuotasTest, ManyWritersOfHostsStopAtTheLimit) {
  constexpr uint64_t kLarge = 8 * kMiB, kPiece = 16 * kKiB;
  ASSERT_TRUE(
      host(0).fs->quotas().Set({}, {.directory = run_, .logical_bytes = kLarge}, [](uint64_t) { return true; }).ok());
  std::atomic<uint64_t> accepted{0}, accepted_at_first_refusal{0};
  std::vector<std::thread> writers;
  for (uint64_t i = 0; i < 16; i++) {
    writers.emplace_back([&, i] {
      Host& by = host(i % 2);
      auto file = by.Create("of" + std::to_string(i), run_);
      const std::string piece = TextOf(i, kPiece);
      for (uint64_t at = 0; by.Write(file, at, piece).ok(); at += kPiece) accepted += kPiece;
      uint64_t none = 0;
      accepted_at_first_refusal.compare_exchange_strong(none, accepted);
      EXPECT_TRUE(by.CloseFile(file).ok());
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_LE(accepted, kLarge);
  EXPECT_GE(accepted, kLarge / 100 * 99);
  // Others may have taken what they are about to write.
  EXPECT_GE(accepted_at_first_refusal, kLarge / 100 * 90);
}

TEST_F(ClusterQuotasTest, AStoreThatIsAwayIsNoUsedUpQuota) {
  auto file = host(0).Create("file", run_);
  host(0).quota_gate->shut = true;
  const Status away = host(0).Write(file, 0, TextOf(1, 16 * kKiB));
  ASSERT_FALSE(away.ok());
  EXPECT_EQ(away.error().code, ErrorCode::kUnavailable) << away.error().message;
  FileSystem::WriteRequest pages = host(0).RequestOf(file, 0, TextOf(2, kPageBytes));
  pages.from_page_cache = true;
  EXPECT_TRUE(host(0).Send(std::move(pages)).ok()) << "the kernel would drop the page";
  std::thread back([&] {
    Clock::SleepFor(std::chrono::seconds(2));
    host(0).quota_gate->shut = false;
  });
  EXPECT_TRUE(host(0).Write(file, 0, TextOf(3, 16 * kKiB)).ok()) << "it waits for the store";
  back.join();
  EXPECT_TRUE(host(0).CloseFile(file).ok());
  EXPECT_TRUE(Eventually([&] { return Used(host(1)) == 16 * kKiB; }));
}

// Files before it are under way then.
TEST_F(ClusterQuotasTest, AWalkThatFailsAwaitsWhatItBegan) {
  const InodeId other = host(0).MakeDirectory("other");
  for (int i = 0; i < 8; i++) host(0).Put("file" + std::to_string(i), TextOf(1, 16 * kKiB), other);
  std::atomic<int> moved{0};
  host(0).gate->refuse = [&](const kv::Transaction& transaction) -> std::optional<Error> {
    const bool moves = transaction.may_lengthen && transaction.writes.size() == 1 &&
                       transaction.writes[0].key != meta::InodeKey(other) &&
                       meta::InodeOfKey(transaction.writes[0].key);
    if (!moves || ++moved < 4) return {};
    return MakeError(ErrorCode::kIo, "the test refuses it");
  };
  const auto set = [&] {
    return host(0).fs->quotas().Set({}, {.directory = other, .logical_bytes = kLimit}, [](uint64_t) { return true; });
  };
  EXPECT_EQ(set().error().code, ErrorCode::kIo);
  EXPECT_EQ(moved, 4);
  host(0).gate->refuse = nullptr;
  ASSERT_TRUE(set().ok());
  for (const auto& report : host(0).fs->quotas().All({})) {
    if (report.directory != other) continue;
    EXPECT_EQ(report.used.logical, 8 * 16 * kKiB);
  }
}

// One that cannot go holds up no other.
TEST_F(ClusterQuotasTest, ADirectoryThatCannotBeEmptiedHoldsUpNoOther) {
  std::vector<InodeId> steps;
  for (const std::string name : {"a", "b"}) {
    const std::string going = retention::GoingName("abcdefghijklmno" + name, name);
    steps.push_back(host(0).MakeDirectory(going, run_));
    host(0).Put("file", TextOf(1, 16 * kKiB), steps.back());
    ASSERT_TRUE(host(0).fs->names().Rmdir({}, run_, going).ok());
  }
  host(0).gate->refuse = [&](const kv::Transaction& transaction) -> std::optional<Error> {
    const std::string file = meta::DentryKey(steps[0], "file");
    for (const kv::KvWrite& write : transaction.writes) {
      if (write.key == file) return MakeError(ErrorCode::kTooLarge, "the test refuses it");
    }
    return {};
  };
  EXPECT_TRUE(host(0).fs->trash().EmptyOldest());
  EXPECT_TRUE(Eventually([&] { return !HasKey(meta::DentryKey(steps[1], "file")); }));
  EXPECT_TRUE(HasKey(meta::DentryKey(steps[0], "file")));
  host(0).fs->trash().Stop();
  host(0).gate->refuse = nullptr;
}

}  // namespace
}  // namespace cairnfs::fs
