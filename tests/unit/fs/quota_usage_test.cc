// QuotaUsage against a model, and SharedShares of three hosts on one store: the sum never passes the limit.
#include "fs/quota_usage.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "../../support/eventually.h"
#include "../../support/passing_store.h"
#include "fs/quota_shares.h"
#include "kv/hosted_store.h"

namespace cairnfs::fs {
namespace {

using meta::QuotaBytes;
using meta::UsageRecord;

constexpr InodeId kQuota{7}, kOther{8};

void NoteUsage(QuotaUsage& usage, InodeId inode, const std::optional<UsageRecord>& record, uint64_t revision) {
  const std::string value = record ? record->Encode() : "";
  usage.Note(meta::UsageKey(inode), record ? std::optional<std::string_view>(value) : std::nullopt, revision);
}

void NoteQuota(QuotaUsage& usage, InodeId quota, uint64_t revision) {
  const std::string value = meta::QuotaRecord{{100, 100}, meta::QuotaRecord::State::kOn}.Encode();
  usage.Note(meta::QuotaKey(quota), value, revision);
}

TEST(QuotaUsageTest, SumsAreThoseOfWhatIsThere) {
  std::mt19937_64 random(1);
  QuotaUsage usage;
  NoteQuota(usage, kQuota, 1);
  NoteQuota(usage, kOther, 1);
  std::map<uint64_t, UsageRecord> model;
  for (uint64_t revision = 2; revision < 2000; revision++) {
    const uint64_t inode = 20 + random() % 30;
    std::optional<UsageRecord> record;
    if (random() % 3 != 0) record = UsageRecord{random() % 2 == 0 ? kQuota : kOther, {random() % 100, random() % 50}};
    NoteUsage(usage, InodeId{inode}, record, revision);
    if (record) {
      model[inode] = *record;
    } else {
      model.erase(inode);
    }
    for (const InodeId quota : {kQuota, kOther}) {
      QuotaBytes sum;
      for (const auto& [id, counted] : model) {
        if (counted.quota != quota) continue;
        sum.logical += counted.bytes.logical;
        sum.unique += counted.bytes.unique;
      }
      ASSERT_EQ(usage.Find(quota)->used, sum);
    }
  }
}

TEST(QuotaUsageTest, OlderNewsOfAFileAreDropped) {
  QuotaUsage usage;
  NoteQuota(usage, kQuota, 1);
  NoteUsage(usage, InodeId{20}, UsageRecord{kQuota, {5, 5}}, 9);  // as a read of the range found it
  NoteUsage(usage, InodeId{20}, UsageRecord{kQuota, {3, 3}}, 7);  // and the watch tells of what came before
  NoteUsage(usage, InodeId{20}, std::nullopt, 8);
  EXPECT_EQ(usage.Find(kQuota)->used, (QuotaBytes{5, 5}));
  NoteUsage(usage, InodeId{20}, std::nullopt, 10);
  EXPECT_EQ(usage.Find(kQuota)->used, QuotaBytes{});
}

TEST(QuotaUsageTest, OlderNewsOfAShareAreDropped) {
  QuotaUsage usage;
  NoteQuota(usage, kQuota, 1);
  const std::string key = meta::QuotaShareKey(kQuota, std::string(meta::kNodeIdBytes, 'a'));
  const auto share = [](uint64_t bytes) { return meta::QuotaShare{{bytes, 0}}.Encode(); };
  usage.Note(key, share(9), 9);  // as a read found it
  usage.Note(key, share(7), 7);  // and the watch tells of what came before
  usage.Note(key, std::nullopt, 8);
  EXPECT_EQ(usage.Find(kQuota)->SharesBut("").logical, 9u);
  usage.Note(key, std::nullopt, 10);
  EXPECT_EQ(usage.Find(kQuota)->SharesBut("").logical, 0u);
}

TEST(QuotaUsageTest, WhatCountsForNoQuotaIsNoQuota) {
  QuotaUsage usage;
  NoteUsage(usage, InodeId{20}, UsageRecord{kQuota, {5, 5}}, 1);
  EXPECT_FALSE(usage.any());
  EXPECT_FALSE(usage.Find(kQuota));
  NoteQuota(usage, kQuota, 2);
  EXPECT_EQ(usage.Find(kQuota)->used, (QuotaBytes{5, 5})) << "its files were heard of first";
  usage.Note(meta::QuotaKey(kQuota), std::nullopt, 3);
  EXPECT_FALSE(usage.any());
  usage.Note(meta::QuotaKey(kQuota), "broken", 4);
  EXPECT_FALSE(usage.any());
}

// A store whose watch is told what to say, and whose reads can fail, or have something happen after them.
class WatchedStore final : public PassingStore {
 public:
  using PassingStore::PassingStore;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    if (failing_reads > 0 && failing_reads-- > 0) return MakeError(ErrorCode::kUnavailable, "the store is away");
    auto range = PassingStore::Range(context, begin, end, limit);
    if (after_read) after_read();
    return range;
  }
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override {
    told = callbacks;
    return PassingStore::Watch(context, begin, end, after_revision, std::move(callbacks));
  }

  int failing_reads = 0;
  std::function<void()> after_read;
  kv::WatchCallbacks told;
};

// A host of three: what it has heard, and its shares.
struct Host {
  Host(kv::SharedKvStore& store, char name)
      : lease(*store.GrantLease({}, std::chrono::minutes(10))),
        shares({.shared = store,
                .store = store,
                .usage = usage,
                .self = std::string(meta::kNodeIdBytes, name),
                .session = [this] { return lease; },
                .join = [this](kv::Transaction&) -> Result<kv::LeaseId> { return lease; },
                .until_stop = {},
                .went_back = [this] { times_went_back++; }}) {
    EXPECT_TRUE(shares.Start().ok());
  }
  QuotaUsage usage;
  kv::LeaseId lease;
  int times_went_back = 0;
  SharedShares shares;
};

class QuotaSharesTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 1000;
  QuotaSharesTest() : store_(*kv::HostedStore::Open(*engine_)) {
    kv::Transaction transaction;
    transaction.Put(meta::QuotaKey(kQuota), meta::QuotaRecord{{kLimit, meta::QuotaRecord::kNoLimit}}.Encode());
    EXPECT_TRUE(store_->Commit({}, transaction).ok());
    for (const char name : {'a', 'b', 'c'}) hosts_.push_back(std::make_unique<Host>(*store_, name));
  }
  ~QuotaSharesTest() override { hosts_.clear(); }

  std::unique_ptr<kv::KvEngine> engine_ = kv::OpenMemoryEngine();
  std::unique_ptr<kv::HostedStore> store_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

TEST_F(QuotaSharesTest, TogetherTheyNeverPassTheLimit) {
  std::mt19937_64 random(2);
  std::map<size_t, uint64_t> grown, published;
  for (int i = 0; i < 300; i++) {
    const size_t at = random() % hosts_.size();
    const uint64_t wanted = grown[at] + random() % 200;
    const auto share = hosts_[at]->shares.Take({}, kQuota, {{grown[at], 0}, {wanted, 0}});
    ASSERT_TRUE(share.ok()) << share.error().message;
    EXPECT_LE(share->logical, std::max(wanted, grown[at]));
    grown[at] = std::min(share->logical, wanted);
    if (random() % 4 == 0) {  // it publishes, and then needs no share of that
      published[at] = random() % 5 == 0 ? 0 : published[at] + grown[at];
      kv::Transaction transaction;
      transaction.Put(meta::UsageKey(InodeId{100 + at}), UsageRecord{kQuota, {published[at], 0}}.Encode());
      const auto revision = store_->Commit({}, transaction);
      ASSERT_TRUE(revision.ok());
      for (const auto& host : hosts_) ASSERT_TRUE(host->usage.AwaitRevision({}, *revision));
      grown[at] = 0;
      ASSERT_TRUE(hosts_[at]->shares.Take({}, kQuota, {{0, 0}, {0, 0}}).ok());
    }
    uint64_t sum = 0;
    for (const auto& [host, bytes] : grown) sum += bytes + published[host];
    ASSERT_LE(sum, kLimit);
  }
}

TEST_F(QuotaSharesTest, AShareEndsWithTheSessionOfItsHost) {
  ASSERT_EQ(hosts_[0]->shares.Take({}, kQuota, {{0, 0}, {kLimit, 0}})->logical, kLimit);
  EXPECT_TRUE(hosts_[0]->shares.HasShare(kQuota));
  ASSERT_TRUE(Eventually([&] { return hosts_[1]->shares.HaveOthers(kQuota); }));
  EXPECT_EQ(hosts_[1]->shares.Take({}, kQuota, {{0, 0}, {10, 0}})->logical, 0u);
  ASSERT_TRUE(store_->RevokeLease({}, hosts_[0]->lease).ok());
  ASSERT_TRUE(Eventually([&] { return !hosts_[1]->shares.HaveOthers(kQuota); }));
  EXPECT_EQ(hosts_[1]->shares.Take({}, kQuota, {{0, 0}, {10, 0}})->logical, 10u);
}

// What goes while it is read is not kept as it was read.
TEST_F(QuotaSharesTest, WhatChangesWhileItIsReadIsKnownInTheEnd) {
  const auto put = [&](uint64_t inode, uint64_t bytes) {
    kv::Transaction transaction;
    transaction.Put(meta::UsageKey(InodeId{inode}), UsageRecord{kQuota, {bytes, 0}}.Encode());
    return *store_->Commit({}, transaction);
  };
  put(20, 5);
  put(21, 7);
  WatchedStore watched(*store_);
  uint64_t last = 0;
  watched.after_read = [&] {
    kv::Transaction transaction;
    transaction.Delete(meta::UsageKey(InodeId{20}));
    last = *store_->Commit({}, transaction);
    last = put(21, 1);
  };
  Host host(watched, 'd');
  ASSERT_TRUE(host.usage.AwaitRevision({}, last));
  EXPECT_EQ(host.usage.Find(kQuota)->used, (QuotaBytes{1, 0}));
}

// Until it is read again, what was known holds: there is no moment without a limit.
TEST_F(QuotaSharesTest, AWatchThatLostNewsHasItReadAnew) {
  WatchedStore watched(*store_);
  Host host(watched, 'd');
  kv::Transaction transaction;
  transaction.Put(meta::UsageKey(InodeId{20}), UsageRecord{kQuota, {kLimit, 0}}.Encode());
  const uint64_t published = *store_->Commit({}, transaction);
  ASSERT_TRUE(host.usage.AwaitRevision({}, published));
  watched.failing_reads = 1;
  std::thread lost([&] { watched.told.lost(published); });
  for (bool is_read = false; !is_read; is_read = watched.failing_reads == 0) {
    ASSERT_TRUE(host.usage.any());
    EXPECT_EQ(host.shares.Take({}, kQuota, {{0, 0}, {10, 0}})->logical, 0u);
  }
  lost.join();
  EXPECT_EQ(host.usage.Find(kQuota)->used, (QuotaBytes{kLimit, 0}));
  EXPECT_EQ(host.times_went_back, 0);
}

// After a backup was restored revisions begin anew below those that were seen.
TEST_F(QuotaSharesTest, AStoreThatWentBackIsBelieved) {
  WatchedStore watched(*store_);
  Host host(watched, 'd');
  const uint64_t now = host.usage.revision();
  host.usage.Note(meta::UsageKey(InodeId{20}), UsageRecord{kQuota, {kLimit, 0}}.Encode(), now + 1000);
  host.usage.NoteRevision(now + 1000);
  watched.told.TellWentBack(now);
  EXPECT_EQ(host.usage.Find(kQuota)->used, QuotaBytes{});
  EXPECT_EQ(host.usage.revision(), now);
  EXPECT_EQ(host.times_went_back, 1);
  // A share that another host takes is seen: it is compared with a revision of this history.
  ASSERT_EQ(hosts_[0]->shares.Take({}, kQuota, {{0, 0}, {kLimit, 0}})->logical, kLimit);
  ASSERT_TRUE(Eventually([&] { return host.shares.HaveOthers(kQuota); }));
  EXPECT_EQ(host.shares.Take({}, kQuota, {{0, 0}, {10, 0}})->logical, 0u);
}

TEST_F(QuotaSharesTest, WithoutALimitNoShareIsTaken) {
  const auto share = hosts_[0]->shares.Take({}, kQuota, {{0, 0}, {0, 1 << 30}});
  ASSERT_TRUE(share.ok());
  EXPECT_EQ(share->unique, meta::QuotaRecord::kNoLimit);
  EXPECT_FALSE(hosts_[0]->shares.HasShare(kQuota));
  EXPECT_EQ(hosts_[0]->shares.Take({}, kOther, {}).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::fs
