// A few hosts whose ranks meet at one gate, in one store.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../../support/eventually.h"
#include "control/rank_gate.h"
#include "control/rank_gate_records.h"
#include "kv/engine.h"
#include "kv/hosted_store.h"

namespace cairnfs::control {

using std::chrono::milliseconds;

constexpr InodeId kDirectory{17}, kParent{1};

// The store as one host sees it: a test may do something between two steps of a call.
class Line final : public kv::KvStore {
 public:
  explicit Line(kv::KvStore& store) : store_(store) {}
  // Called once. Set while no call of the host is at the store.
  std::function<void()> after_read, before_commit;
  // So many reads fail, with this code.
  std::atomic<int> failing_reads{0};
  std::atomic<ErrorCode> read_error{ErrorCode::kUnavailable};
  std::atomic<int> reads{0};
  std::atomic<int> counts{0};  // those of them that read who waits
  // Of so many commits that put this key the answer is lost.
  std::string lost_key;
  std::atomic<int> lost_answers{0};
  // So many commits that put this key do not run, with this code.
  std::string refused_key;
  std::atomic<int> refusals{0};
  ErrorCode refusal = ErrorCode::kStale;

  // The next commit that puts this key is answered as lost, and runs when RunHeld is called: unless another one of its
  // operation id, which finds out what became of it, comes first.
  std::string held_key;
  void RunHeld() {
    if (held_) {
      EXPECT_TRUE(store_.Commit(*held_).ok());
    }
  }

  Result<std::optional<kv::KvEntry>> Get(std::string_view key) override { return store_.Get(key); }
  Result<kv::KvRange> Range(std::string_view begin, std::string_view end, size_t limit) override {
    return store_.Range(begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(std::span<const kv::KvSpan> spans) override {
    ++reads;
    const std::string ranks = GateRanksPrefix(kDirectory);
    counts += std::any_of(spans.begin(), spans.end(), [&](const kv::KvSpan& span) { return span.begin == ranks; });
    if (failing_reads > 0) {
      --failing_reads;
      return MakeError(read_error, "as the test wants it");
    }
    auto snapshot = store_.Read(spans);
    if (after_read) std::exchange(after_read, nullptr)();
    return snapshot;
  }
  Result<uint64_t> Commit(const kv::Transaction& transaction) override {
    if (before_commit) std::exchange(before_commit, nullptr)();
    const auto puts = [&](const std::string& key) {
      return std::any_of(transaction.writes.begin(), transaction.writes.end(),
                         [&](const kv::KvWrite& write) { return write.key == key && write.value; });
    };
    if (refusals > 0 && puts(refused_key)) {
      --refusals;
      return MakeError(refusal, "as the test wants it");
    }
    const std::string& id = transaction.operation_id;
    if (held_ && !id.empty() && held_->operation_id == id) held_.reset();
    if (!held_key.empty() && puts(held_key)) {
      held_key.clear();
      held_ = transaction;
      return MakeError(ErrorCode::kUnavailable, "it is on its way");
    }
    auto committed = store_.Commit(transaction);
    if (!committed.ok() || lost_answers == 0 || !puts(lost_key)) return committed;
    --lost_answers;
    return MakeError(ErrorCode::kUnavailable, "the answer was lost");
  }
  Status Sync() override { return store_.Sync(); }
  kv::KvLimits limits() const override { return store_.limits(); }

 private:
  kv::KvStore& store_;
  std::optional<kv::Transaction> held_;
};

// A rank's call that runs. It is cancelled when nobody is interested any more, so that a test that failed ends.
class Pending {
 public:
  Pending() = default;
  Pending(std::future<Status> status, std::shared_ptr<std::atomic<bool>> cancelled)
      : status_(std::move(status)), cancelled_(std::move(cancelled)) {}
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;
  ~Pending() {
    if (cancelled_) *cancelled_ = true;
  }
  Status get() { return status_.get(); }
  void wait() { status_.wait(); }
  void Cancel() { *cancelled_ = true; }
  bool IsOverWithin(milliseconds time) { return IsReadyWithin(status_, time); }

 private:
  std::future<Status> status_;  // waits when it goes
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

// A few hosts around one store, each with a lease of its own.
class RankGateTest : public ::testing::Test {
 protected:
  struct Host {
    std::atomic<kv::LeaseId> lease = 0;
    std::atomic<int> stale_leases = 0;  // so often it has no session when it is asked for one
    std::unique_ptr<Line> line;
    std::unique_ptr<RankGate> gate;
  };

  void SetUp() override {
    engine_ = kv::OpenMemoryEngine();
    auto store = kv::HostedStore::Open(*engine_);
    ASSERT_TRUE(store.ok()) << store.error().message;
    store_ = *std::move(store);
    for (const char* name : {"a", "b", "c"}) {
      auto host = std::make_unique<Host>();
      host->lease = *store_->GrantLease(std::chrono::minutes(10));
      host->line = std::make_unique<Line>(*store_);
      host->gate = MakeGate(*host, name);
      hosts_.push_back(std::move(host));
    }
  }

  std::unique_ptr<RankGate> MakeGate(Host& host, const std::string& name, milliseconds patience = milliseconds(2000),
                                     milliseconds rename_wait_max = std::chrono::hours(1)) {
    auto lease = [&host]() -> Result<kv::LeaseId> {
      if (host.stale_leases <= 0) return host.lease.load();
      --host.stale_leases;
      return MakeError(ErrorCode::kStale, "the session is lost");
    };
    return std::make_unique<RankGate>(
        RankGate::Options{*host.line, *store_, std::move(lease), name, patience, rename_wait_max});
  }
  // The host comes back with a session of its own.
  void LoseSession(unsigned host) {
    const kv::LeaseId lost = hosts_[host]->lease.exchange(*store_->GrantLease(std::chrono::minutes(10)));
    EXPECT_TRUE(store_->RevokeLease(lost).ok());
  }

  static GateCall Call(unsigned rank, unsigned ranks, milliseconds timeout = std::chrono::seconds(60)) {
    GateCall call;
    call.directory = kDirectory;
    call.final_parent = kParent;
    call.final_name = "step-5";
    call.ranks = ranks;
    call.rank = rank;
    call.timeout = timeout;
    return call;
  }

  RankGate::Caller CallerThat(std::function<Status()> rename, std::function<bool()> cancelled) {
    return {std::move(rename), std::move(cancelled), [this]() -> Result<bool> { return has_final_name_.load(); }};
  }
  Pending Start(unsigned host, GateCall call, std::function<Status()> rename) {
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    auto commit = [this, host, call = std::move(call), rename = std::move(rename), cancelled] {
      return hosts_[host]->gate->Commit(call, CallerThat(rename, [&] { return cancelled->load(); }));
    };
    return {std::async(std::launch::async, std::move(commit)), cancelled};
  }
  Pending Start(unsigned host, const GateCall& call) {
    return Start(host, call, [this]() -> Status {
      ++renames_;
      has_final_name_ = true;
      return {};
    });
  }

  static GateState DoneState() {
    GateState done;
    done.ranks = 2;
    done.phase = GatePhase::kDone;
    done.final_parent = kParent;
    done.final_name = "step-5";
    return done;
  }
  // A rank of a job of two, on a host "z", is at the rename, until ElectedGoes.
  void BeginRename() {
    GateState renaming = DoneState();
    renaming.phase = GatePhase::kRenaming;
    kv::Transaction transaction;
    transaction.Put(GateStateKey(kDirectory), renaming.Encode());
    transaction.Put(GateElectedKey(kDirectory), GateVisitor{1, true, "z", 5, 5}.Encode());
    EXPECT_TRUE(store_->Commit(transaction).ok());
  }
  void ElectedGoes() {
    kv::Transaction lease_ends;
    EXPECT_TRUE(store_->Commit(lease_ends.Delete(GateElectedKey(kDirectory))).ok());
  }
  void Put(const std::string& key, const std::string& value) {
    kv::Transaction transaction;
    EXPECT_TRUE(store_->Commit(transaction.Put(key, value)).ok());
  }
  size_t KeysLeft() { return store_->Range("B", "C", 0)->entries.size(); }
  size_t WaitingRanks() {
    const std::string begin = GateRanksPrefix(kDirectory);
    size_t waiting = 0;
    const auto ranks = store_->Range(begin, kv::PrefixEnd(begin), 0);
    for (const auto& entry : ranks->entries) waiting += DecodeGateVisitor(entry.value)->waits ? 1 : 0;
    return waiting;
  }
  uint32_t Generation() { return DecodeGateState((*store_->Get(GateStateKey(kDirectory)))->value)->generation; }
  // Of two ranks, rank 0 on host 0 waits in vain.
  void FailATry() { EXPECT_TRUE(Has(Start(0, Call(0, 2, milliseconds(1))).get(), "rank 1 did not come")); }
  // Rank 1 of two is the first to come again; then rank 0 does.
  void ExpectThatRank1Begins(unsigned host, uint32_t generation) {
    auto first = Start(host, Call(1, 2));
    ASSERT_TRUE(Eventually([&] { return first.IsOverWithin(milliseconds(0)) || Generation() == generation; }));
    ASSERT_EQ(Generation(), generation) << first.get().error().message;
    Status status = Start(0, Call(0, 2)).get();
    EXPECT_TRUE(status.ok()) << status.error().message;
    EXPECT_TRUE(first.get().ok());
    EXPECT_EQ(renames_, 1);
  }
  // Until so many ranks wait.
  void WaitForRanks(size_t count) {
    EXPECT_TRUE(Eventually([&] { return WaitingRanks() == count; })) << "there are not " << count << " ranks";
  }
  static bool Has(const Status& status, std::string_view text) {
    return !status.ok() && status.error().message.find(text) != std::string::npos;
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::atomic<int> renames_{0};
  std::atomic<bool> has_final_name_{false};
};

}  // namespace cairnfs::control
