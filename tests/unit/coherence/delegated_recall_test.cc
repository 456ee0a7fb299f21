// How a delegation is had back from those that hold it.
#include "../../support/eventually.h"
#include "delegated_fixture.h"

namespace cairnfs::coherence {
namespace {

class DelegatedRecallTest : public DelegatedStoreTest {
 protected:
  // One that asks again soon, as the others do after seconds.
  struct Impatient : Host {
    Impatient(kv::SharedKvStore& store, int number) : Host(store, number, std::chrono::minutes(10), Options()) {}
    static DelegationOptions Options() {
      DelegationOptions options;
      options.ask_again_after = milliseconds(10);
      return options;
    }
  };
  void TakeAndHearOfNoRecall(const FakeSession& holder) {
    kv::Transaction take;
    take.writes.push_back({DelegationKey(kDirectory, holder.self()), "", holder.lease()});
    ASSERT_TRUE(store_->Commit({}, take).ok());
  }
  static kv::Transaction PutOfA() { return kv::Transaction().Put(DentryKey(kDirectory, "a"), "1"); }
};

TEST_F(DelegatedRecallTest, MoreHoldersThanATransactionHasRoomForAreRecalled) {
  constexpr uint64_t kHolders = 6;
  const std::string key = DentryKey(kDirectory, "a");
  std::vector<std::unique_ptr<Host>> readers;
  for (uint64_t i = 1; i <= kHolders; i++) {
    readers.push_back(std::make_unique<Host>(*store_, static_cast<int>(i)));
    ReadUntilHeld(*readers.back(), key, 1);
  }
  Host writer(*store_, 9);
  writer.fenced.limits_.operations_per_transaction_max = 4;
  auto committed = writer.names->Commit({}, kv::Transaction().Put(key, "1"));
  ASSERT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_EQ(writer.names->Stats().recalled_total, kHolders);
  for (const auto& reader : readers) EXPECT_EQ(ValueOf(*reader->names, key), "1");
  EXPECT_TRUE(store_->Range({}, "Q", "R", 0)->entries.empty());
}

// As just after an outage: the store answers again, and the next renewal is yet to come.
TEST_F(DelegatedRecallTest, ARecallWaitsUntilTheSessionIsKnownToLive) {
  Host reader(*store_, 1), writer(*store_, 2);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(reader, key, 1);
  writer.membership.LetLeaseEnd();
  ASSERT_FALSE(writer.membership.session().ok());
  auto committed = writer.names->Commit({}, kv::Transaction().Put(key, "1"));
  ASSERT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_EQ(ValueOf(*reader.names, key), "1");
}

TEST_F(DelegatedRecallTest, ARecallThatWasNotAnsweredIsAskedAgain) {
  Host reader(*store_, 1);
  Impatient writer(*store_, 2);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(reader, key, 1);
  reader.fenced.next_commit_fails = true;  // which gives it back
  auto committed = writer.names->Commit({}, kv::Transaction().Put(key, "1"));
  ASSERT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_FALSE(reader.fenced.next_commit_fails);
  EXPECT_EQ(ValueOf(*reader.names, key), "1");
  EXPECT_TRUE(store_->Range({}, "Q", "R", 0)->entries.empty());
}

// Its own watch is broken when the recall comes, and then what it missed cannot be read.
TEST_F(DelegatedRecallTest, ARecallThatWasMissedIsAskedAgain) {
  DeafStore deaf(*store_);
  Host reader(deaf, 1);
  Impatient writer(*store_, 2);
  const std::string key = DentryKey(kDirectory, "a");
  ReadUntilHeld(reader, key, 1);
  deaf.missing = true;
  auto committed = writer.names->Commit({}, kv::Transaction().Put(key, "1"));
  ASSERT_TRUE(committed.ok()) << committed.error().message;
  EXPECT_FALSE(deaf.missing);
  EXPECT_EQ(ValueOf(*reader.names, key), "1");
}

// It may have been interrupted, or be of a mount that ends.
TEST_F(DelegatedRecallTest, AStoppedCallerDoesNotWaitForARecall) {
  Host writer(*store_, 2);
  FakeSession holder(*store_, 1, std::chrono::minutes(10));
  TakeAndHearOfNoRecall(holder);
  std::stop_source stop;
  Result<uint64_t> committed = 0;
  std::thread commits([&] { committed = writer.names->Commit(Context(stop.get_token()), PutOfA()); });
  EXPECT_TRUE(Eventually([&] { return (*store_->Get({}, RecallKey(holder.self(), kDirectory))).has_value(); }));
  stop.request_stop();
  commits.join();
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(committed.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE((*store_->Get({}, DentryKey(kDirectory, "a"))).has_value());
  // Whoever asks next has it given back.
  ASSERT_TRUE(store_->RevokeLease({}, holder.lease()).ok());
  EXPECT_TRUE(writer.names->Commit({}, PutOfA()).ok());
}

TEST_F(DelegatedRecallTest, ARecallIsWaitedForNoLongerThanTheCallerHasTime) {
  Host writer(*store_, 2);
  FakeSession holder(*store_, 1, std::chrono::minutes(10));
  TakeAndHearOfNoRecall(holder);
  const auto begin = Clock::Now();
  auto committed = writer.names->Commit(Context().WithTimeout(std::chrono::seconds(10)), PutOfA());
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(committed.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(Clock::Now() - begin, std::chrono::seconds(10));
  committed = writer.names->Commit({}, PutOfA());
  ASSERT_FALSE(committed.ok());
  EXPECT_EQ(committed.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(Clock::Now() - begin, std::chrono::seconds(10) + DelegationOptions().recall_wait_max);
}

// Of two that ask, the first to be done leaves the other's question.
TEST_F(DelegatedRecallTest, ARecallOfSomebodyElseIsNotTakenBack) {
  const std::string key = DentryKey(kDirectory, "a");
  Host writer(*store_, 2);
  FakeSession holder(*store_, 1, std::chrono::minutes(10));  // which hears of no recall
  const std::string recall = RecallKey(holder.self(), kDirectory);
  TakeAndHearOfNoRecall(holder);
  writer.fenced.before_commit = [&](const kv::Transaction& transaction) {
    if (transaction.writes.front().key != recall) return;
    writer.fenced.before_commit = nullptr;
    writer.fenced.before_answer = [&] {
      ASSERT_TRUE(store_->Commit({}, kv::Transaction().Put(recall, "somebody else")).ok());
      ASSERT_TRUE(store_->RevokeLease({}, holder.lease()).ok());
    };
  };
  ASSERT_TRUE(writer.names->Commit({}, kv::Transaction().Put(key, "1")).ok());
  auto left = store_->Get({}, recall);
  ASSERT_TRUE(left.ok() && *left);
  EXPECT_EQ((*left)->value, "somebody else");
}

}  // namespace
}  // namespace cairnfs::coherence
