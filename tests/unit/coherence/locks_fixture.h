// ClusterLocks of several hosts over one store, which can lose answers.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <utility>

#include "../../support/eventually.h"
#include "../../support/random.h"
#include "base/clock.h"
#include "cluster/records.h"
#include "coherence/cluster_locks.h"
#include "coherence/fenced_store.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"

namespace cairnfs::coherence {

using std::chrono::milliseconds;
using Outcome = ClusterLocks::Outcome;
using Request = ClusterLocks::Request;

inline constexpr InodeId kFile{100};
inline constexpr auto kSoon = std::chrono::seconds(60);  // what happens at all has happened by then
inline constexpr auto kWhile = milliseconds(50);         // what should not happen is looked for so long

inline Request Posix(uint64_t owner, LockType type, uint64_t start = 0, uint64_t last = kLockOffsetMax) {
  return {kFile, LockKind::kRecord, owner, owner, static_cast<uint32_t>(owner), type, start, last};
}

inline Request Flock(uint64_t handle, LockType type) {
  Request request;
  request.inode = kFile;
  request.kind = LockKind::kFlock;
  request.handle = handle;
  request.type = type;
  return request;
}

// A store whose commits are counted, and which loses answers or has no room when it is told so. What was sent and not
// answered runs at once, or later, or never; who commits it again, by its operation id, finds out, and then it does not
// run later. While there is no room nobody finds out.
class LossyStore final : public kv::KvStore {
 public:
  explicit LossyStore(std::unique_ptr<kv::KvStore> below) : below_(std::move(below)) {}
  void LoseAnswers(unsigned percent, uint64_t seed) {
    std::lock_guard lock(mutex_);
    percent_ = percent;
    random_ = testing::Random(seed);
  }
  void DelayNextCommit() { delay_next_ = true; }
  void SetFull(bool full) { full_ = full; }
  size_t refusals() const { return refusals_; }  // for want of room
  // Called once, within the next of them. Set while no commit runs.
  std::function<void()> on_refusal;
  // Called before each commit. Set while none runs.
  std::function<void(const kv::Transaction&)> on_commit;
  size_t commits() const { return commits_; }
  size_t reads() const { return reads_; }

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    return below_->Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    ++reads_;
    if (context.Expired()) return GivenUp();
    if (Draw(2)) RunLate();
    return below_->Range(context, begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    return below_->Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    ++commits_;
    if (on_commit) on_commit(transaction);
    if (context.Expired()) return GivenUp();
    if (Status fits = kv::CheckLimits(transaction, limits()); !fits.ok()) return fits.error();
    if (full_ && IsLate(transaction.operation_id)) {
      NoteRefusal();
      return MakeError(ErrorCode::kUnavailable, "there is no room for finding out");
    }
    RuleOut(transaction.operation_id);
    if (delay_next_.exchange(false)) {
      std::lock_guard lock(mutex_);
      late_.push_back(transaction);
      return MakeError(ErrorCode::kUnavailable, "the answer was lost");
    }
    if (full_) {
      NoteRefusal();
      return MakeError(ErrorCode::kNoSpace, "the store is full");
    }
    if (Draw(2)) RunLate();
    if (!Draw()) return below_->Commit(context, transaction);
    std::unique_lock lock(mutex_);
    switch (random_.Below(3)) {
      case 0:
        lock.unlock();
        (void)below_->Commit(context, transaction).ok();
        break;
      case 1: late_.push_back(transaction); break;
      default: break;
    }
    return MakeError(ErrorCode::kUnavailable, "the answer was lost");
  }
  Status Sync(const Context& context) override { return below_->Sync(context); }
  // Those of etcd, less the fence's compare.
  kv::KvLimits limits() const override { return {126, 1'280 << 10}; }
  void RunLate() {
    std::vector<kv::Transaction> late;
    {
      std::lock_guard lock(mutex_);
      late.swap(late_);
    }
    for (const kv::Transaction& transaction : late) (void)below_->Commit({}, transaction).ok();
  }

 private:
  static Error GivenUp() { return MakeError(ErrorCode::kUnavailable, "nobody waits for the answer"); }
  bool IsLate(const std::string& operation_id) {
    std::lock_guard lock(mutex_);
    return std::any_of(late_.begin(), late_.end(), [&](const auto& late) { return late.operation_id == operation_id; });
  }
  void RuleOut(const std::string& operation_id) {
    std::lock_guard lock(mutex_);
    std::erase_if(late_, [&](const auto& late) { return late.operation_id == operation_id; });
  }
  void NoteRefusal() {
    if (on_refusal) std::exchange(on_refusal, nullptr)();
    ++refusals_;
  }
  bool Draw(unsigned divisor = 1) {
    std::lock_guard lock(mutex_);
    return percent_ > 0 && random_.Percent(percent_ / divisor);
  }

  std::unique_ptr<kv::KvStore> below_;
  std::atomic<bool> delay_next_{false}, full_{false};
  std::atomic<size_t> commits_{0}, reads_{0}, refusals_{0};
  std::mutex mutex_;
  unsigned percent_ = 0;
  testing::Random random_{0};
  std::vector<kv::Transaction> late_;
};

struct Host {
  std::unique_ptr<cluster::Membership> membership;
  std::unique_ptr<LossyStore> store;
  std::unique_ptr<ClusterLocks> locks;
};

struct Wait {
  std::future<Result<Outcome>> outcome;
  ClusterLocks::Ticket ticket = 0;
  bool IsOver(std::chrono::nanoseconds within) { return IsReadyWithin(outcome, within); }
};

class LocksTest : public ::testing::Test {
 protected:
  LocksTest() {
    engine_ = kv::OpenMemoryEngine();
    auto store = kv::HostedStore::Open(*engine_);
    EXPECT_TRUE(store.ok());
    store_ = std::move(*store);
    for (int i = 0; i < 3; ++i) hosts_.push_back(Join(i));
  }
  ~LocksTest() override {
    for (Host& host : hosts_) host.locks.reset();
    hosts_.clear();
  }

  Host Join(int number) {
    Host host;
    cluster::MembershipOptions options;
    options.self.id.bytes[0] = static_cast<std::byte>(number + 1);
    options.self.name = "host" + std::to_string(number);
    options.lease = milliseconds(60'000);  // sessions end when a test says so
    options.renew_every = milliseconds(20'000);
    auto membership = cluster::Membership::Join(*store_, options);
    EXPECT_TRUE(membership.ok()) << membership.error().message;
    host.membership = std::move(*membership);
    host.store = std::make_unique<LossyStore>(MakeFencedStore(*store_, *host.membership));
    host.locks = std::make_unique<ClusterLocks>(ClusterLocks::Parts{*store_, *host.store, *host.membership});
    return host;
  }
  // Its lease ends, and it does not know yet.
  void EndSession(int host) {
    auto session = hosts_[host].membership->session();
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(store_->RevokeLease({}, session->lease).ok());
  }
  // As a daemon does once it knows.
  void LearnOfTheEndAndRejoin(int host) {
    ASSERT_TRUE(Eventually([&] { return !hosts_[host].membership->session().ok(); }, kSoon));
    hosts_[host].locks->ForgetAll();
    ASSERT_TRUE(hosts_[host].membership->Rejoin().ok());
  }

  Result<Outcome> TryResult(int host, const Request& request) {
    std::promise<Result<Outcome>> told;
    hosts_[host].locks->TryLock(request, [&](Result<Outcome> outcome) { told.set_value(std::move(outcome)); });
    return told.get_future().get();
  }
  Outcome Try(int host, const Request& request) {
    Result<Outcome> outcome = TryResult(host, request);
    EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return outcome.ok() ? *outcome : Outcome::kWouldBlock;
  }
  Wait Lock(int host, const Request& request) {
    auto told = std::make_shared<std::promise<Result<Outcome>>>();
    Wait wait;
    wait.outcome = told->get_future();
    wait.ticket = hosts_[host].locks->Lock(request, [told](Result<Outcome> o) { told->set_value(std::move(o)); });
    return wait;
  }
  void Unlock(int host, const Request& request) {
    std::promise<Result<void>> told;
    hosts_[host].locks->Unlock(request, [&](Result<void> status) { told.set_value(std::move(status)); });
    Result<void> status = told.get_future().get();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  // `then` runs before the next operation on the file.
  void StartUnlock(int host, const Request& request, std::function<void()> then = {}) {
    hosts_[host].locks->Unlock(request, [then = std::move(then)](const Result<void>& status) {
      EXPECT_TRUE(status.ok());
      if (then) then();
    });
  }
  // What `ask` asks the host about kFile is queued before any of it runs, and is over when this returns.
  void AllAtOnce(int host, const std::function<void()>& ask) {
    ClusterLocks& locks = *hosts_[host].locks;
    std::promise<void> over;
    // The next operation begins when the function that gets this answer has returned.
    locks.Test(Posix(1000, LockType::kShared), [&](const auto&) {
      ask();
      locks.Test(Posix(1000, LockType::kShared), [&](const auto&) { over.set_value(); });
    });
    over.get_future().get();
  }
  std::optional<ClusterLocks::Holder> Test(int host, const Request& request) {
    std::promise<Result<std::optional<ClusterLocks::Holder>>> told;
    hosts_[host].locks->Test(request, [&](auto holder) { told.set_value(std::move(holder)); });
    auto holder = told.get_future().get();
    EXPECT_TRUE(holder.ok()) << holder.error().message;
    return holder.ok() ? *holder : std::nullopt;
  }
  static void ExpectGranted(Wait& wait) {
    ASSERT_TRUE(wait.IsOver(kSoon));
    Result<Outcome> outcome = wait.outcome.get();
    ASSERT_TRUE(outcome.ok()) << outcome.error().message;
    EXPECT_EQ(*outcome, Outcome::kGranted);
  }
  // The records of all hosts.
  struct Records {
    std::vector<FileLock> held;
    std::vector<WaitingLock> waiting;
    bool empty() const { return held.empty() && waiting.empty(); }
  };
  Records Stored(InodeId inode = kFile) {
    const std::string begin = LocksBegin(inode);
    auto range = store_->Range({}, begin, kv::PrefixEnd(begin), 0);
    EXPECT_TRUE(range.ok());
    Records all;
    for (const kv::KvEntry& entry : range->entries) {
      const auto node = cluster::NodeId::FromKey(std::string_view(entry.key).substr(begin.size()));
      auto locks = HostLocks::Decode(*node, entry.value);
      EXPECT_TRUE(locks.ok() && !locks->empty());
      all.held.insert(all.held.end(), locks->held.held().begin(), locks->held.held().end());
      all.waiting.insert(all.waiting.end(), locks->waiting.begin(), locks->waiting.end());
    }
    return all;
  }
  // Until the host has a lock or waits for one, as everybody sees.
  void AwaitRecord(int host) {
    const std::string key = LocksKey(kFile, hosts_[host].membership->self());
    ASSERT_TRUE(Eventually([&] { return store_->Get({}, key)->has_value(); }, kSoon));
  }
  // Until `count` wait, as everybody sees.
  void AwaitWaiting(size_t count) {
    ASSERT_TRUE(Eventually([&] { return Stored().waiting.size() == count; }, kSoon));
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::vector<Host> hosts_;
};

inline constexpr auto kExclusive = LockType::kExclusive;
inline constexpr auto kShared = LockType::kShared;

}  // namespace cairnfs::coherence
