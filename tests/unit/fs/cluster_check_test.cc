// The check of a host in a cluster: what another node's copy replaced is told apart from what is damaged.
#include "chunking/digest.h"
#include "cluster_fixture.h"
#include "fs/findings.h"
#include "fs/maintenance.h"

namespace cairnfs::fs {
namespace {

class ClusterCheckTest : public ClusterTest {
 protected:
  // Flips a bit of stored bytes of the host.
  void Damage(Host& of, std::string_view bytes) {
    auto& disk = dynamic_cast<io::MemoryDisk&>(*of.disk);
    auto names = disk.List();
    ASSERT_TRUE(names.ok());
    for (const std::string& name : *names) {
      auto contents = disk.Contents(name);
      const size_t at = contents ? contents->find(bytes) : std::string::npos;
      if (at == std::string::npos) continue;
      ASSERT_TRUE(disk.FlipBit(name, at * 8));
      of.local->DropCache();
      return;
    }
    FAIL() << "the bytes are not stored";
  }
  // As from another node.
  static void Replace(Host& of, const std::string& bytes) {
    io::Slice slice;
    slice.data = reinterpret_cast<const std::byte*>(bytes.data());
    slice.size = bytes.size();
    auto put = of.local->Put(chunking::ComputeDigest(AsBytes(bytes)), {&slice, 1});
    ASSERT_TRUE(put.ok());
    EXPECT_TRUE(put->is_new);
  }
  static CheckReport Check(Host& at) {
    auto report =
        Host::Await<CheckReport>([&](Done<CheckReport> done) { at.fs->maintenance().Check({}, std::move(done)); });
    EXPECT_TRUE(report.ok());
    return report.ok() ? *std::move(report) : CheckReport();
  }
  static bool Has(const std::string& text, std::string_view word) { return text.find(word) != std::string::npos; }
};

TEST_F(ClusterCheckTest, WhatAnotherNodeReplacedIsNoProblem) {
  MakeHosts(1);
  const std::string kept = TextOf(1, 3000), lost = TextOf(2, 3000);  // a chunk each
  host(0).Put("kept", kept);
  host(0).Put("lost", lost);
  ASSERT_TRUE(host(0).Sync().ok());
  Damage(host(0), std::string_view(kept).substr(100, 64));
  Damage(host(0), std::string_view(lost).substr(100, 64));
  host(0).chunks->heal = [&] { Replace(host(0), kept); };
  const CheckReport report = Check(host(0));
  ASSERT_EQ(report.repaired.size(), 1U);
  EXPECT_EQ(report.repaired_count, 1U);
  EXPECT_TRUE(Has(report.repaired[0], "; replaced by another node's copy; it is part of kept ")) << report.repaired[0];
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_EQ(report.problem_count, 1U);
  EXPECT_TRUE(Has(report.problems[0], "it is part of lost ")) << report.problems[0];
  EXPECT_EQ(report.damaged_files, std::vector<std::string>{"lost"});
  EXPECT_EQ(report.damaged_file_count, 1U);
}

// Of which the tables on the disk are damaged.
class DamagedEngine final : public kv::KvEngine {
 public:
  Result<std::optional<std::string>> Get(std::string_view /*key*/, const kv::EngineSnapshot* /*snapshot*/) override {
    return std::optional<std::string>();
  }
  Status Scan(std::string_view /*begin*/, std::string_view /*end*/, const kv::EngineSnapshot* /*snapshot*/,
              const std::function<bool(std::string_view, std::string_view)>& /*visit*/) override {
    return {};
  }
  Status Write(const std::vector<kv::EngineWrite>& /*writes*/, kv::WriteMode /*mode*/) override { return {}; }
  std::unique_ptr<kv::EngineSnapshot> GetSnapshot() override { return nullptr; }
  Status Verify(const Context& /*context*/) override {
    return MakeError(ErrorCode::kCorrupt, "000007.sst fails its checksum");
  }
};

TEST_F(ClusterCheckTest, TheHostThatServesTheNamesReadsTheirTables) {
  MakeHosts(2);
  DamagedEngine damaged;
  ASSERT_TRUE(host(1).fs->Stop().ok());
  host(1).fs.reset();
  host(1).served_engine = &damaged;
  ASSERT_NO_FATAL_FAILURE(host(1).Start());
  EXPECT_EQ(Check(host(0)).problem_count, 0U);
  EXPECT_EQ(Check(host(1)).problems, std::vector<std::string>{"000007.sst fails its checksum"});
  ASSERT_TRUE(host(1).fs->Stop().ok());
  host(1).fs.reset();
}

// As of a segment that cannot be read.
TEST(FindingsTest, AProblemOfWhichAPartWasReplacedHurtsTheOtherFilesAlone) {
  Digest kept, lost;
  kept.bytes[0] = std::byte{1};
  lost.bytes[0] = std::byte{2};
  Findings findings;
  findings.AddChunks("segment-7: gone", {kept, lost});
  findings.NoteRepaired(kept);
  findings.NoteFile(InodeId{1}, {kept});
  findings.NoteFile(InodeId{2}, {kept, lost});
  CheckReport report;
  findings.Report({}, report);
  EXPECT_EQ(report.repaired_count, 0U);
  ASSERT_EQ(report.problem_count, 1U);
  EXPECT_EQ(report.problems[0],
            "segment-7: gone; 1 of 2 chunks are replaced by other nodes' copies; it is part of inode 2");
  EXPECT_EQ(report.damaged_files, std::vector<std::string>{"#2"});
}

}  // namespace
}  // namespace cairnfs::fs
