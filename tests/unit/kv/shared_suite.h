// What every SharedKvStore must do beside what every KvStore must. Included by one file of a program, which
// instantiates SharedConformance with its stores.
#pragma once

#include <deque>
#include <map>

#include "../../support/eventually.h"
#include "../../support/sanitizers.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/thread_annotations.h"
#include "conformance_suite.h"
#include "kv/shared_store.h"

namespace cairnfs::kv {

using std::chrono::milliseconds;

// Stays while the store behind it is opened anew.
class SharedHandle final : public SharedKvStore {
 public:
  void Set(SharedKvStore* store) { store_ = store; }
  Result<std::optional<KvEntry>> Get(const Context& context, std::string_view key) override {
    return store_->Get(context, key);
  }
  Result<KvRange> Range(const Context& context, std::string_view begin, std::string_view end, size_t limit) override {
    return store_->Range(context, begin, end, limit);
  }
  Result<KvSnapshot> Read(const Context& context, std::span<const KvSpan> spans) override {
    return store_->Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const Transaction& transaction) override {
    return store_->Commit(context, transaction);
  }
  Status Sync(const Context& context) override { return store_->Sync(context); }
  KvLimits limits() const override { return store_->limits(); }
  Result<LeaseId> GrantLease(const Context& context, milliseconds ttl) override {
    return store_->GrantLease(context, ttl);
  }
  Result<milliseconds> KeepLeaseAlive(const Context& context, LeaseId lease) override {
    return store_->KeepLeaseAlive(context, lease);
  }
  Status RevokeLease(const Context& context, LeaseId lease) override { return store_->RevokeLease(context, lease); }
  Result<std::unique_ptr<KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                         uint64_t after_revision, WatchCallbacks callbacks) override {
    return store_->Watch(context, begin, end, after_revision, std::move(callbacks));
  }

 private:
  SharedKvStore* store_ = nullptr;
};

class SharedSubject : public Subject {
 public:
  KvStore& store() override { return shared(); }
  virtual SharedKvStore& shared() = 0;
  // Makes the store forget the changes so far. False: it cannot be made to.
  virtual bool OverflowHistory() = 0;
  // It outlasts a few calls, but on a machine that is very busy.
  milliseconds lease_min{kThreadSanitizer || kAddressSanitizer ? 5000 : 1000};
};

struct SharedSetup {
  std::string name;
  std::function<std::unique_ptr<SharedSubject>()> make;
};

inline std::string SharedSetupNameOf(const testing::TestParamInfo<SharedSetup>& info) { return info.param.name; }

// What a watch was told.
class WatchLog {
 public:
  WatchCallbacks Callbacks() {
    return {[this](std::vector<KvEvent> events, uint64_t revision) {
              MutexLock lock(mutex_);
              EXPECT_FALSE(events.empty());
              for (KvEvent& event : events) {
                EXPECT_LE(event.revision, revision);
                EXPECT_GE(event.revision, last_) << "the order of revisions";
                EXPECT_GT(event.revision, told_) << "a revision that was told in parts";
                last_ = event.revision;
                events_.push_back(std::move(event));
              }
              told_ = revision;
              changed_.NotifyAll();
            },
            [this](uint64_t revision) {
              MutexLock lock(mutex_);
              lost_.push_back(revision);
              last_ = told_ = revision;
              changed_.NotifyAll();
            }};
  }
  // False: it did not come in time.
  bool WaitFor(const std::function<bool(const std::vector<KvEvent>& events, const std::vector<uint64_t>& lost)>& seen) {
    const Context in_time = Context().WithTimeout(std::chrono::seconds(60));
    MutexLock lock(mutex_);
    return in_time.Wait(mutex_, changed_, [&]() REQUIRES_LOCK(mutex_) { return seen(events_, lost_); });
  }
  bool WaitForKey(const std::string& key) {
    return WaitFor([&](const auto& events, const auto&) {
      return std::any_of(events.begin(), events.end(), [&](const KvEvent& event) { return event.key == key; });
    });
  }
  bool WaitForLost() {
    return WaitFor([](const auto&, const auto& lost) { return !lost.empty(); });
  }
  std::vector<KvEvent> events() {
    MutexLock lock(mutex_);
    return events_;
  }
  std::vector<uint64_t> lost() {
    MutexLock lock(mutex_);
    return lost_;
  }
  std::string Text() {
    std::string text;
    for (const KvEvent& event : events()) text += event.key + (event.value ? "=" + *event.value : " gone") + "; ";
    return text;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<KvEvent> events_ GUARDED_BY(mutex_);
  std::vector<uint64_t> lost_ GUARDED_BY(mutex_);
  uint64_t last_ GUARDED_BY(mutex_) = 0, told_ GUARDED_BY(mutex_) = 0;
};

class SharedConformance : public testing::TestWithParam<SharedSetup> {
 protected:
  uint64_t Put(const std::string& key, const std::string& value, LeaseId lease = 0) {
    Transaction transaction;
    transaction.writes.push_back(KvWrite{key, value, lease});
    return Must(store_.Commit({}, transaction));
  }
  // Puts the keys under a lease that ends soon. On a machine so busy that it has ended before, another one.
  LeaseId PutUnderLease(const std::vector<std::string>& keys) {
    for (;;) {
      const LeaseId lease = Must(store_.GrantLease({}, subject_->lease_min));
      Transaction transaction;
      for (const std::string& key : keys) transaction.writes.push_back(KvWrite{key, "a", lease});
      const Result<uint64_t> put = store_.Commit({}, transaction);
      if (put.ok()) return lease;
      if (put.error().code == ErrorCode::kNotFound) continue;
      ADD_FAILURE() << put.error().message;
      return lease;
    }
  }
  bool Exists(const std::string& key) { return Must(store_.Get({}, key)).has_value(); }
  bool Goes(const std::string& key) {
    return Eventually([&] { return !Exists(key); });
  }
  template <typename T>
  ErrorCode CodeOf(const Result<T>& result) {
    EXPECT_FALSE(result.ok());
    return result.ok() ? ErrorCode::kIo : result.error().code;
  }

  WatchLog log_;  // outlives what the subject watches with
  const std::unique_ptr<SharedSubject> subject_ = GetParam().make();
  SharedKvStore& store_ = subject_->shared();
};

TEST_P(SharedConformance, LeaseEndsAndItsKeysGo) {
  const auto watch = Must(store_.Watch({}, "", "", 0, log_.Callbacks()));
  const auto start = Clock::Now();
  const LeaseId lease = PutUnderLease({"leased/1", "leased/2"});
  Put("kept", "c");
  ASSERT_TRUE(Goes("leased/1"));
  EXPECT_GE(Clock::Now() - start, subject_->lease_min) << "it ended early";
  ASSERT_TRUE(Goes("leased/2"));
  EXPECT_TRUE(Exists("kept"));
  EXPECT_EQ(CodeOf(store_.KeepLeaseAlive({}, lease)), ErrorCode::kNotFound);
  Transaction late;
  late.writes.push_back(KvWrite{"late", "", lease});
  EXPECT_EQ(CodeOf(store_.Commit({}, late)), ErrorCode::kNotFound);
  EXPECT_FALSE(Exists("late"));
  EXPECT_TRUE(log_.WaitFor([](const auto& events, const auto&) {
    return std::count_if(events.begin(), events.end(), [](const KvEvent& event) { return !event.value; }) == 2;
  })) << log_.Text();
}

TEST_P(SharedConformance, LeaseThatIsKeptAliveStays) {
  auto kept_at = Clock::Now();
  const LeaseId lease = PutUnderLease({"leased"});
  const auto until = kept_at + subject_->lease_min * 3 / 2;
  while (Clock::Now() < until) {
    Clock::SleepFor(subject_->lease_min / 10);
    const auto sent_at = Clock::Now();
    const Result<milliseconds> left = store_.KeepLeaseAlive({}, lease);
    // On a machine so busy that this comes too late, it may end.
    if (!left.ok() && Clock::Now() - kept_at >= subject_->lease_min) return;
    ASSERT_TRUE(left.ok()) << left.error().message;
    EXPECT_GE(*left, subject_->lease_min * 9 / 10);
    kept_at = sent_at;
  }
  EXPECT_TRUE(Exists("leased") || Clock::Now() - kept_at >= subject_->lease_min);
  EXPECT_TRUE(Goes("leased"));
}

TEST_P(SharedConformance, RevokedLeaseIsGoneAtOnce) {
  const LeaseId lease = Must(store_.GrantLease({}, std::chrono::seconds(60)));
  const LeaseId other = Must(store_.GrantLease({}, std::chrono::seconds(60)));
  EXPECT_NE(lease, other);
  Put("mine", "a", lease);
  Put("detached", "a", lease);
  Put("detached", "b");
  Put("moved", "a", lease);
  Put("moved", "b", other);
  Put("deleted", "a", lease);
  Must(store_.Commit({}, Transaction().Delete("deleted")));
  Put("deleted", "again");
  MustSucceed(store_.RevokeLease({}, lease));
  EXPECT_FALSE(Exists("mine"));
  EXPECT_TRUE(Exists("detached"));
  EXPECT_TRUE(Exists("moved"));
  EXPECT_TRUE(Exists("deleted"));
  EXPECT_EQ(CodeOf(store_.KeepLeaseAlive({}, lease)), ErrorCode::kNotFound);
  MustSucceed(store_.RevokeLease({}, lease));
  EXPECT_TRUE(store_.KeepLeaseAlive({}, other).ok());
  MustSucceed(store_.RevokeLease({}, other));
  EXPECT_FALSE(Exists("moved"));
}

TEST_P(SharedConformance, LeasesLastOverReopening) {
  const LeaseId lease = Must(store_.GrantLease({}, std::chrono::seconds(60)));
  Put("leased", "a", lease);
  Put("other", "a");
  subject_->Reopen();
  EXPECT_TRUE(Exists("leased"));
  EXPECT_GE(Must(store_.KeepLeaseAlive({}, lease)), std::chrono::seconds(50));
  MustSucceed(store_.RevokeLease({}, lease));
  EXPECT_FALSE(Exists("leased"));
  EXPECT_TRUE(Exists("other"));
}

TEST_P(SharedConformance, WatchTellsWholeRevisionsInOrder) {
  Put("d/before", "0");
  const auto watch = Must(store_.Watch({}, "d/", "d0", 0, log_.Callbacks()));
  Put("d/first", "1");
  Put("d", "outside");
  const uint64_t revision = Must(store_.Commit(
      {}, Transaction().Put("d/a", "1").Put("d/b", "old").Put("d/b", "2").Delete("d/before").Delete("d/absent")));
  Must(store_.Commit({}, Transaction().Delete("d/a").Put("d0", "outside")));
  Put("d/last", "3");
  ASSERT_TRUE(log_.WaitForKey("d/last")) << log_.Text();
  std::vector<KvEvent> events = log_.events();
  ASSERT_EQ(events.size(), 6u) << log_.Text();
  EXPECT_EQ(events[0].key, "d/first");
  std::map<std::string, std::optional<std::string>> together;
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(events[i].revision, revision);
    together[events[i].key] = events[i].value;
  }
  const std::map<std::string, std::optional<std::string>> expected = {
      {"d/a", "1"}, {"d/b", "2"}, {"d/before", std::nullopt}};
  EXPECT_EQ(together, expected);
  EXPECT_EQ(events[4].key, "d/a");
  EXPECT_FALSE(events[4].value);
  EXPECT_TRUE(log_.lost().empty());
}

TEST_P(SharedConformance, WatchBeginsAfterTheRevisionItIsGiven) {
  Put("k/1", "1");
  const uint64_t second = Put("k/2", "2");
  Put("k/3", "3");
  Put("k/4", "4");
  const auto watch = Must(store_.Watch({}, "k/", "k0", second, log_.Callbacks()));
  Put("k/5", "5");
  ASSERT_TRUE(log_.WaitForKey("k/5"));
  EXPECT_EQ(log_.Text(), "k/3=3; k/4=4; k/5=5; ");
}

TEST_P(SharedConformance, WatchOfForgottenChangesIsLostAndGoesOn) {
  const uint64_t old = Put("k/1", "1");
  Put("k/2", "2");
  if (!subject_->OverflowHistory()) GTEST_SKIP() << "its history has no end";
  const auto watch = Must(store_.Watch({}, "k/", "k0", old, log_.Callbacks()));
  ASSERT_TRUE(log_.WaitForLost());
  EXPECT_GT(log_.lost()[0], old);
  EXPECT_EQ(Must(store_.Range({}, "k/", "k0", 0)).entries.size(), 2u);
  Put("k/3", "3");
  ASSERT_TRUE(log_.WaitForKey("k/3"));
  EXPECT_EQ(log_.Text(), "k/3=3; ");
  EXPECT_EQ(log_.lost().size(), 1u);
}

TEST_P(SharedConformance, WatchAfterARevisionThatIsNotThereYetIsLost) {
  const uint64_t revision = Put("k/1", "1");
  const auto watch = Must(store_.Watch({}, "k/", "k0", revision + 1'000'000, log_.Callbacks()));
  ASSERT_TRUE(log_.WaitForLost());
  EXPECT_GE(log_.lost()[0], revision);
  EXPECT_LT(log_.lost()[0], revision + 1'000'000);
  Put("k/2", "2");
  EXPECT_TRUE(log_.WaitForKey("k/2"));
}

TEST_P(SharedConformance, WatchesOfConcurrentCommitsMissNothing) {
  constexpr int kThreads = 4, kCommits = 40;
  const auto watch = Must(store_.Watch({}, "k/", "k0", 0, log_.Callbacks()));
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCommits; ++i) Put("k/" + std::to_string(t), std::to_string(i));
      });
    }
  }
  const auto all = [](const auto& events, const auto&) { return events.size() == kThreads * kCommits; };
  ASSERT_TRUE(log_.WaitFor(all)) << log_.Text();
  std::map<std::string, int> next;
  for (const KvEvent& event : log_.events()) EXPECT_EQ(event.value, std::to_string(next[event.key]++)) << event.key;
}

TEST_P(SharedConformance, CallbacksMayCallTheStore) {
  WatchCallbacks callbacks = log_.Callbacks();
  callbacks.changed = [this, log = callbacks.changed](std::vector<KvEvent> events, uint64_t revision) {
    if (events[0].key == "k/question") Put("k/answer", *events[0].value);
    log(std::move(events), revision);
  };
  const auto watch = Must(store_.Watch({}, "k/", "k0", 0, callbacks));
  Put("k/question", "42");
  ASSERT_TRUE(log_.WaitForKey("k/answer"));
  EXPECT_EQ(log_.Text(), "k/question=42; k/answer=42; ");
}

TEST_P(SharedConformance, DestroyedWatchTellsNothing) {
  for (int i = 0; i < 20; ++i) {
    auto told = std::make_unique<std::atomic<int>>(0);
    auto watch = Must(store_.Watch({}, "k/", "k0", 0, {[&](auto, auto) { ++*told; }, [&](auto) { ++*told; }}));
    if (i % 2 == 0) Put("k/1", std::to_string(i));
    watch.reset();
    told.reset();  // a callback after this would use freed memory
    Put("k/1", "again");
  }
}

}  // namespace cairnfs::kv
