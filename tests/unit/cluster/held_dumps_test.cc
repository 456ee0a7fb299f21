// Holds of dumps: no collection begins while one is made, and what it holds stays until it is released.
#include "cluster/held_dumps.h"

#include "base/hex.h"
#include "cluster/epochs.h"
#include "member_fixture.h"

namespace cairnfs::cluster {
namespace {

std::string FileKey(uint8_t inode) { return std::string("D\0\0\0\0\0\0\0", 8) + static_cast<char>(inode); }

// docs/formats/cluster.md
TEST(HeldDump, Bytes) {
  HeldDump hold;
  hold.taken = {0x0102, 3};
  hold.until = {4, 5};
  hold.records = 6;
  hold.is_complete = true;
  hold.host = "no";
  const kv::KvEntry entry{std::string("R\0\0\0\0\0\0\0\7", 9), hold.Encode(), 1};
  EXPECT_EQ(ToHex(entry.value),
            "0101"
            "020100000000000003000000"
            "040000000000000005000000"
            "0600000000000000"
            "026e6f");
  const auto decoded = HeldDump::Decode(entry);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->id, 7U);
  EXPECT_EQ(decoded->taken, hold.taken);
  EXPECT_EQ(decoded->until, hold.until);
  EXPECT_EQ(decoded->records, 6U);
  EXPECT_TRUE(decoded->is_complete);
  EXPECT_EQ(decoded->host, "no");
  for (size_t size = 0; size < entry.value.size(); ++size) {
    EXPECT_FALSE(HeldDump::Decode({entry.key, entry.value.substr(0, size), 1}).ok()) << size;
  }
  EXPECT_FALSE(HeldDump::Decode({entry.key, entry.value + '\0', 1}).ok());
  EXPECT_FALSE(HeldDump::Decode({entry.key.substr(1), entry.value, 1}).ok());
  for (const auto& [at, value] : {std::pair<size_t, char>{0, 2}, {1, 2}}) {
    std::string wrong = entry.value;
    wrong[at] = value;
    EXPECT_FALSE(HeldDump::Decode({entry.key, wrong, 1}).ok()) << at;
  }
}

class HeldDumpsTest : public MemberTest {
 protected:
  void SetUp() override { member_ = Must(Membership::Join(line_, OptionsOf(1))); }
  Status Announce() {
    Epochs epochs(*store_, *member_);
    return epochs.Announce({}, Must(epochs.Read({})));
  }
  size_t CountKeys() { return Must(store_->Range({}, "R", "S", 0)).entries.size(); }

  std::unique_ptr<Membership> member_;
};

TEST_F(HeldDumpsTest, NoCollectionBeginsWhileOneIsMade) {
  {
    HoldInTheMaking made(line_, *member_);
    ASSERT_TRUE(made.Begin({}, "host1").ok());
    EXPECT_EQ(Announce().error().code, ErrorCode::kConflict);
    ASSERT_TRUE(made.Add({}, FileKey(1), "one").ok());
    ASSERT_TRUE(made.Add({}, FileKey(2), "two").ok());
    const auto held = made.Finish({}, std::chrono::hours(1));
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(held->records, 2U);
    EXPECT_TRUE(held->is_complete);
    EXPECT_EQ(held->until.seconds - held->taken.seconds, 3600);
  }
  EXPECT_TRUE(Announce().ok());
  const auto holds = Must(ListHolds({}, *store_));
  ASSERT_EQ(holds.size(), 1U);
  EXPECT_EQ(holds[0].host, "host1");
  EXPECT_EQ(holds[0].records, 2U);
  std::vector<std::string> values;
  for (const kv::KvEntry& entry : Must(store_->Range({}, "R", "S", 0)).entries) {
    if (!IsHeldRecord(entry.key)) continue;
    EXPECT_EQ(HoldOfKey(entry.key), holds[0].id);
    values.push_back(entry.value);
  }
  EXPECT_EQ(values, (std::vector<std::string>{"one", "two"}));
}

TEST_F(HeldDumpsTest, ACollectionThatIsUnderWayIsWaitedFor) {
  ASSERT_TRUE(Announce().ok());
  HoldInTheMaking made(line_, *member_);
  auto begun = std::async(std::launch::async, [&] { return made.Begin({}, "host1"); });
  EXPECT_FALSE(IsReadyWithin(begun, milliseconds(500)));
  Epochs epochs(*store_, *member_);
  CollectionPart part;
  part.phase = CollectionPart::Phase::kDone;
  part.announcement = Must(epochs.Read({})).announced->revision;
  ASSERT_TRUE(epochs.Tell({}, part).ok());
  EXPECT_TRUE(begun.get().ok());
}

TEST_F(HeldDumpsTest, WhoStopsItLeavesNothing) {
  ASSERT_TRUE(Announce().ok());
  std::stop_source stop;
  stop.request_stop();
  {
    HoldInTheMaking made(line_, *member_);
    EXPECT_EQ(made.Begin(Context(stop.get_token()), "host1").error().code, ErrorCode::kInterrupted);
  }
  EXPECT_EQ(CountKeys(), 0U);
  EXPECT_FALSE(Exists(HoldingKey()));
}

TEST_F(HeldDumpsTest, WithoutAnEndNothingIsHeld) {
  {
    HoldInTheMaking made(line_, *member_);
    ASSERT_TRUE(made.Begin({}, "host1").ok());
    for (uint8_t i = 0; i < 200; ++i) ASSERT_TRUE(made.Add({}, FileKey(i), std::string(100'000, 'x')).ok());
    EXPECT_GT(CountKeys(), 1U) << "some are in the store by now";
  }
  EXPECT_EQ(CountKeys(), 0U);
  EXPECT_TRUE(Announce().ok());
}

TEST_F(HeldDumpsTest, OneWhoseAnswerIsLostIsTakenBack) {
  line_.commits_are_unsure = true;
  {
    HoldInTheMaking made(line_, *member_);
    EXPECT_EQ(made.Begin({}, "host1").error().code, ErrorCode::kUnavailable);
    line_.commits_are_unsure = false;
  }
  EXPECT_EQ(CountKeys(), 0U);
  EXPECT_FALSE(Exists(HoldingKey()));
}

TEST_F(HeldDumpsTest, TwoAreNotMadeAtOnce) {
  HoldInTheMaking one(line_, *member_), two(line_, *member_);
  ASSERT_TRUE(one.Begin({}, "host1").ok());
  EXPECT_EQ(two.Begin({}, "host1").error().code, ErrorCode::kBusy);
  ASSERT_TRUE(one.Finish({}, std::chrono::hours(1)).ok());
  Clock::SleepFor(milliseconds(1));  // the id of each is its time
  EXPECT_TRUE(two.Begin({}, "host1").ok());
}

// A collection may have begun since.
TEST_F(HeldDumpsTest, WhoLosesItsSessionHoldsNothing) {
  {
    HoldInTheMaking made(line_, *member_);
    ASSERT_TRUE(made.Begin({}, "host1").ok());
    ASSERT_TRUE(made.Add({}, FileKey(1), "one").ok());
    EndSession(*member_);
    EXPECT_EQ(CodeOf(made.Finish({}, std::chrono::hours(1))), ErrorCode::kStale);
  }
  EXPECT_EQ(CountKeys(), 0U);
}

TEST_F(HeldDumpsTest, EachEndsByItselfOrIsReleased) {
  std::vector<uint64_t> ids;
  for (const auto hold : {std::chrono::seconds(0), std::chrono::seconds(3600), std::chrono::seconds(7200)}) {
    HoldInTheMaking made(line_, *member_);
    ASSERT_TRUE(made.Begin({}, "host1").ok());
    ASSERT_TRUE(made.Add({}, FileKey(1), "one").ok());
    ids.push_back(Must(made.Finish({}, hold)).id);
    Clock::SleepFor(milliseconds(1));
  }
  ASSERT_TRUE(ReleaseEndedHolds({}, *store_).ok());
  EXPECT_EQ(Must(ListHolds({}, *store_)).size(), 2U);
  ASSERT_TRUE(ReleaseHold({}, *store_, ids[1]).ok());
  const auto left = Must(ListHolds({}, *store_));
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].id, ids[2]);
  EXPECT_EQ(CountKeys(), 2U);
  EXPECT_EQ(ReleaseHold({}, *store_, ids[1]).error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace cairnfs::cluster
