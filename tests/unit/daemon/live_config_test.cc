#include "daemon/live_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace cairnfs::daemon {
namespace {

using Words = std::vector<std::string>;

Config Running() {
  Config config;
  config.data = "/srv/data";
  config.mount_point = "/mnt/here";
  config.pool_size = 64 * kMiB;
  config.mount_options = {"nosuid", "nodev"};
  return config;
}

std::string Refusal(const control::RemountCall& call) {
  auto config = ConfigAfter(Running(), call);
  return config.ok() ? "" : config.error().message;
}

TEST(LiveConfig, TakesWhatIsNamedAndKeepsTheRest) {
  auto config = ConfigAfter(
      Running(), {{"ro,nosuid,relatime,allow_other", "log_level=debug,collect_rate=8MiB,flush_interval=2s"}, "", "/"});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_TRUE(config->read_only);
  EXPECT_EQ(config->log_level, "debug");
  EXPECT_EQ(config->collect_rate, 8 * kMiB);
  EXPECT_EQ(config->flush_interval_ms, 2000U);
  EXPECT_EQ(config->repair_rate, Config().repair_rate);
  EXPECT_EQ(config->mount_options, (Words{"nosuid", "nodev"}));
  auto back = ConfigAfter(*config, {{"rw"}, "", "/"});
  ASSERT_TRUE(back.ok());
  EXPECT_FALSE(back->read_only);
  EXPECT_EQ(back->log_level, "debug");
}

TEST(LiveConfig, NamesWhatCannotChange) {
  EXPECT_EQ(Refusal({{"pool_size=64MiB"}, "", "/"}), "");  // as it is
  EXPECT_EQ(Refusal({{"pool_size=65MiB"}, "", "/"}).find("pool_size cannot change while"), 0U);
  EXPECT_EQ(Refusal({{"log_level=debug,data=/srv/other"}, "", "/"}).find("data cannot change"), 0U);
  EXPECT_EQ(Refusal({{"allow_other=false"}, "", "/"}).find("allow_other cannot change"), 0U);
  EXPECT_NE(Refusal({{"flush_interval=9h"}, "", "/"}).find("must lie between"), std::string::npos);
  EXPECT_NE(Refusal({{"nosuch"}, "", "/"}).find("unknown key"), std::string::npos);
}

TEST(LiveConfig, TheDaemonGoesByTheLastWordOnTimesOfAccess) {
  auto without = ConfigAfter(Running(), {{"relatime,noatime"}, "", "/"});
  ASSERT_TRUE(without.ok());
  EXPECT_EQ(without->mount_options, (Words{"nosuid", "nodev", "noatime"}));
  auto same = ConfigAfter(*without, {{"rw"}, "", "/"});
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->mount_options, without->mount_options);
  auto with = ConfigAfter(*without, {{"noatime,relatime"}, "", "/"});
  ASSERT_TRUE(with.ok());
  EXPECT_EQ(with->mount_options, (Words{"nosuid", "nodev"}));
}

// fstab names it, and what it says of places is what the mount was found by.
TEST(LiveConfig, AConfigurationIsReadAnew) {
  std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-live-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  const std::string file = folder + "/c.toml";
  std::ofstream(file)
      << "data = \"other\"\nmount_point = \"/mnt/other\"\npool_size = \"64MiB\"\nrepair_rate = \"2MiB\"\n"
         "log_file = \"a.log\"\n";
  Config running = Running();
  running.log_file = "/from/here/a.log";
  auto config = ConfigAfter(running, {{"log_level=error"}, file, "/from/here"});
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->data, "/srv/data");
  EXPECT_EQ(config->mount_point, "/mnt/here");
  EXPECT_EQ(config->repair_rate, 2 * kMiB);
  EXPECT_EQ(config->log_level, "error");
  EXPECT_EQ(ConfigAfter(running, {{}, file, "/elsewhere"}).error().message.find("log_file cannot change"), 0U);
  std::ofstream(file) << "copies = 3\n";
  EXPECT_EQ(Refusal({{}, file, "/"}).find("copies cannot change"), 0U);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace cairnfs::daemon
