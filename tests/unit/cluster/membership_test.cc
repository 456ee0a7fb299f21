#include "cluster/membership.h"

#include "base/clock.h"
#include "member_fixture.h"

namespace cairnfs::cluster {
namespace {

using MembershipTest = MemberTest;

// --- Who is there. ---

TEST_F(MembershipTest, MembersSeeEachOther) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  EXPECT_EQ(Seen(*first), "1+");  // itself, at once
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_EQ(Seen(*second), "1+ 2+");
  auto third = Must(Membership::Join(*store_, OptionsOf(3)));
  for (const auto* member : {&first, &second, &third}) ExpectSeen(**member, "1+ 2+ 3+");

  const ViewPtr view = first->view();
  const NodeInfo* info = view->Find(third->self());
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->name, "host3");
  EXPECT_EQ(info->address, "10.0.0.3:7000");
  EXPECT_EQ(info->domain, "rack1");
  EXPECT_EQ(info->weight, 3);
  EXPECT_EQ(info->session, Must(third->session()).revision);
  EXPECT_EQ(SessionKey(third->self()), Must(third->session()).key);
}

TEST_F(MembershipTest, WhoLeavesIsDownAtOnceAndComesBackWithNewData) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  second.reset();
  ExpectSeen(*first, "1+ 2-");
  MembershipOptions options = OptionsOf(2);
  options.self.address = "10.0.0.99:7000";
  second = Must(Membership::Join(*store_, options));
  ExpectSeen(*first, "1+ 2+");
  EXPECT_EQ(first->view()->Find(IdOf(2))->address, "10.0.0.99:7000");
}

TEST_F(MembershipTest, WhoRegisteredInVainIsNotListed) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  ExpectSeen(*first, "1+ 2+");
  second->ForgetAtEnd();
  second.reset();
  ExpectSeen(*first, "1+");
  for (MemberKey kind : {MemberKey::kNode, MemberKey::kSession, MemberKey::kFull, MemberKey::kOut}) {
    EXPECT_FALSE(Exists(KeyOf(kind, IdOf(2))));
  }
  // One that was known before stays so.
  second = Must(Membership::Join(*store_, OptionsOf(2)));
  second.reset();
  second = Must(Membership::Join(*store_, OptionsOf(2)));
  second->ForgetAtEnd();
  second.reset();
  ExpectSeen(*first, "1+ 2-");
}

TEST_F(MembershipTest, ChangesAreToldUntilTheHandleEnds) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  std::atomic<size_t> nodes{0};
  std::atomic<int> calls{0};
  auto handle = first->OnChange([&](const ViewPtr& view) {
    nodes = view->nodes.size();
    calls++;
  });
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  EXPECT_TRUE(Eventually([&] { return nodes == 2; }));
  handle.reset();
  const int before = calls;
  second.reset();
  ExpectSeen(*first, "1+ 2-");
  EXPECT_EQ(calls, before);
  auto outlives = first->OnChange([](const ViewPtr&) {});
  first.reset();
  outlives.reset();
}

TEST_F(MembershipTest, OptionsThatAreWrong) {
  MembershipOptions options = OptionsOf(1);
  options.self.id = NodeId();
  EXPECT_EQ(CodeOf(Membership::Join(*store_, options)), ErrorCode::kInvalidArgument);
  options = OptionsOf(1);
  options.self.weight = -1;
  EXPECT_EQ(CodeOf(Membership::Join(*store_, options)), ErrorCode::kInvalidArgument);
  options = OptionsOf(1);
  options.renew_every = options.lease;
  EXPECT_EQ(CodeOf(Membership::Join(*store_, options)), ErrorCode::kInvalidArgument);
  options = OptionsOf(1);
  options.self.name.assign(2000, 'x');
  EXPECT_EQ(CodeOf(Membership::Join(*store_, options)), ErrorCode::kInvalidArgument);
}

TEST_F(MembershipTest, AStoreThatIsAwayRefusesToJoin) {
  line_.cut = true;
  EXPECT_EQ(CodeOf(Membership::Join(line_, OptionsOf(1))), ErrorCode::kUnavailable);
  EXPECT_FALSE(Exists(KeyOf(MemberKey::kNode, IdOf(1))));
}

// --- Losing the session. ---

TEST_F(MembershipTest, ALeaseThatIsNotKeptAliveEndsTheSession) {
  auto other = Must(Membership::Join(*store_, OptionsOf(1)));
  auto member = Must(Membership::Join(line_, BriefOptionsOf(2)));
  std::atomic<int> lost{0};
  member->OnLost([&] { lost++; });
  EXPECT_TRUE(member->LeaseHolds());
  line_.keep_alive_fails = true;
  ExpectSeen(*other, "1+ 2-");
  EXPECT_TRUE(Eventually([&] { return lost == 1; }));
  EXPECT_FALSE(member->LeaseHolds());
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kStale);
  EXPECT_EQ(member->stats().sessions_lost_total, 1u);
  EXPECT_EQ(member->stats().went_back_total, 0u);
  EXPECT_GT(member->stats().renewals_failed_total, 0u);

  line_.keep_alive_fails = false;
  ASSERT_TRUE(member->Rejoin().ok());
  EXPECT_TRUE(member->LeaseHolds());
  EXPECT_EQ(Must(member->session()).number, 2u);
  ExpectSeen(*other, "1+ 2+");
  EXPECT_EQ(Seen(*member), "1+ 2+");
  EXPECT_EQ(lost, 1);
  EXPECT_TRUE(member->Rejoin().ok());  // nothing is lost
  EXPECT_EQ(Must(member->session()).number, 2u);
}

// This host's lease has ended before the store ends it: whatever the store says, nothing that was cached may be used.
TEST_F(MembershipTest, ACutLineLeavesItUnsureUntilTheStoreSays) {
  line_.lease_factor = 100;
  auto member = Must(Membership::Join(line_, BriefOptionsOf(1)));
  line_.cut = true;
  EXPECT_TRUE(Eventually([&] { return !member->LeaseHolds(); }));
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kUnavailable);
  EXPECT_EQ(CodeOf(member->WaitForSession(Context().WithTimeout(milliseconds(20)))), ErrorCode::kUnavailable);
  line_.cut = false;
  EXPECT_EQ(Must(member->WaitForSession({})).number, 1u);
  EXPECT_TRUE(member->LeaseHolds());
  EXPECT_EQ(member->stats().sessions_lost_total, 0u);
}

TEST_F(MembershipTest, WhoIsStoppedDoesNotWaitForTheSession) {
  line_.lease_factor = 100;
  auto member = Must(Membership::Join(line_, BriefOptionsOf(1)));
  line_.cut = true;
  EXPECT_TRUE(Eventually([&] { return !member->LeaseHolds(); }));
  std::stop_source stop;
  std::thread waits(
      [&] { EXPECT_EQ(CodeOf(member->WaitForSession(Context(stop.get_token()))), ErrorCode::kUnavailable); });
  EXPECT_TRUE(Eventually([&] { return member->stats().session_waits == 1; }));
  stop.request_stop();
  waits.join();
  EXPECT_EQ(member->stats().session_waits, 0u);
}

TEST_F(MembershipTest, AfterACutTheStoreSaysThatItIsLost) {
  auto member = Must(Membership::Join(line_, BriefOptionsOf(1)));
  line_.cut = true;
  EXPECT_TRUE(Eventually([&] { return !Exists(SessionKey(IdOf(1))); }));
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kUnavailable);  // it cannot know yet
  EXPECT_TRUE(member->Rejoin().ok());                             // and does nothing as long
  line_.cut = false;
  EXPECT_EQ(CodeOf(member->WaitForSession({})), ErrorCode::kStale);
}

TEST_F(MembershipTest, TheWatchTellsOfTheLossWhenNoRenewalDoes) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  line_.keep_alive_fails = true;
  EndSession(*member);
  EXPECT_TRUE(Eventually([&] { return IsLost(*member); }));
}

TEST_F(MembershipTest, ARenewalTellsOfTheLossWhenNoWatchDoes) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  line_.watches_are_silent = true;
  EndSession(*member);
  EXPECT_TRUE(Eventually([&] { return IsLost(*member); }));
}

TEST_F(MembershipTest, LostIsToldLateToWhoAsksLateAndMayRejoin) {
  auto member = Must(Membership::Join(*store_, OptionsOf(1)));
  EndSession(*member);
  EXPECT_TRUE(Eventually([&] { return IsLost(*member); }));
  std::atomic<int> rejoined{0};
  member->OnLost([&] { rejoined += member->Rejoin().ok(); });
  EXPECT_TRUE(Eventually([&] { return rejoined == 1; }));
  EndSession(*member);
  EXPECT_TRUE(Eventually([&] { return rejoined == 2; }));
  EXPECT_EQ(Must(member->session()).number, 3u);
}

TEST_F(MembershipTest, ARejoinWhoseAnswerWasLostIsTriedAgain) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  EndSession(*member);
  EXPECT_TRUE(Eventually([&] { return IsLost(*member); }));
  line_.commits_are_unsure = true;
  EXPECT_EQ(CodeOf(member->Rejoin()), ErrorCode::kUnavailable);
  EXPECT_TRUE(Exists(SessionKey(IdOf(1))));  // it ran
  line_.commits_are_unsure = false;
  ASSERT_TRUE(member->Rejoin().ok());
  EXPECT_EQ(Must(store_->Get({}, SessionKey(IdOf(1))))->revision, Must(member->session()).revision);
}

// --- The same data directory twice. ---

TEST_F(MembershipTest, ASessionLeftByACrashIsReplacedAtOnce) {
  auto crashed = Must(Membership::Join(line_, OptionsOf(1)));
  const Membership::Session old_session = Must(crashed->session());
  line_.cut = true;  // it says nothing any more
  kv::Transaction held;
  held.writes.push_back(kv::KvWrite{"L1", "delegation", old_session.lease});
  Must(store_->Commit({}, held));

  const auto began = Clock::Now();
  auto restarted = Must(Membership::Join(*store_, OptionsOf(1)));
  EXPECT_LT(Clock::Now() - began, OptionsOf(1).lease / 2);
  EXPECT_GT(Must(restarted->session()).revision, old_session.revision);
  EXPECT_FALSE(Exists("L1"));  // what else it held ended with its lease

  line_.cut = false;
  EXPECT_TRUE(Eventually([&] { return IsLost(*crashed); }));
  EXPECT_TRUE(restarted->session().ok());
}

TEST_F(MembershipTest, TwoLivingCopiesDoNotTakeTurns) {
  auto first = Must(Membership::Join(*store_, BriefOptionsOf(1)));
  auto copy = Must(Membership::Join(*store_, BriefOptionsOf(1)));
  EXPECT_TRUE(Eventually([&] { return IsLost(*first); }));
  EXPECT_EQ(CodeOf(first->Rejoin()), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(copy->session().ok());
}

TEST_F(MembershipTest, ASessionOfAnotherPlaceIsWaitedOut) {
  auto there = Must(Membership::Join(line_, BriefOptionsOf(1)));
  MembershipOptions options = BriefOptionsOf(1);
  options.place = "another machine";
  const auto began = Clock::Now();
  auto refused = Membership::Join(*store_, options);
  EXPECT_EQ(CodeOf(refused), ErrorCode::kAlreadyExists);
  EXPECT_GE(Clock::Now() - began, options.lease);
  EXPECT_TRUE(there->session().ok());
  line_.cut = true;
  // On a busy machine the store may end the lease later than a Join waits.
  auto here = Membership::Join(*store_, options);
  EXPECT_TRUE(Eventually([&] {
    if (!here.ok() && here.error().code == ErrorCode::kAlreadyExists) here = Membership::Join(*store_, options);
    return here.ok();
  }));
  EXPECT_TRUE(Must(std::move(here))->session().ok());
}

// --- Full. ---

TEST_F(MembershipTest, FullIsToldAndTakenBackAndEndsWithTheSession) {
  auto first = Must(Membership::Join(*store_, OptionsOf(1)));
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  second->SetFull(true);
  ExpectSeen(*first, "1+ 2+f");
  second->SetFull(false);
  ExpectSeen(*first, "1+ 2+");
  second->SetFull(true);
  ExpectSeen(*first, "1+ 2+f");
  EndSession(*second);
  ExpectSeen(*first, "1+ 2-");
  EXPECT_TRUE(Eventually([&] { return IsLost(*second); }));
  ASSERT_TRUE(second->Rejoin().ok());
  ExpectSeen(*first, "1+ 2+f");
  second.reset();
  ExpectSeen(*first, "1+ 2-");
}

// --- What the watch cannot tell. ---

TEST_F(MembershipTest, AWatchThatLostItsPlaceIsMadeUpForByReading) {
  auto first = Must(Membership::Join(line_, OptionsOf(1)));
  line_.watches_are_silent = true;
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  auto third = Must(Membership::Join(*store_, OptionsOf(3)));
  third.reset();
  EXPECT_EQ(Seen(*first), "1+");
  line_.watches_are_silent = false;
  line_.callbacks().lost(Must(store_->Range({}, "M", "N", 0)).revision);
  ExpectSeen(*first, "1+ 2+ 3-");
  second.reset();
  ExpectSeen(*first, "1+ 2- 3-");
  EXPECT_TRUE(first->session().ok());
}

TEST_F(MembershipTest, AReadThatFailsIsTriedAgain) {
  auto first = Must(Membership::Join(line_, OptionsOf(1)));
  line_.watches_are_silent = true;
  auto second = Must(Membership::Join(*store_, OptionsOf(2)));
  line_.cut = true;
  line_.callbacks().lost(Must(store_->Range({}, "M", "N", 0)).revision);
  EXPECT_TRUE(Eventually([&] { return line_.ranges_failed >= 2; }));
  EXPECT_EQ(Seen(*first), "1+");
  line_.watches_are_silent = false;
  line_.cut = false;
  ExpectSeen(*first, "1+ 2+");
}

TEST_F(MembershipTest, AStoreThatWentBackEndsTheSession) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  const Membership::Session old_session = Must(member->session());
  line_.callbacks().lost(old_session.revision - 1);
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kStale);
  ASSERT_TRUE(member->Rejoin().ok());
  EXPECT_GT(Must(member->session()).revision, old_session.revision);
  EXPECT_NE(Must(member->session()).lease, old_session.lease);
}

TEST_F(MembershipTest, TheOldWatchEndsNoNewSession) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  const kv::WatchCallbacks old_watch = line_.callbacks();
  old_watch.went_back(Must(member->session()).revision);
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kStale);
  ASSERT_TRUE(member->Rejoin().ok());
  const uint64_t revision = Must(member->session()).revision;
  old_watch.went_back(revision);
  old_watch.lost(revision - 1);
  EXPECT_TRUE(member->session().ok());
  line_.callbacks().went_back(revision);
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kStale);
}

// Its disk is full, or slow: commits wait, and renewals are answered.
TEST_F(MembershipTest, ACommitThatWaitsDoesNotHoldUpTheRenewals) {
  std::atomic<bool> waits{false}, go_on{false};
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  line_.before_commit = [&](const kv::Transaction&) {
    waits = true;
    while (!go_on) Clock::SleepFor(milliseconds(5));
  };
  member->SetFull(true);
  while (!waits) Clock::SleepFor(milliseconds(5));
  const uint64_t renewals = member->stats().renewals_total;
  EXPECT_TRUE(Eventually([&] { return member->stats().renewals_total > renewals + 25; }));
  EXPECT_TRUE(member->session().ok());
  go_on = true;
  EXPECT_EQ(member->stats().sessions_lost_total, 0u);
}

TEST_F(MembershipTest, AStoreThatWentBackAndOnEndsTheSessionToo) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  const Membership::Session old_session = Must(member->session());
  line_.callbacks().lost(old_session.revision + 100);
  EXPECT_TRUE(member->session().ok()) << "what was compacted is no reason";
  EXPECT_EQ(member->stats().went_back_total, 0u);
  line_.callbacks().went_back(old_session.revision + 200);
  line_.callbacks().went_back(old_session.revision + 200);
  EXPECT_EQ(member->stats().went_back_total, 1u);
  EXPECT_EQ(CodeOf(member->session()), ErrorCode::kStale);
  EXPECT_TRUE(member->Rejoin().ok());
}

// A store that was restored may know nothing of the lease, and say so before the watch tells why.
TEST_F(MembershipTest, ThatTheStoreWentBackMayBeToldAfterTheLoss) {
  auto member = Must(Membership::Join(line_, OptionsOf(1)));
  const Membership::Session session = Must(member->session());
  member->ReportLost(session, {"its lease ended"});
  EXPECT_EQ(member->stats().went_back_total, 0u);
  line_.callbacks().went_back(session.revision);
  EXPECT_EQ(member->stats().went_back_total, 1u);
  EXPECT_EQ(member->stats().sessions_lost_total, 1u);
}

}  // namespace
}  // namespace cairnfs::cluster
