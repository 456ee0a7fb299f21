#include "daemon/cluster_settings.h"

#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <thread>

#include "../../support/eventually.h"
#include "../../support/passing_store.h"
#include "daemon/cluster_setup.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"

namespace cairnfs::daemon {
namespace {

// A store whose watches the test tells what it wants: as after a loss of the connection, or of the history.
class ToldStore final : public PassingStore {
 public:
  using PassingStore::PassingStore;
  kv::WatchCallbacks told;
  bool reads_fail = false;
  int conflicts = 0;  // of the commits to come, as when another host is quicker each time

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    if (std::exchange(reads_fail, false)) return MakeError(ErrorCode::kUnavailable, "not now");
    return PassingStore::Get(context, key);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    if (conflicts == 0) return PassingStore::Commit(context, transaction);
    --conflicts;
    return MakeError(ErrorCode::kConflict, "another host was quicker");
  }
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context&, std::string_view, std::string_view, uint64_t,
                                             kv::WatchCallbacks callbacks) override {
    told = std::move(callbacks);
    return std::make_unique<kv::KvWatch>();
  }
};

class ClusterSettingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok());
    store_ = *std::move(store);
    config_.copies = 3;
    ASSERT_TRUE(MakeOrReadCluster(*store_, config_).ok());
  }
  std::unique_ptr<SettingsWatch> Follow(kv::SharedKvStore& store) {
    auto watch = SettingsWatch::Start(store, [this](const StoredSettings& stored) {
      std::lock_guard lock(mutex_);
      seen_.push_back(stored.settings.MinReplicas());
    });
    EXPECT_TRUE(watch.ok());
    return *std::move(watch);
  }
  std::vector<uint32_t> seen() {
    std::lock_guard lock(mutex_);
    return seen_;
  }
  using Seen = std::vector<uint32_t>;

  Config config_;
  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_;
  std::mutex mutex_;
  Seen seen_;
};

TEST_F(ClusterSettingsTest, ASetChangesThatNumberAloneAndIsRememberedAsAChange) {
  auto before = ReadCluster(*store_);
  ASSERT_TRUE(before.ok());
  EXPECT_FALSE(before->settings_were_changed);
  EXPECT_FALSE(before->settings.IsLowered());
  auto set = SetMinReplicas({}, *store_, 1);
  ASSERT_TRUE(set.ok()) << set.error().message;
  auto after = ReadCluster(*store_);
  ASSERT_TRUE(after.ok());
  EXPECT_TRUE(after->settings_were_changed);
  EXPECT_TRUE(after->settings.IsLowered());
  EXPECT_EQ(after->settings.MinReplicas(), 1U);
  before->settings.min_replicas = 1;
  EXPECT_EQ(after->settings.Encode(), before->settings.Encode());
  ASSERT_TRUE(SetMinReplicas({}, *store_, 0).ok());
  EXPECT_EQ(ReadSettings({}, *store_)->settings.MinReplicas(), 3U);
}

TEST_F(ClusterSettingsTest, NothingIsSetForACallerThatIsGone) {
  std::stop_source gone;
  gone.request_stop();
  auto set = SetMinReplicas(Context(gone.get_token()), *store_, 1);
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, ErrorCode::kInterrupted);
  EXPECT_FALSE(ReadCluster(*store_)->settings_were_changed);
}

TEST_F(ClusterSettingsTest, MoreThanThereAreCopiesIsRefused) {
  auto set = SetMinReplicas({}, *store_, 4);
  ASSERT_FALSE(set.ok());
  EXPECT_EQ(set.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(set.error().message.find("min_replicas = 4 is more than copies = 3"), std::string::npos)
      << set.error().message;
  EXPECT_EQ(ReadSettings({}, *store_)->settings.MinReplicas(), 3U);
}

TEST_F(ClusterSettingsTest, NoAgreementIsAskedOfTheNumberThatCanBeSet) {
  ASSERT_TRUE(SetMinReplicas({}, *store_, 2).ok());
  for (uint64_t here : {0, 1, 2, 3}) {
    config_.min_replicas = here;
    EXPECT_TRUE(CheckAgreement(ReadSettings({}, *store_)->settings, config_).ok()) << here;
  }
  config_.copies = 2;
  EXPECT_FALSE(CheckAgreement(ReadSettings({}, *store_)->settings, config_).ok());
}

// One host of a cluster with certificates must not do without by its own configuration.
TEST_F(ClusterSettingsTest, AllHostsHaveCertificatesOrNone) {
  config_.trusted_network = {"10.0.0.0/8"};
  const Status refused = CheckAgreement(ReadSettings({}, *store_)->settings, config_);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("nodes of the cluster have certificates"), std::string::npos);
}

TEST_F(ClusterSettingsTest, EveryHostFollowsWhatAnyOfThemSets) {
  auto one = Follow(*store_);
  auto other = Follow(*store_);
  EXPECT_EQ(seen(), (Seen{3, 3}));
  ASSERT_TRUE(SetMinReplicas({}, *store_, 1).ok());
  EXPECT_TRUE(Eventually([&] { return seen() == Seen{3, 3, 1, 1}; }));
  ASSERT_TRUE(SetMinReplicas({}, *store_, 0).ok());
  EXPECT_TRUE(Eventually([&] { return seen() == Seen{3, 3, 1, 1, 3, 3}; }));
}

TEST_F(ClusterSettingsTest, HostsThatSetAtOnceEndWithOneOfTheirNumbers) {
  auto watch = Follow(*store_);
  std::vector<std::thread> hosts;
  for (uint32_t number : {1, 2}) {
    hosts.emplace_back([this, number] {
      for (int i = 0; i < 20; ++i) EXPECT_TRUE(SetMinReplicas({}, *store_, i % 2 == 0 ? number : 0).ok());
      EXPECT_TRUE(SetMinReplicas({}, *store_, number).ok());
    });
  }
  for (std::thread& host : hosts) host.join();
  const uint32_t last = ReadSettings({}, *store_)->settings.MinReplicas();
  EXPECT_TRUE(last == 1 || last == 2) << last;
  EXPECT_TRUE(Eventually([&] { return seen().back() == last; }));
}

TEST_F(ClusterSettingsTest, AHostThatLosesManyTimesSetsItsNumberAllTheSame) {
  ToldStore store(*store_);
  store.conflicts = 25;
  ASSERT_TRUE(SetMinReplicas({}, store, 1).ok());
  EXPECT_EQ(store.conflicts, 0);
  EXPECT_EQ(ReadSettings({}, *store_)->settings.MinReplicas(), 1U);
}

TEST_F(ClusterSettingsTest, WhatTheWatchMissedIsRead) {
  ToldStore store(*store_);
  auto watch = Follow(store);
  auto set = SetMinReplicas({}, *store_, 1);
  ASSERT_TRUE(set.ok());
  store.reads_fail = true;  // once; it is tried again
  store.told.lost(set->revision);
  EXPECT_EQ(seen(), (Seen{3, 1}));
  // An older record that comes late counts no more, unless the store itself went back.
  watch->Take({ClusterSettings{3, 2, 0, 0, {}}, set->revision - 1}, 0);
  EXPECT_EQ(seen(), (Seen{3, 1}));
  watch->Take({ClusterSettings{3, 2, 0, 0, {}}, set->revision + 10}, 0);
  EXPECT_EQ(seen(), (Seen{3, 1, 2}));
  store.told.went_back(set->revision);
  EXPECT_EQ(seen(), (Seen{3, 1, 2, 1}));
  EXPECT_EQ(watch->TimesWentBack(), 1U);
  // What was written to the state that the store went back from hides nothing of what follows.
  watch->Take({ClusterSettings{3, 2, 0, 0, {}}, set->revision + 1000}, 0);
  watch->Take({ClusterSettings{3, 0, 0, 0, {}}, set->revision + 1}, 1);
  EXPECT_EQ(seen(), (Seen{3, 1, 2, 1, 3}));
  // What does not decode, or is gone, changes nothing.
  store.told.changed({kv::KvEvent{SettingsKey(), "?", set->revision + 20}}, set->revision + 20);
  store.told.changed({kv::KvEvent{SettingsKey(), std::nullopt, set->revision + 21}}, set->revision + 21);
  EXPECT_EQ(seen(), (Seen{3, 1, 2, 1, 3}));
}

TEST(ClusterSettings, RefuseEveryTruncation) {
  ClusterSettings settings;
  settings.copies = 2;
  settings.trusted_network = {"10.0.0.0/8", "fd00::/8"};
  const std::string text = settings.Encode();
  auto decoded = ClusterSettings::Decode(text);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->trusted_network, settings.trusted_network);
  for (size_t size = 0; size < text.size(); ++size) EXPECT_FALSE(ClusterSettings::Decode(text.substr(0, size)).ok());
}

}  // namespace
}  // namespace cairnfs::daemon
