// Which prefixes of a real etcd another cluster has already.
#include "support.h"

namespace cairnfs::kvnet {
namespace {

constexpr std::string_view kHeader = "H";

class EtcdOverlapTest : public testing::Test {
 protected:
  void SetUp() override { etcd_.WaitUntilReady(); }
  std::unique_ptr<EtcdStore> StoreAt(const std::string& prefix) {
    EtcdOptions options;
    options.endpoints = etcd_.Addresses();
    options.prefix = prefix;
    return Must(EtcdStore::Create(options));
  }
  void Put(const std::string& prefix, std::string_view key) {
    Must(StoreAt(prefix)->Commit({}, Transaction().Put(std::string(key), "v")));
  }
  std::string FoundAt(const std::string& prefix) {
    return Must(StoreAt(prefix)->FindOverlap({}, kHeader)).value_or("none");
  }
  EtcdCluster etcd_{1};
};

TEST_F(EtcdOverlapTest, AboveAndBelowACluster) {
  EXPECT_EQ(FoundAt("/"), "none");
  Put("/team/ckpt/", "E1");  // of a cluster there are keys in front of its header
  Put("/team/ckpt/", kHeader);
  for (const char* prefix : {"/", "/team/", "/team/ckpt/more/", "/team/ckpt/k/", "/team/ckpt/a/b/c/"}) {
    EXPECT_EQ(FoundAt(prefix), "/team/ckpt/") << prefix;
  }
  for (const char* prefix : {"/team/ckpt/", "/team/ckp/", "/team/ckpt2/", "/team2/", "/other/ckpt/"}) {
    EXPECT_EQ(FoundAt(prefix), "none") << prefix;
  }
}

TEST_F(EtcdOverlapTest, WhatIsNoClusterDoesNotCount) {
  Put("/team/", "C");  // as an init that was cut short leaves it
  for (int i = 0; i < 3; ++i) Put("/team/a/" + std::to_string(i) + "/", "x");
  EXPECT_EQ(FoundAt("/team/"), "none");
  EXPECT_EQ(FoundAt("/team/a/"), "none");
  EXPECT_EQ(FoundAt("/team/a/0/b/"), "none");
  Put("/team/b/", kHeader);
  EXPECT_EQ(FoundAt("/team/"), "/team/b/");
}

}  // namespace
}  // namespace cairnfs::kvnet
