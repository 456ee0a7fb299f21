// Commits over a network that loses requests and answers, and delivers requests late.
#include "kv/commit_slots.h"

#include <deque>
#include <thread>

#include "base/clock.h"
#include "kv/hosted_store.h"
#include "support.h"

namespace cairnfs::kv {
namespace {

constexpr ErrorCode kLost = ErrorCode::kUnavailable;

class FaultyNetwork final : public SlotTransport {
 public:
  FaultyNetwork(HostedStore& store, uint64_t seed) : store_(store), random_(seed) {}

  Result<SlottedAnswer> TryCommit(const Context&, const Transaction& transaction, const SlotClaim* slot) override {
    const int fate = Draw();
    if (slot == nullptr) {
      CAIRNFS_ASSIGN_OR_RETURN(uint64_t revision, store_.Commit({}, transaction));
      return SlottedAnswer{.committed = true, .revision = revision};
    }
    if (fate < lose_request) return MakeError(kLost, "the request was lost");
    if (Draw() < come_twice) CAIRNFS_RETURN_IF_ERROR(ErrorIn(store_.CommitSlotted(transaction, *slot)));
    if (fate < lose_request + delay_request) {
      MutexLock lock(mutex_);
      delayed_.push_back({transaction, *slot});
      return MakeError(kLost, "the request is late");
    }
    Result<SlottedAnswer> answer = store_.CommitSlotted(transaction, *slot);
    if (fate < lose_request + delay_request + lose_answer) return MakeError(kLost, "the answer was lost");
    return answer;
  }
  Result<LeaseId> TryGrantLease(const Context&, std::chrono::milliseconds ttl) override {
    Result<LeaseId> lease = store_.GrantLease({}, ttl);
    if (Draw() < lose_answer) return MakeError(kLost, "the answer was lost");
    if (lease.ok()) last_lease = *lease;
    return lease;
  }
  Status TryRevokeLease(const Context&, LeaseId lease) override { return store_.RevokeLease({}, lease); }

  // Delivers a request that was delayed, if there is one.
  void DeliverLate() {
    MutexLock lock(mutex_);
    if (delayed_.empty()) return;
    const auto [transaction, slot] = std::move(delayed_.front());
    delayed_.pop_front();
    lock.Unlock();
    if (Result<SlottedAnswer> answer = store_.CommitSlotted(transaction, slot); answer.ok() && answer->committed) {
      ++late_that_ran;
    }
  }

  std::atomic<int> lose_request{0}, delay_request{0}, lose_answer{0}, come_twice{0};  // percent
  std::atomic<int> late_that_ran{0};
  std::atomic<LeaseId> last_lease{0};

 private:
  struct Delayed {
    Transaction transaction;
    SlotClaim slot;
  };
  static Status ErrorIn(const Result<SlottedAnswer>& answer) { return answer.ok() ? Status() : Status(answer.error()); }
  int Draw() {
    MutexLock lock(mutex_);
    return std::uniform_int_distribution<int>(0, 99)(random_);
  }
  HostedStore& store_;
  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  std::deque<Delayed> delayed_ GUARDED_BY(mutex_);
};

class CommitSlotsTest : public testing::Test {
 protected:
  static RetryOptions Options() {
    RetryOptions options;
    options.wait_min = std::chrono::milliseconds(1);
    options.wait_max = std::chrono::milliseconds(2);
    return options;
  }
  int Counter(const std::string& key) {
    std::optional<KvEntry> entry = Must(store_->Get({}, key));
    return entry ? std::stoi(entry->value) : 0;
  }
  size_t SlotsOnEngine() {
    size_t slots = 0;
    MustSucceed(engine_->Scan("S", "T", nullptr, [&](std::string_view, std::string_view) { return ++slots > 0; }));
    return slots;
  }
  // Adds one, as often as it takes. False: the commit said that it does not know.
  bool Increment(CommitSlots& slots, const std::string& key) {
    for (;;) {
      std::optional<KvEntry> entry = Must(store_->Get({}, key));
      Result<uint64_t> result =
          slots.Commit({}, Transaction()
                               .IfRevision(key, entry ? entry->revision : 0)
                               .Put(key, std::to_string(entry ? std::stoi(entry->value) + 1 : 1)));
      if (result.ok()) return true;
      if (result.error().code != ErrorCode::kConflict) {
        EXPECT_EQ(result.error().code, kLost) << result.error().message;
        return false;
      }
    }
  }

  std::unique_ptr<KvEngine> engine_ = OpenMemoryEngine();
  std::unique_ptr<HostedStore> store_ = Must(HostedStore::Open(*engine_));
  FaultyNetwork network_{*store_, TestSeed()};
};

TEST_F(CommitSlotsTest, EveryIncrementCountsOnceWhateverIsLost) {
  network_.lose_request = network_.delay_request = network_.lose_answer = 15;
  constexpr int kThreads = 4, kIncrements = 150;
  {
    CommitSlots slots(network_, Options());
    std::atomic<bool> done{false};
    std::jthread late([&] {
      while (!done) {
        network_.DeliverLate();
        Clock::SleepFor(std::chrono::microseconds(300));
      }
    });
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kIncrements; ++i) {
          EXPECT_TRUE(Increment(slots, "shared"));
          EXPECT_TRUE(Increment(slots, "own" + std::to_string(t)));
        }
      });
    }
    threads.clear();
    done = true;
    EXPECT_LE(SlotsOnEngine(), static_cast<size_t>(kThreads));
  }
  EXPECT_EQ(Counter("shared"), kThreads * kIncrements);
  for (int t = 0; t < kThreads; ++t) EXPECT_EQ(Counter("own" + std::to_string(t)), kIncrements);
  EXPECT_EQ(SlotsOnEngine(), 0u) << "they are given back";
}

// Blind writes: nothing in the transaction itself keeps a late one out.
TEST_F(CommitSlotsTest, LateRequestsChangeNothing) {
  CommitSlots slots(network_, Options());
  for (int i = 0; i < 300; ++i) {
    network_.delay_request = 50;
    Must(slots.Commit({}, Transaction().Put("a", std::to_string(i))));
    network_.delay_request = 0;
    for (int j = 0; j < 20; ++j) network_.DeliverLate();
    ASSERT_EQ(Counter("a"), i);
  }
  EXPECT_EQ(network_.late_that_ran, 0);
}

TEST_F(CommitSlotsTest, ARequestThatComesTwiceRunsOnceAndIsNoConflict) {
  CommitSlots slots(network_, Options());
  network_.come_twice = 50;
  for (int i = 0; i < 60; ++i) {
    const std::string key = "key" + std::to_string(i);
    const uint64_t revision = Must(slots.Commit({}, Transaction().IfAbsent(key).Put(key, "1")));
    EXPECT_EQ(Must(store_->Get({}, key))->revision, revision);
  }
}

TEST_F(CommitSlotsTest, ConflictsAreTold) {
  CommitSlots slots(network_, Options());
  Must(slots.Commit({}, Transaction().IfAbsent("a").Put("a", "1")));
  network_.lose_answer = 60;
  for (int i = 0; i < 30; ++i) {
    Result<uint64_t> result = slots.Commit({}, Transaction().IfAbsent("a").Put("a", "2"));
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kConflict);
  }
  EXPECT_EQ(Counter("a"), 1);
}

TEST_F(CommitSlotsTest, RevisionOfACommitWhoseAnswerWasLost) {
  CommitSlots slots(network_, Options());
  network_.lose_answer = 50;
  for (int i = 0; i < 100; ++i) {
    const uint64_t revision = Must(slots.Commit({}, Transaction().Put("a", std::to_string(i))));
    EXPECT_EQ(Must(store_->Get({}, "a"))->revision, revision);
  }
}

TEST_F(CommitSlotsTest, OperationThatGaveUpIsFoundOutLater) {
  RetryOptions options = Options();
  options.give_up_after = std::chrono::milliseconds(30);
  CommitSlots slots(network_, options);
  Must(slots.Commit({}, Transaction().Put("slots", "are there")));
  for (int lost : {0, 1}) {
    const std::string key = "key" + std::to_string(lost);
    Transaction create = Transaction().IfAbsent(key).Put(key, "1");
    create.operation_id = key;
    (lost == 0 ? network_.lose_answer : network_.lose_request) = 100;
    Result<uint64_t> result = slots.Commit({}, create);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, kLost);
    network_.lose_answer = network_.lose_request = 0;
    const uint64_t revision = Must(slots.Commit({}, create));
    EXPECT_EQ(Must(store_->Get({}, key))->revision, revision);
    EXPECT_EQ(Must(slots.Commit({}, create)), revision);
  }
}

// The slot went with its lease: as after a backup was restored, or on a host that slept.
TEST_F(CommitSlotsTest, WhatNobodyCanTellAnyMoreIsToldAsThat) {
  RetryOptions options = Options();
  options.give_up_after = std::chrono::milliseconds(30);
  for (bool has_slot : {true, false}) {
    CommitSlots slots(network_, options);
    if (has_slot) Must(slots.Commit({}, Transaction().Put("slot", "is there")));
    Transaction create = Transaction().IfAbsent("key").Put("key", "1");
    create.operation_id = "create";
    (has_slot ? network_.lose_answer : network_.lose_request) = 100;
    EXPECT_EQ(slots.Commit({}, create).error().code, kLost);
    network_.lose_answer = network_.lose_request = 0;
    MustSucceed(store_->RevokeLease({}, network_.last_lease));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(slots.Commit({}, create).error().code, ErrorCode::kStale);
    Must(slots.Commit({}, Transaction().Put("other", "1")));
  }
}

TEST_F(CommitSlotsTest, AnOperationThatAwaitsItsAnswerIsNotForgotten) {
  RetryOptions options = Options();
  options.give_up_after = std::chrono::milliseconds(30);
  CommitSlots slots(network_, options);
  Must(slots.Commit({}, Transaction().Put("slots", "are there")));
  Transaction create = Transaction().IfAbsent("key").Put("key", "1");
  create.operation_id = "create";
  network_.lose_answer = 100;
  EXPECT_EQ(slots.Commit({}, create).error().code, kLost);
  network_.lose_answer = 0;
  for (int i = 0; i < 5000; ++i) {
    Transaction other = Transaction().Put("other", "1");
    other.operation_id = "other" + std::to_string(i);
    Must(slots.Commit({}, other));
  }
  EXPECT_EQ(Must(slots.Commit({}, create)), Must(store_->Get({}, "key"))->revision);
}

TEST_F(CommitSlotsTest, SlotsWhoseLeaseEndedAreMadeAnew) {
  CommitSlots slots(network_, Options());
  for (int i = 0; i < 5; ++i) {
    Must(slots.Commit({}, Transaction().Put("a", std::to_string(i))));
    MustSucceed(store_->RevokeLease({}, network_.last_lease));
  }
  Must(slots.Commit({}, Transaction().IfExists("a").Put("a", "5")));
  EXPECT_EQ(Counter("a"), 5);
  Transaction leased;
  leased.writes.push_back(KvWrite{"b", "", 12345});
  Result<uint64_t> result = slots.Commit({}, leased);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kNotFound);
}

TEST_F(CommitSlotsTest, OneOperationFromManyThreadsRunsOnce) {
  network_.lose_answer = 30;
  CommitSlots slots(network_, Options());
  for (int i = 0; i < 20; ++i) {
    Transaction create = Transaction().IfAbsent("k" + std::to_string(i)).Put("k" + std::to_string(i), "1");
    create.operation_id = "op" + std::to_string(i);
    std::atomic<uint64_t> revisions{0};
    {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 4; ++t) threads.emplace_back([&] { revisions += Must(slots.Commit({}, create)); });
    }
    EXPECT_EQ(revisions, 4 * Must(store_->Get({}, "k" + std::to_string(i)))->revision);
  }
}

}  // namespace
}  // namespace cairnfs::kv
