// A few hosts whose ranks meet at one gate, in one store.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
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
  std::atomic<int> counts{0};           // of all ranks
  std::atomic<int> looks_for_ranks{0};  // whether there is one
  // Of so many commits that put a key with this prefix the answer is lost.
  std::string lost_key;
  std::atomic<int> lost_answers{0};
  // So many commits that put a key with this prefix do not run, with this code.
  std::string refused_key;
  std::atomic<int> refusals{0};
  ErrorCode refusal = ErrorCode::kStale;

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    return store_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    auto range = store_.Range(context, begin, end, limit);
    ++(limit == 0 ? counts : looks_for_ranks);
    return range;
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    ++reads;
    if (failing_reads > 0) {
      --failing_reads;
      return MakeError(read_error, "as the test wants it");
    }
    auto snapshot = store_.Read(context, spans);
    if (after_read) std::exchange(after_read, nullptr)();
    return snapshot;
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    if (before_commit) std::exchange(before_commit, nullptr)();
    const auto puts = [&](const std::string& key) {
      return std::any_of(transaction.writes.begin(), transaction.writes.end(),
                         [&](const kv::KvWrite& write) { return write.key.starts_with(key) && write.value; });
    };
    if (refusals > 0 && puts(refused_key)) {
      --refusals;
      return MakeError(refusal, "as the test wants it");
    }
    auto committed = store_.Commit(context, transaction);
    if (!committed.ok() || lost_answers == 0 || !puts(lost_key)) return committed;
    --lost_answers;
    return MakeError(ErrorCode::kUnavailable, "the answer was lost");
  }
  Status Sync(const Context& context) override { return store_.Sync(context); }
  kv::KvLimits limits() const override { return store_.limits(); }

 private:
  kv::KvStore& store_;
};

// A rank's call that runs. It is interrupted when nobody is interested any more, so that a test that failed ends.
class Pending {
 public:
  Pending() = default;
  Pending(std::future<Status> status, std::stop_source stop) : status_(std::move(status)), stop_(std::move(stop)) {}
  Pending(Pending&&) = default;
  Pending& operator=(Pending&&) = default;
  ~Pending() { stop_.request_stop(); }
  Status get() { return status_.get(); }
  void wait() { status_.wait(); }
  void Interrupt() { stop_.request_stop(); }
  bool IsOverWithin(milliseconds time) { return IsReadyWithin(status_, time); }

 private:
  std::future<Status> status_;  // waits when it goes
  std::stop_source stop_;
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
      host->lease = *store_->GrantLease({}, std::chrono::minutes(10));
      host->line = std::make_unique<Line>(*store_);
      host->gate = MakeGate(*host, name);
      hosts_.push_back(std::move(host));
    }
  }

  std::unique_ptr<RankGate> MakeGate(Host& host, const std::string& name,
                                     milliseconds rename_wait_max = std::chrono::hours(1)) {
    auto lease = [&host](const Context&) -> Result<kv::LeaseId> {
      if (host.stale_leases <= 0) return host.lease.load();
      --host.stale_leases;
      return MakeError(ErrorCode::kStale, "the session is lost");
    };
    return std::make_unique<RankGate>(RankGate::Options{*host.line, *store_, std::move(lease), name, rename_wait_max});
  }
  // The host comes back with a session of its own.
  void LoseSession(unsigned host) {
    const kv::LeaseId lost = hosts_[host]->lease.exchange(*store_->GrantLease({}, std::chrono::minutes(10)));
    EXPECT_TRUE(store_->RevokeLease({}, lost).ok());
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

  Pending Start(unsigned host, GateCall call, std::function<Status()> rename, std::stop_source stop = {}) {
    auto commit = [this, host, call = std::move(call), rename = std::move(rename), stop] {
      return hosts_[host]->gate->Commit(
          call, {rename, [this]() -> Result<bool> { return has_final_name_.load(); }, Context(stop.get_token()), {}});
    };
    return {std::async(std::launch::async, std::move(commit)), stop};
  }
  Pending Start(unsigned host, const GateCall& call) {
    return Start(host, call, [this]() -> Status {
      ++renames_;
      has_final_name_ = true;
      return {};
    });
  }

  // Of two ranks.
  static GateState StateOf(GatePhase phase) {
    GateState state;
    state.try_id = 77;
    state.ranks = 2;
    state.phase = phase;
    state.final_parent = kParent;
    state.final_name = "step-5";
    return state;
  }
  std::optional<GateState> State() {
    const auto entry = *store_->Get({}, GateStateKey(kDirectory));
    return entry ? std::optional(*DecodeGateState(entry->value)) : std::nullopt;
  }
  void SetState(const GateState& state) { Put(GateStateKey(kDirectory), state.Encode()); }
  static std::string RankKey(uint64_t try_id, unsigned rank) {
    return GateRanksPrefix(kDirectory, try_id) + GateRankName(rank, "");
  }
  // A rank on a host "z" is to rename in the try that is under way, or in one that has no other rank; until
  // RenamerGoes.
  void BeginRename() {
    GateState renaming = State().value_or(StateOf(GatePhase::kRenaming));
    renaming.phase = GatePhase::kRenaming;
    renaming.renamer = GateRankName({}, "z");
    renamer_key_ = GateRanksPrefix(kDirectory, renaming.try_id) + renaming.renamer;
    kv::Transaction transaction;
    transaction.Put(GateStateKey(kDirectory), renaming.Encode());
    transaction.Put(renamer_key_, GateRank{"z", 5}.Encode());
    EXPECT_TRUE(store_->Commit({}, transaction).ok());
  }
  void RenamerGoes() {
    kv::Transaction lease_ends;
    EXPECT_TRUE(store_->Commit({}, lease_ends.Delete(renamer_key_)).ok());
  }
  void Put(const std::string& key, const std::string& value) {
    kv::Transaction transaction;
    EXPECT_TRUE(store_->Commit({}, transaction.Put(key, value)).ok());
  }
  size_t KeysLeft() { return store_->Range({}, "B", "C", 0)->entries.size(); }
  // In the try that is under way.
  size_t Ranks() {
    const auto state = State();
    if (!state) return 0;
    const std::string begin = GateRanksPrefix(kDirectory, state->try_id);
    return store_->Range({}, begin, kv::PrefixEnd(begin), 0)->entries.size();
  }
  // Of two ranks, rank 0 on host 0 waits in vain.
  void FailATry() { EXPECT_TRUE(Has(Start(0, Call(0, 2, milliseconds(1))).get(), "rank 1 did not come")); }
  // Until so many ranks wait.
  void WaitForRanks(size_t count) {
    EXPECT_TRUE(Eventually([&] { return State() && State()->IsOpen() && Ranks() == count; }))
        << "there are not " << count << " ranks";
  }
  static void ExpectCommitted(Pending call) {
    Status status = call.get();
    EXPECT_TRUE(status.ok()) << status.error().message;
  }
  // Two ranks come, and nothing is in their way.
  void ExpectThatTwoCommit() {
    const int before = renames_;
    has_final_name_ = false;
    Pending first = Start(1, Call(0, 2));
    ExpectCommitted(Start(2, Call(1, 2)));
    ExpectCommitted(std::move(first));
    EXPECT_EQ(renames_, before + 1);
  }
  static bool Has(const Status& status, std::string_view text) {
    return !status.ok() && status.error().message.find(text) != std::string::npos;
  }

  std::unique_ptr<kv::KvEngine> engine_;
  std::unique_ptr<kv::HostedStore> store_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::atomic<int> renames_{0};
  std::atomic<bool> has_final_name_{false};
  std::string renamer_key_;
};

}  // namespace cairnfs::control
