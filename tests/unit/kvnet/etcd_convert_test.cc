// Transactions as etcd gets them. That etcd then does what a KvStore promises is what conformance_test.cc shows.
#include "kvnet/etcd_convert.h"

#include <gtest/gtest.h>

namespace cairnfs::kvnet {
namespace {

using etcdserverpb::Compare;

const EtcdKeys kKeys("/cairnfs/");

TEST(EtcdKeys, KeysAndSlotsLieBesideEachOther) {
  EXPECT_EQ(kKeys.Key("MN"), "/cairnfs/kMN");
  EXPECT_EQ(kKeys.Slot("host-1"), "/cairnfs/shost-1");
  EXPECT_EQ(kKeys.RangeEnd("N"), "/cairnfs/kN");
  EXPECT_EQ(kKeys.RangeEnd(""), "/cairnfs/l") << "after the last key, and before the slots";
  EXPECT_LT(kKeys.Key("\xff\xff"), kKeys.RangeEnd(""));
  EXPECT_GT(kKeys.Slot(""), kKeys.RangeEnd(""));
  EXPECT_EQ(kKeys.Strip(kKeys.Key("MN")), "MN");
  EXPECT_EQ(kKeys.Strip(kKeys.Key("")), "");
}

TEST(ToEtcd, Compares) {
  kv::Transaction transaction;
  transaction.IfRevision("a", 7).IfAbsent("b").IfExists("c").IfRangeEmpty("d", "e").IfRangeUnchanged("f", "", 41);
  const auto request = ToEtcd(kKeys, transaction, nullptr);
  ASSERT_EQ(request.compare_size(), 5);
  auto expect = [&](int index, const std::string& key, const std::string& end, int target, int result, int64_t value) {
    const Compare& compare = request.compare(index);
    SCOPED_TRACE(index);
    EXPECT_EQ(compare.key(), key);
    EXPECT_EQ(compare.range_end(), end);
    EXPECT_EQ(compare.target(), target);
    EXPECT_EQ(compare.result(), result);
    EXPECT_EQ(target == Compare::MOD ? compare.mod_revision() : compare.version(), value);
  };
  expect(0, "/cairnfs/ka", "", Compare::MOD, Compare::EQUAL, 7);
  expect(1, "/cairnfs/kb", "", Compare::MOD, Compare::EQUAL, 0);
  expect(2, "/cairnfs/kc", "", Compare::VERSION, Compare::GREATER, 0);
  expect(3, "/cairnfs/kd", "/cairnfs/ke", Compare::VERSION, Compare::EQUAL, 0);
  expect(4, "/cairnfs/kf", "/cairnfs/l", Compare::MOD, Compare::LESS, 42);
  EXPECT_EQ(request.success_size(), 0);
  EXPECT_EQ(request.failure_size(), 0);
}

// To etcd an end that is not after the begin is something else than a range without keys.
TEST(ToEtcd, ComparesOfNoKeysAreLeftOut) {
  kv::Transaction transaction;
  transaction.IfRangeEmpty("d", "d").IfRangeUnchanged("f", "e", 41);
  EXPECT_EQ(ToEtcd(kKeys, transaction, nullptr).compare_size(), 0);
}

TEST(ToEtcd, OfTwoWritesToAKeyTheLaterOneIsSent) {
  kv::Transaction transaction;
  transaction.Put("a", "first").Put("b", "kept").Put("a", "second").Put("c", "gone").Delete("c");
  transaction.writes.push_back({"d", "leased", 99});
  const auto request = ToEtcd(kKeys, transaction, nullptr);
  ASSERT_EQ(request.success_size(), 4);
  EXPECT_EQ(request.success(0).request_put().key(), "/cairnfs/ka");
  EXPECT_EQ(request.success(0).request_put().value(), "second");
  EXPECT_EQ(request.success(1).request_put().value(), "kept");
  EXPECT_EQ(request.success(2).request_delete_range().key(), "/cairnfs/kc");
  EXPECT_EQ(request.success(2).request_delete_range().range_end(), "");
  EXPECT_EQ(request.success(3).request_put().lease(), 99);
  EXPECT_EQ(request.success(0).request_put().lease(), 0);
}

TEST(ToEtcd, ASlotIsComparedAndPutAndReadOnFailure) {
  const kv::SlotClaim slot{"host-1", 12, "attempt", 5};
  const auto request = ToEtcd(kKeys, kv::Transaction().Put("a", "v"), &slot);
  ASSERT_EQ(request.compare_size(), 1);
  EXPECT_EQ(request.compare(0).key(), "/cairnfs/shost-1");
  EXPECT_EQ(request.compare(0).target(), Compare::MOD);
  EXPECT_EQ(request.compare(0).result(), Compare::EQUAL);
  EXPECT_EQ(request.compare(0).mod_revision(), 12);
  ASSERT_EQ(request.success_size(), 2);
  EXPECT_EQ(request.success(1).request_put().key(), "/cairnfs/shost-1");
  EXPECT_EQ(request.success(1).request_put().value(), "attempt");
  EXPECT_EQ(request.success(1).request_put().lease(), 5);
  ASSERT_EQ(request.failure_size(), 1);
  EXPECT_EQ(request.failure(0).request_range().key(), "/cairnfs/shost-1");
}

TEST(FromEtcd, Answers) {
  const kv::SlotClaim slot{};
  etcdserverpb::TxnResponse committed;
  committed.set_succeeded(true);
  committed.mutable_header()->set_revision(44);
  auto answer = FromEtcd(committed, &slot);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->committed);
  EXPECT_EQ(answer->revision, 44u);

  etcdserverpb::TxnResponse refused;
  answer = FromEtcd(refused, /*slot=*/nullptr);
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->committed);
  EXPECT_FALSE(FromEtcd(refused, &slot).has_value()) << "it does not tell of the slot";
  auto& range = *refused.add_responses()->mutable_response_range();
  answer = FromEtcd(refused, &slot);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->slot_revision, 0u) << "there is none";
  range.add_kvs()->set_mod_revision(13);
  range.mutable_kvs(0)->set_value("another attempt");
  answer = FromEtcd(refused, &slot);
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->committed);
  EXPECT_EQ(answer->slot_revision, 13u);
  EXPECT_EQ(answer->slot_value, "another attempt");
}

TEST(FoundInSlot, TheAttemptsNameTellsThatItRan) {
  const kv::SlotClaim slot{"host-1", 12, "attempt", 5};
  etcdserverpb::RangeResponse read;
  read.add_kvs()->set_value("an earlier attempt");
  read.mutable_kvs(0)->set_mod_revision(12);
  EXPECT_FALSE(FoundInSlot(read, slot).has_value()) << "the slot is as it was";
  read.mutable_kvs(0)->set_value("attempt");
  read.mutable_kvs(0)->set_mod_revision(44);
  const auto answer = FoundInSlot(read, slot);
  ASSERT_TRUE(answer.has_value());
  EXPECT_TRUE(answer->committed);
  EXPECT_EQ(answer->revision, 44u);
}

// As a claim that would rule an attempt out finds it, when the attempt ran.
TEST(FoundInSlot, AnotherNameThanExpectedIsHandedOut) {
  const kv::SlotClaim slot{"host-1", 12, "!attempt", 5};
  etcdserverpb::RangeResponse read;
  read.add_kvs()->set_value("attempt");
  read.mutable_kvs(0)->set_mod_revision(44);
  auto answer = FoundInSlot(read, slot);
  ASSERT_TRUE(answer.has_value());
  EXPECT_FALSE(answer->committed);
  EXPECT_EQ(answer->slot_revision, 44u);
  EXPECT_EQ(answer->slot_value, "attempt");
  answer = FoundInSlot(etcdserverpb::RangeResponse(), slot);
  ASSERT_TRUE(answer.has_value()) << "the slot is gone with its lease";
  EXPECT_FALSE(answer->committed);
  EXPECT_EQ(answer->slot_revision, 0u);
  EXPECT_FALSE(FoundInSlot(etcdserverpb::RangeResponse(), {"host-1", 0, "attempt", 5}).has_value()) << "it was new";
}

}  // namespace
}  // namespace cairnfs::kvnet
