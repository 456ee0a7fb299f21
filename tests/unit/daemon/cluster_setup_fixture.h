// A folder with the options of an init or a join on this host.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "daemon/cluster_setup.h"

namespace cairnfs::daemon {

class ClusterSetupFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "cairnfs-setup-XXXXXX").string();
    folder_ = std::filesystem::canonical(mkdtemp(pattern.data())).string();
    options_.file = folder_ + "/etc/cairnfs.toml";
    options_.config.data = folder_ + "/data";
    options_.config.listen = "127.0.0.1:7401";
    options_.config.trusted_network = {"127.0.0.0/8"};
    options_.config.pool_size = 32 * kMiB;
    options_.config.reserve = 8 * kMiB;
    options_.config.copies = 3;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static bool Has(const Error& error, std::string_view text) { return error.message.find(text) != std::string::npos; }

  std::string folder_;
  SetupOptions options_;
};

}  // namespace cairnfs::daemon
