// Who leaves a cluster for good: down for long, removed, drained, or replaced.
#include "base/clock.h"
#include "cluster/membership.h"
#include "member_fixture.h"

namespace cairnfs::cluster {
namespace {

using MembershipTest = MemberTest;

// --- Down and out. ---

TEST_F(MembershipTest, DownForLongIsOutForAllUntilItComesBack) {
  MembershipOptions options = OptionsOf(1);
  options.out_after = milliseconds(200);
  auto first = Must(Membership::Join(*store_, options));
  options.self.id = IdOf(2);
  auto second = Must(Membership::Join(*store_, options));
  auto third = Must(Membership::Join(*store_, OptionsOf(3)));
  third.reset();
  ExpectSeen(*first, "1+ 2+ 3x");
  ExpectSeen(*second, "1+ 2+ 3x");
  auto record = OutRecord::Decode(Must(store_->Get({}, KeyOf(MemberKey::kOut, IdOf(3))))->value);
  ASSERT_TRUE(record.ok());
  EXPECT_TRUE(record->found_by == IdOf(1) || record->found_by == IdOf(2));
  // Whoever comes later sees the same.
  auto fourth = Must(Membership::Join(*store_, OptionsOf(4)));
  EXPECT_EQ(Seen(*fourth), "1+ 2+ 3x 4+");

  third = Must(Membership::Join(*store_, OptionsOf(3)));
  for (const auto* member : {&first, &second, &third, &fourth}) ExpectSeen(**member, "1+ 2+ 3+ 4+");
}

TEST_F(MembershipTest, WhileNobodyLookedNobodyWentOut) {
  MembershipOptions options = OptionsOf(1);
  options.out_after = milliseconds(400);
  auto first = Must(Membership::Join(*store_, options));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  first.reset();
  second.reset();
  Clock::SleepFor(options.out_after * 2);
  EXPECT_FALSE(Exists(KeyOf(MemberKey::kOut, IdOf(2))));
  const auto joins_at = Clock::Now();
  first = Must(Membership::Join(*store_, options));
  ExpectSeen(*first, "1+ 2x");
  EXPECT_GE(Clock::Now() - joins_at, options.out_after) << "somebody has to look for so long";
}

TEST_F(MembershipTest, WhileTheObserverWasCutOffNobodyWentOut) {
  MembershipOptions options = OptionsOf(1);
  options.out_after = milliseconds(500);
  auto first = Must(Membership::Join(line_, options));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  const auto goes_at = Clock::Now();
  second.reset();
  EXPECT_TRUE(Eventually([&] { return Seen(*first) != "1+ 2+"; }));
  const uint64_t renewals = first->stats().renewals_total;
  EXPECT_TRUE(Eventually([&] { return first->stats().renewals_total > renewals + 2; }));  // it has begun to count
  line_.cut = true;
  const auto cut_at = Clock::Now();
  Clock::SleepFor(options.out_after * 2);
  const auto back_at = Clock::Now();
  line_.cut = false;
  ExpectSeen(*first, "1+ 2x");
  // A renewal counts for what passed since the one before it, for two rounds at most.
  const auto looked = (cut_at - goes_at) + (Clock::Now() - back_at);
  EXPECT_GE(looked + 4 * options.renew_every, options.out_after);
}

using Removal = Membership::Removal;
using Drain = Membership::Drain;

TEST_F(MembershipTest, OneThatIsLostIsRemovedWhenItIsNotUp) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_EQ(CodeOf(first->Remove(IdOf(2), Removal::kLost)), ErrorCode::kBusy);
  EXPECT_EQ(CodeOf(first->Remove(IdOf(1), Removal::kLost)), ErrorCode::kBusy);
  EXPECT_EQ(CodeOf(first->Remove(IdOf(9), Removal::kLost)), ErrorCode::kNotFound);
  second.reset();
  ASSERT_TRUE(first->Remove(IdOf(2), Removal::kLost).ok());
  ExpectSeen(*first, "1+");
  EXPECT_EQ(Must(store_->Range({}, "M", "N", 0)).entries.size(), 3u);
  EXPECT_EQ(Membership::Join(*store_, OptionsOf(2)).error().code, ErrorCode::kPermission);
  // Until somebody lets it back.
  Must(store_->Commit({}, kv::Transaction().Delete(KeyOf(MemberKey::kRemoved, IdOf(2)))));
  second = Must(Membership::Join(*store_, OptionsOf(2)));
  ExpectSeen(*first, "1+ 2+");
}

TEST_F(MembershipTest, OneThatJoinedAndWasNeverThereIsRemoved) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  const std::string key = KeyOf(MemberKey::kJoined, IdOf(2));
  Must(store_->Commit({}, PutOf(key, NodeRecord{"host2", "10.0.0.2:7000", "", 0}.Encode())));
  EXPECT_EQ(Must(ReadJoined({}, *store_))[0].name, "host2");
  EXPECT_EQ(Seen(*first), "1+");
  EXPECT_EQ(CodeOf(first->Replace(IdOf(2), Membership::PlaceName::kKept)), ErrorCode::kNotFound);
  ASSERT_TRUE(first->Remove(IdOf(2), Removal::kDrained).ok());
  EXPECT_TRUE(Must(ReadJoined({}, *store_)).empty());
  EXPECT_EQ(Membership::Join(*store_, OptionsOf(2)).error().code, ErrorCode::kPermission);
  // Its first session ends the note.
  Must(store_->Commit({}, PutOf(key, "?").Delete(KeyOf(MemberKey::kRemoved, IdOf(2)))));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_FALSE(Exists(key));
  EXPECT_EQ(CodeOf(first->Remove(IdOf(2), Removal::kDrained)), ErrorCode::kBusy);
}

TEST_F(MembershipTest, OneThatWasDrainedIsRemovedOnceItIsEmpty) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_EQ(CodeOf(first->SetDrain(IdOf(9), Drain::kBegin)), ErrorCode::kNotFound);
  ASSERT_TRUE(first->SetDrain(IdOf(2), Drain::kBegin).ok());
  ASSERT_TRUE(first->SetDrain(IdOf(2), Drain::kBegin).ok());
  ExpectSeen(*first, "1+ 2+d");
  // It goes on after a restart.
  second.reset();
  EXPECT_EQ(CodeOf(first->Remove(IdOf(2), Removal::kDrained)), ErrorCode::kInvalidArgument);
  second = Must(Membership::Join(*store_, OptionsOf(2)));
  ExpectSeen(*second, "1+ 2+d");
  const uint64_t drain = second->view()->Find(IdOf(2))->drain;
  second->SetEmpty(true, drain - 1);  // of an earlier drain
  second->SetEmpty(true, drain);
  ExpectSeen(*first, "1+ 2+e");
  EXPECT_EQ(CodeOf(first->Remove(IdOf(2), Removal::kDrained)), ErrorCode::kBusy);
  second.reset();
  ASSERT_TRUE(first->Remove(IdOf(2), Removal::kDrained).ok());
  ExpectSeen(*first, "1+");
  EXPECT_EQ(Must(store_->Range({}, "M", "N", 0)).entries.size(), 3u);  // first's two, and MR
}

TEST_F(MembershipTest, ADrainThatWasTakenBackAndBegunAgainIsAnotherOne) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  ASSERT_TRUE(first->SetDrain(IdOf(2), Drain::kBegin).ok());
  ExpectSeen(*second, "1+ 2+d");
  const uint64_t drain = second->view()->Find(IdOf(2))->drain;
  ASSERT_TRUE(first->SetDrain(IdOf(2), Drain::kCancel).ok());
  ExpectSeen(*second, "1+ 2+");
  ASSERT_TRUE(first->SetDrain(IdOf(2), Drain::kBegin).ok());
  ExpectSeen(*second, "1+ 2+d");
  second->SetEmpty(true, drain);
  const uint64_t renewals = second->stats().renewals_total;
  EXPECT_TRUE(Eventually([&] { return second->stats().renewals_total > renewals + 2; }));
  EXPECT_EQ(Seen(*first), "1+ 2+d");
}

// --- In the place of another one. ---

using Name = Membership::PlaceName;

NodeRecord RecordOf(kv::SharedKvStore& store, const NodeId& id) {
  return Must(NodeRecord::Decode(Must(store.Get({}, KeyOf(MemberKey::kNode, id)))->value));
}

TEST_F(MembershipTest, OneTakesThePlaceOfAnotherOneThatIsNotUp) {
  auto old = Must(Membership::Join(*store_, OptionsOf(2)));
  MembershipOptions options = OptionsOf(3);
  options.unconfigured = {true, true, true};
  auto fresh = Must(Membership::Join(line_, options));
  EXPECT_EQ(CodeOf(fresh->Replace(IdOf(2), Name::kKept)), ErrorCode::kBusy);
  EXPECT_EQ(CodeOf(fresh->Replace(IdOf(9), Name::kKept)), ErrorCode::kNotFound);
  EXPECT_EQ(RecordOf(*store_, IdOf(3)).weight, 3);
  old.reset();
  // The answer is lost; a second call finds it done.
  line_.commits_are_unsure = true;
  EXPECT_EQ(CodeOf(fresh->Replace(IdOf(2), Name::kKept)), ErrorCode::kUnavailable);
  line_.commits_are_unsure = false;
  ASSERT_TRUE(fresh->Replace(IdOf(2), Name::kKept).ok());
  ExpectSeen(*fresh, "3+");
  const NodeRecord taken{"host3", "10.0.0.3:7000", "rack0", 2};
  EXPECT_EQ(RecordOf(*store_, IdOf(3)), taken);
  EXPECT_EQ(Membership::Join(*store_, OptionsOf(2)).error().code, ErrorCode::kPermission);
  // Over a restart, and a session that is lost; what is configured counts.
  fresh.reset();
  options.self.weight = 7;
  fresh = Must(Membership::Join(line_, options));
  EXPECT_EQ(RecordOf(*store_, IdOf(3)), taken);
  fresh.reset();
  options.unconfigured = {true, true, false};
  fresh = Must(Membership::Join(line_, options));
  EXPECT_EQ(RecordOf(*store_, IdOf(3)).weight, 7);
  EXPECT_EQ(RecordOf(*store_, IdOf(3)).domain, "rack0");
  // One that came back afterwards is not the one whose place was taken.
  Must(store_->Commit({}, kv::Transaction().Delete(KeyOf(MemberKey::kRemoved, IdOf(2)))));
  old = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_EQ(CodeOf(fresh->Replace(IdOf(2), Name::kKept)), ErrorCode::kBusy);
}

TEST_F(MembershipTest, TheNameIsTakenWhereItIsAskedForAndNotConfigured) {
  { auto old = Must(Membership::Join(*store_, OptionsOf(2))); }
  MembershipOptions options = OptionsOf(3);
  options.unconfigured.name = true;
  auto fresh = Must(Membership::Join(*store_, options));
  ASSERT_TRUE(fresh->Replace(IdOf(2), Name::kTaken).ok());
  const NodeRecord named{"host2", "10.0.0.3:7000", "rack1", 3};
  EXPECT_EQ(RecordOf(*store_, IdOf(3)), named);
  // Removed, it leaves nothing but that.
  fresh.reset();
  auto other = Must(Membership::Join(*store_, OptionsOf(1)));
  ASSERT_TRUE(other->Remove(IdOf(3), Removal::kLost).ok());
  EXPECT_EQ(Must(store_->Range({}, "M", "N", 0)).entries.size(), 4u);  // MN, MS of 1, MR of 2 and 3
}

}  // namespace
}  // namespace cairnfs::cluster
