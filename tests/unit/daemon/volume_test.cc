#include "daemon/volume.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "daemon/cluster_volume.h"
#include "daemon/offline_check.h"

namespace cairnfs::daemon {
namespace {

class VolumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-volume-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.pool_size = 32 * kMiB;
    config_.reserve = 8 * kMiB;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  fs::FsOptions Options() {
    auto directory = DataDirectory::Open({folder_ + "/data", true, "testing"});
    EXPECT_TRUE(directory.ok()) << directory.error().message;
    auto volume = Volume::Open(**directory, config_);
    EXPECT_TRUE(volume.ok()) << volume.error().message;
    return (*volume)->FileSystemOptions();
  }

  std::string folder_;
  Config config_;
};

// With none at all, the collector would run without a pause.
TEST_F(VolumeTest, NoCollectAfterIsTheDefault) {
  config_.collect_after = 0;
  EXPECT_EQ(Options().collect_after_bytes, fs::FsOptions().collect_after_bytes);
  config_.collect_after = 5;
  EXPECT_EQ(Options().collect_after_bytes, 5U);
}

// Said once, when the filesystem is made; who says nothing takes what there is.
TEST_F(VolumeTest, DedupIsAsTheFilesystemWasMade) {
  auto open = [&](const std::string& data, const std::string& dedup) -> Result<meta::Dedup> {
    config_.dedup = dedup;
    auto directory = DataDirectory::Open({folder_ + "/" + data, true, "testing"});
    EXPECT_TRUE(directory.ok()) << directory.error().message;
    CAIRNFS_ASSIGN_OR_RETURN(auto volume, Volume::Open(**directory, config_));
    EXPECT_EQ(volume->Parts().dedup, volume->dedup());
    return volume->dedup();
  };
  const struct {
    const char *data, *made, *contrary;
    meta::Dedup dedup;
  } cases[] = {{"silent", "", "owner", meta::Dedup::kMount},
               {"mount", "mount", "owner", meta::Dedup::kMount},
               {"owner", "owner", "mount", meta::Dedup::kOwner}};
  for (const auto& each : cases) {
    for (const std::string again : {each.made, each.made, ""}) {
      auto opened = open(each.data, again);
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      EXPECT_EQ(*opened, each.dedup) << each.data;
    }
    auto refused = open(each.data, each.contrary);
    ASSERT_FALSE(refused.ok()) << each.data;
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().message.find("which cannot be changed"), std::string::npos) << refused.error().message;
  }
}

TEST_F(VolumeTest, MetadataThatIsGoneIsDamage) {
  Options();
  const std::string metadata = folder_ + "/data/metadata";
  for (const auto& entry : std::filesystem::directory_iterator(metadata)) std::filesystem::remove_all(entry.path());
  const std::string advice = "no database in " + std::filesystem::canonical(metadata).string() +
                             "; there was one, and its files are gone: restore the data directory from a copy";
  {
    auto directory = DataDirectory::Open({folder_ + "/data", true, "testing"});
    ASSERT_TRUE(directory.ok()) << directory.error().message;
    auto volume = Volume::Open(**directory, config_);
    ASSERT_FALSE(volume.ok());
    EXPECT_EQ(volume.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(volume.error().message.find(advice), std::string::npos) << volume.error().message;
  }
  config_.data = folder_ + "/data";
  for (bool rebuild : {false, true}) {
    auto checked = CheckOffline({config_, rebuild});
    ASSERT_FALSE(checked.ok());
    EXPECT_EQ(checked.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(checked.error().message.find(advice), std::string::npos) << checked.error().message;
  }
  EXPECT_TRUE(std::filesystem::is_empty(metadata));
}

TEST_F(VolumeTest, MetadataThatWasNeverMadeIsMade) {
  const pid_t child = fork();
  if (child == 0) _exit(DataDirectory::Open({folder_ + "/data", true, "testing"}).value().release() == nullptr ? 1 : 0);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(std::filesystem::exists(folder_ + "/data/format.making")) << "as a crash leaves it";
  Options();
}

TEST(ClusterRename, IsWaitedForUntilAllItsWaitsAreOver) {
  Config config;
  config.commit_wait_max_ms = 3'600'000;
  config.metadata_wait_ms = 600'000;
  // Its own data and another host's for nearly an hour each; then the copies, and the transaction.
  EXPECT_GE(RenameWaitMax(config), std::chrono::hours(3) + std::chrono::minutes(30));
}

TEST(ClusterSpace, IsThatOfAllNodesDividedByTheCopies) {
  control::ClusterReply report;
  report.set_copies(2);
  auto add = [&](double weight, std::optional<uint64_t> stored, uint64_t available) {
    control::Node& node = *report.add_nodes();
    node.set_weight(weight);
    if (!stored) return;
    node.mutable_usage()->set_stored_bytes(*stored);
    node.mutable_usage()->set_available_bytes(available);
    node.mutable_usage()->set_missing_copies(2);
  };
  EXPECT_EQ(SpaceOf(report).total_bytes, 0u);
  add(1, 100, 1000);
  add(2, 300, 3000);
  add(1, std::nullopt, 0);  // down
  add(0, 50, 700);          // draining: it takes nothing new
  EXPECT_EQ(SpaceOf(report).available_bytes, 2000u);
  EXPECT_EQ(SpaceOf(report).total_bytes, 2225u);
  EXPECT_EQ(SpaceOf(report).missing_copies, 6u);
  report.set_copies(0);
  EXPECT_EQ(SpaceOf(report).available_bytes, 4000u);
}

}  // namespace
}  // namespace cairnfs::daemon
