#include "daemon/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/config_keys.h"

namespace cairnfs::daemon {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-config-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) {
    std::string path = folder_ + "/c.toml";
    std::ofstream(path) << text;
    return path;
  }
  // The message of the error that `text` gives.
  std::string MessageOf(const std::string& text) {
    Config config;
    auto status = ReadConfigFile(Write(text), config);
    return status.ok() ? "no error" : status.error().message.substr(folder_.size() + 1);
  }

  std::string folder_;
};

TEST_F(ConfigTest, ReadsEveryKind) {
  Config config;
  auto status = ReadConfigFile(Write("data = \"/srv/cairn\"\n"
                                     "pool_size = \"256MiB\"\n"
                                     "segment_size = 8388608\n"
                                     "receive_threads = 4\n"
                                     "flush_interval = \"500ms\"\n"
                                     "rename = \"durable\"\n"
                                     "allow_other = false\n"
                                     "mount_options = [\"nosuid\", \"nodev\"]\n"
                                     "metrics_address = \"127.0.0.1:9464\"\n"),
                               config);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(config.data, "/srv/cairn");
  EXPECT_EQ(config.pool_size, 256 * kMiB);
  EXPECT_EQ(config.segment_size, 8 * kMiB);
  EXPECT_EQ(config.receive_threads, 4U);
  EXPECT_EQ(config.flush_interval_ms, 500U);
  EXPECT_EQ(config.rename, "durable");
  EXPECT_FALSE(config.allow_other);
  EXPECT_EQ(config.mount_options, (std::vector<std::string>{"nosuid", "nodev"}));
  EXPECT_EQ(config.metrics_address, "127.0.0.1:9464");
}

TEST_F(ConfigTest, NamesLineAndNearestKey) {
  EXPECT_EQ(MessageOf("data = \"/a\"\npool_sise = 1\n"),
            "c.toml:2: unknown key 'pool_sise'; the nearest valid key is 'pool_size'");
  EXPECT_EQ(MessageOf("[store]\nx = 1\n").substr(0, 30), "c.toml:1: unknown key 'store';");
  EXPECT_EQ(NearestKey("renam"), "rename");
  EXPECT_EQ(NearestKey("log-level"), "log_level");
}

TEST_F(ConfigTest, SaysWhatIsRight) {
  EXPECT_EQ(MessageOf("\n\npool_size = true"), "c.toml:3: pool_size: must be a size such as \"256MiB\", not true");
  EXPECT_EQ(MessageOf("pool_size = \"1MiB\""),
            "c.toml:1: pool_size: must lie between 32MiB and 1TiB, or be 0 (chosen automatically), not 1MiB");
  EXPECT_EQ(MessageOf("receive_threads = \"two\""), "c.toml:1: receive_threads: must be a whole number, not \"two\"");
  EXPECT_EQ(MessageOf("collect_after = 0"), "no error");
  EXPECT_EQ(MessageOf("collect_rate = \"1KiB\""),
            "c.toml:1: collect_rate: must lie between 1MiB and 1TiB, or be 0 (unbounded), not 1KiB");
  EXPECT_EQ(MessageOf("min_replicas = 17"),
            "c.toml:1: min_replicas: must lie between 1 and 16, or be 0 (as many as copies), not 17");
  EXPECT_EQ(MessageOf("receive_threads = 0"), "c.toml:1: receive_threads: must lie between 1 and 64, not 0");
  EXPECT_EQ(MessageOf("receive_threads = -1"), "c.toml:1: receive_threads: must not be negative, but is -1");
  EXPECT_EQ(MessageOf("flush_interval = 5"),
            "c.toml:1: flush_interval: needs a unit: ms, s, min, h or d, for example \"5s\"");
  EXPECT_EQ(MessageOf("flush_interval = \"1h\""), "c.toml:1: flush_interval: must lie between 10ms and 4s, not 3600s");
  EXPECT_EQ(MessageOf("rename = \"fast\""), "c.toml:1: rename: must be one of \"ordered\", \"durable\", not \"fast\"");
  EXPECT_EQ(MessageOf("allow_other = 1"), "c.toml:1: allow_other: must be true or false, not 1");
  EXPECT_EQ(MessageOf("data = 5"), "c.toml:1: data: must be a text in quotes, not 5");
  EXPECT_EQ(MessageOf("data = 5.5").substr(0, 20), "c.toml:1: data: must");
  EXPECT_EQ(
      MessageOf("mount_options = [1]"),
      "c.toml:1: mount_options: must be a list of texts such as [\"noexec\", \"noatime\"], not a list with a number "
      "in it");
  EXPECT_EQ(MessageOf("pool_size = [1]"),
            "c.toml:1: pool_size: must be a size such as \"256MiB\", not a list with a number in it");
  EXPECT_EQ(MessageOf("pool_size = [\"1GiB\"]"),
            "c.toml:1: pool_size: must be a size such as \"256MiB\", not [\"1GiB\"]");
  EXPECT_EQ(MessageOf("lease = {a = 1}"), "c.toml:1: lease: must be a duration such as \"5s\", not a table");
  EXPECT_EQ(MessageOf("data = 2020-01-01"), "c.toml:1: data: must be a text in quotes, not a date or time");
}

TEST_F(ConfigTest, AnAddressHasAPortAndIpv6Brackets) {
  for (const char* wrong : {"here", "::1", "::1:9464", "fe80::1", "[::1]", "[]:1", "127.0.0.1:70000", ":9464"}) {
    EXPECT_EQ(MessageOf(std::string("metrics_address = \"") + wrong + "\""),
              std::string("c.toml:1: metrics_address: must be ADDRESS:PORT, for example \"127.0.0.1:9464\" (an IPv6 "
                          "address in brackets), not \"") +
                  wrong + "\"");
  }
  for (const char* right : {"127.0.0.1:9464", "[::1]:9464", "localhost:9464", "127.0.0.1:0"}) {
    EXPECT_EQ(MessageOf(std::string("metrics_address = \"") + right + "\""), "no error");
  }
}

TEST_F(ConfigTest, ReadsTheKeysOfACluster) {
  Config config;
  auto status = ReadConfigFile(Write("metadata = \"etcd://10.0.0.1:2379\"\n"
                                     "listen = \"10.0.0.1:7401\"\n"
                                     "trusted_network = [\"10.0.0.0/8\", \"fd00::/8\"]\n"
                                     "weight = 1.5\n"
                                     "lease = \"3s\"\n"),
                               config);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(config.InCluster());
  EXPECT_EQ(config.trusted_network, (std::vector<std::string>{"10.0.0.0/8", "fd00::/8"}));
  EXPECT_EQ(config.weight, 1.5);
  EXPECT_EQ(config.lease_ms, 3000U);
  EXPECT_EQ(MessageOf("trusted_network = \"10.0.0.0/8\"\nweight = 0"), "no error");
  EXPECT_EQ(MessageOf("trusted_network = \"10.0.0.1/8\"").substr(0, 26), "c.toml:1: trusted_network:");
  EXPECT_EQ(MessageOf("trusted_network = 10").substr(0, 26), "c.toml:1: trusted_network:");
  EXPECT_EQ(MessageOf("weight = -2"),
            "c.toml:1: weight: must lie between 0 (gets no new chunks) and 1000000, or be -1 (the capacity of the disk "
            "in TiB), not -2");
  EXPECT_EQ(MessageOf("durability = \"none\""),
            "c.toml:1: durability: must be one of \"replicated\", \"local\", not \"none\"");
  EXPECT_EQ(MessageOf("copies = 0"), "c.toml:1: copies: must lie between 1 and 16, not 0");
  ASSERT_TRUE(ApplyMountOptions("weight=0.5,copies=3", config).ok());
  EXPECT_EQ(config.weight, 0.5);
  EXPECT_EQ(config.copies, 3U);
}

TEST_F(ConfigTest, BadTomlAndMissingFile) {
  EXPECT_EQ(MessageOf("data = \"x\"\ndata = \"y\"").substr(0, 26), "c.toml:2: not valid TOML: ");
  EXPECT_EQ(MessageOf("a b c").substr(0, 26), "c.toml:1: not valid TOML: ");
  Config config;
  auto missing = ReadConfigFile(folder_ + "/none.toml", config);
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_NE(missing.error().message.find("none.toml"), std::string::npos);
}

TEST_F(ConfigTest, OnlySmallRegularFilesAreRead) {
  Config config;
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {folder_, fifo, std::string("/dev/zero")}) {
    auto refused = ReadConfigFile(path, config);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(refused.error().message, "cannot read the configuration " + path + ": it is not a regular file");
  }
  std::string text = "# ";
  text.resize(32 * kKiB - 1, 'x');
  EXPECT_EQ(MessageOf(text + "\n"), "no error");
  text += "x\n";
  auto refused = ReadConfigFile(Write(text), config);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message, "cannot read the configuration " + folder_ + "/c.toml: it is larger than 32 KiB");
}

// Any prefix of a valid file either reads or gives an error, and never stops the process.
TEST_F(ConfigTest, EveryTruncationIsHandled) {
  std::string text =
      "data = \"/srv\"\npool_size = \"256MiB\" # x\nmount_options = [\"a\", \"b\"]\nallow_other = true\n";
  for (size_t size = 0; size <= text.size(); ++size) {
    Config config;
    (void)ReadConfigFile(Write(text.substr(0, size)), config).ok();
  }
}

TEST(MountOptions, MapToTheSameKeys) {
  Config config;
  auto status = ApplyMountOptions(
      "rw,nosuid,nodev,pool_size=512M,rename=durable,allow_other=false,flush_interval=2s,_netdev,x-systemd.automount,"
      "read_only,receive_threads=3",
      config);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(config.mount_options, (std::vector<std::string>{"nosuid", "nodev"}));
  EXPECT_EQ(config.pool_size, 512 * kMiB);
  EXPECT_EQ(config.rename, "durable");
  EXPECT_FALSE(config.allow_other);
  EXPECT_TRUE(config.read_only);
  EXPECT_EQ(config.receive_threads, 3U);
}

TEST_F(ConfigTest, RoAmongTheWordsIsReadOnly) {
  Config config;
  ASSERT_TRUE(ReadConfigFile(Write("mount_options = [\"nosuid\", \"ro\"]\nread_only = false\n"), config).ok());
  EXPECT_TRUE(config.read_only);
  EXPECT_EQ(config.mount_options, (std::vector<std::string>{"nosuid"}));
  ASSERT_TRUE(ApplyMountOptions("rw", config).ok());
  EXPECT_FALSE(config.read_only);
  ASSERT_TRUE(ApplyMountOptions("mount_options=ro", config).ok());
  EXPECT_TRUE(config.read_only);
}

TEST_F(ConfigTest, PathsAreMadeAbsolute) {
  std::string here = std::filesystem::current_path().string();
  Config config;
  config.data = "data";
  config.mount_point = "../point";
  config.log_file = "./logs/log";
  ASSERT_TRUE(MakePathsAbsolute(config).ok());
  EXPECT_EQ(config.data, here + "/data");
  EXPECT_EQ(config.mount_point, std::filesystem::path(here).parent_path() / "point");
  EXPECT_EQ(config.log_file, here + "/logs/log");
  for (const char* log_file : {"", "journal", "/dev/stderr"}) {
    config.log_file = log_file;
    ASSERT_TRUE(MakePathsAbsolute(config).ok());
    EXPECT_EQ(config.log_file, log_file);
  }
}

TEST(MountOptions, SayWhatIsWrong) {
  Config config;
  EXPECT_EQ(ApplyMountOptions("pol_size=1G", config).error().message,
            "option -o: unknown key 'pol_size'; the nearest valid key is 'pool_size'");
  EXPECT_EQ(ApplyMountOptions("pool_size", config).error().message,
            "option -o: pool_size: needs a value: pool_size=VALUE");
  EXPECT_EQ(ApplyMountOptions("pool_size=big", config).error().message.substr(0, 38),
            "option -o: pool_size: 'big' is not a s");
  EXPECT_EQ(ApplyMountOptions("allow_other=perhaps", config).error().message,
            "option -o: allow_other: must be true or false, not \"perhaps\"");
}

// The example documents every key and no other, with its true default.
TEST(ExampleConfig, DocumentsEveryKey) {
  std::ifstream file(EXAMPLE_CONFIG);
  std::stringstream uncommented;
  std::string text;
  for (std::string line; std::getline(file, line);) {
    text += line + "\n";
    size_t equals = line.find(" = ");
    bool is_key = line.starts_with("# ") && equals != std::string::npos &&
                  line.substr(2, equals - 2).find(' ') == std::string::npos;
    if (is_key) uncommented << line.substr(2) << "\n";
  }
  for (const ConfigKey& key : ConfigKeys()) {
    EXPECT_NE(text.find("# " + std::string(key.name) + " = "), std::string::npos) << key.name;
  }

  std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-example-XXXXXX").string();
  std::string folder = mkdtemp(pattern.data());
  std::ofstream(folder + "/e.toml") << uncommented.str();
  Config config, defaults;
  auto status = ReadConfigFile(folder + "/e.toml", config);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_EQ(config.data, defaults.data);
  EXPECT_EQ(config.mount_point, defaults.mount_point);
  EXPECT_EQ(config.pool_size, defaults.pool_size);
  EXPECT_EQ(config.dedup, defaults.dedup);
  EXPECT_EQ(config.metadata_cache_size, defaults.metadata_cache_size);
  EXPECT_EQ(config.read_ahead, defaults.read_ahead);
  EXPECT_EQ(config.mmap_read_ahead, defaults.mmap_read_ahead);
  EXPECT_EQ(config.passthrough, defaults.passthrough);
  EXPECT_EQ(config.waiting_threads, defaults.waiting_threads);
  EXPECT_EQ(config.receive_threads, defaults.receive_threads);
  EXPECT_EQ(config.max_background, defaults.max_background);
  EXPECT_EQ(config.flush_interval_ms, defaults.flush_interval_ms);
  EXPECT_EQ(config.commit_wait_max_ms, defaults.commit_wait_max_ms);
  EXPECT_EQ(config.rename, defaults.rename);
  EXPECT_EQ(config.trash_ms, defaults.trash_ms);
  EXPECT_EQ(config.collect_after, defaults.collect_after);
  EXPECT_EQ(config.collect_rate, defaults.collect_rate);
  EXPECT_EQ(config.collect_delay_ms, defaults.collect_delay_ms);
  EXPECT_EQ(config.allow_other, defaults.allow_other);
  EXPECT_EQ(config.read_only, defaults.read_only);
  EXPECT_EQ(config.direct_io, defaults.direct_io);
  EXPECT_EQ(config.io_uring, defaults.io_uring);
  EXPECT_EQ(config.log_level, defaults.log_level);
}

}  // namespace
}  // namespace cairnfs::daemon
