// What stands for the parts of a cluster between several filesystems in one process, and can be made to fail.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "../../support/eventually.h"
#include "base/clock.h"
#include "cluster/cluster_chunk_store.h"
#include "fs/filesystem.h"
#include "io/memory_disk.h"
#include "kv/hosted_store.h"

namespace cairnfs::fs {

// What lies between a host and the store: counts round trips, and can be shut.
class Gate final : public kv::KvStore {
 public:
  explicit Gate(kv::KvStore& inner) : inner_(inner) {}
  std::atomic<bool> shut{false};
  std::atomic<uint64_t> trips{0}, commits{0};
  // Called before the next read of several keys, or commit, once; and after a commit that went well.
  std::function<void()> before_read, before_commit, after_commit;
  std::atomic<bool> lose_answer{false};  // of the next commit, which is made
  // Called for each commit: the error that is given in place of making it.
  std::function<std::optional<Error>(const kv::Transaction&)> refuse;
  // The same, and is told for how long the caller waits.
  std::function<std::optional<Error>(const Context&, const kv::Transaction&)> refuse_within;

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override {
    trips++;
    if (shut) return Away();
    return inner_.Get(context, key);
  }
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override {
    trips++;
    if (shut) return Away();
    return inner_.Range(context, begin, end, limit);
  }
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override {
    trips++;
    if (before_read) std::exchange(before_read, nullptr)();
    if (shut) return Away();
    return inner_.Read(context, spans);
  }
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override {
    trips++;
    commits++;
    if (before_commit) std::exchange(before_commit, nullptr)();
    if (shut) return Away();
    if (auto error = refuse ? refuse(transaction) : std::nullopt) return *error;
    if (auto error = refuse_within ? refuse_within(context, transaction) : std::nullopt) return *error;
    auto committed = inner_.Commit(context, transaction);
    if (committed.ok() && after_commit) std::exchange(after_commit, nullptr)();
    if (lose_answer.exchange(false)) return Away();
    return committed;
  }
  Status Sync(const Context& context) override { return inner_.Sync(context); }
  kv::KvLimits limits() const override { return {128, 1 << 20}; }
  static Error Away() { return MakeError(ErrorCode::kUnavailable, "the store cannot be reached"); }

 private:
  kv::KvStore& inner_;
};

// A membership that a test can keep from taking a new session.
class TestMembership final : public cluster::Membership {
 public:
  explicit TestMembership(std::unique_ptr<cluster::Membership> inner) : inner_(std::move(inner)) {}
  std::atomic<bool> may_rejoin{true};
  std::function<void()> after_rejoin;  // called once it has another session, once

  const cluster::NodeId& self() const override { return inner_->self(); }
  cluster::ViewPtr view() const override {
    std::lock_guard lock(frozen_mutex_);
    if (looks_left_ == 0) frozen_.reset();
    if (!frozen_) return inner_->view();
    --looks_left_;
    return frozen_;
  }
  void FreezeView() { ShowView(inner_->view(), SIZE_MAX); }
  // So many looks see this one.
  void ShowView(cluster::ViewPtr view, size_t looks) {
    std::lock_guard lock(frozen_mutex_);
    frozen_ = std::move(view);
    looks_left_ = looks;
  }
  std::shared_ptr<void> OnChange(std::function<void(const cluster::ViewPtr&)> changed) override {
    return inner_->OnChange(std::move(changed));
  }
  Result<Session> session() const override { return inner_->session(); }
  Result<Session> WaitForSession(const Context& context) const override { return inner_->WaitForSession(context); }
  bool LeaseHolds() const override { return inner_->LeaseHolds(); }
  void OnLost(std::function<void()> lost) override { inner_->OnLost(std::move(lost)); }
  Status Rejoin() override {
    if (!may_rejoin) return MakeError(ErrorCode::kUnavailable, "the test does not let it");
    Status status = inner_->Rejoin();
    if (status.ok() && after_rejoin) std::exchange(after_rejoin, nullptr)();
    return status;
  }
  void ReportLost(const Session& session, const Loss& loss) override { inner_->ReportLost(session, loss); }
  void SetFull(bool full) override { inner_->SetFull(full); }
  Status SetDrain(const cluster::NodeId& id, Drain drain) override { return inner_->SetDrain(id, drain); }
  void SetEmpty(bool empty, uint64_t drain) override { inner_->SetEmpty(empty, drain); }
  Status Remove(const cluster::NodeId& id, Removal removal) override { return inner_->Remove(id, removal); }
  Status Replace(const cluster::NodeId& id, PlaceName name) override { return inner_->Replace(id, name); }
  cluster::MembershipStats stats() const override { return inner_->stats(); }

 private:
  std::unique_ptr<cluster::Membership> inner_;
  mutable std::mutex frozen_mutex_;
  mutable cluster::ViewPtr frozen_;
  mutable size_t looks_left_ = 0;
};

// Chunks on this host's own store, and read from the others' where they are not there.
class TestChunks final : public cluster::ClusterChunkStore {
 public:
  using Stores = std::vector<store::LocalChunkStore*>;
  TestChunks(store::LocalChunkStore& own, const Stores& all) : own_(own), all_(all) {}
  std::atomic<bool> syncs_fail{false};
  std::atomic<ErrorCode> sync_error{ErrorCode::kUnavailable};  // of those that fail
  std::atomic<uint64_t> syncs{0}, local_syncs{0};
  // Called once: before the next put; before a round next has chunks synced, between
  // the making of its records and their publication.
  std::function<void()> before_put, before_sync;
  std::function<void()> heal;  // what a check has found damaged

  Result<store::PutResult> Put(const Digest& digest, std::span<const io::Slice> slices,
                               const store::NewBytes& new_bytes) override {
    if (before_put) std::exchange(before_put, nullptr)();
    return own_.Put(digest, slices, new_bytes);
  }
  Result<store::ChunkPin> Pin(const Digest& digest, size_t size) override {
    auto pin = own_.Pin(digest, size);
    if (!pin.ok() && !Find(digest)) return pin;
    std::lock_guard lock(mutex_);
    if (size > 0 && !copied_.contains(digest)) covered_.insert(digest);
    return pin.ok() ? std::move(pin) : store::ChunkPin(this, digest);
  }
  Result<std::vector<bool>> Has(const Context&, std::span<const Digest> digests) override {
    std::vector<bool> has;
    for (const Digest& digest : digests) has.push_back(Find(digest) != nullptr);
    return has;
  }
  void Get(const Digest& digest, store::ChunkCallback done) override {
    store::LocalChunkStore* found = Find(digest);
    if (found != nullptr && found != &own_ && others_are_away_) return done(Away());
    (found == nullptr ? own_ : *found).Get(digest, std::move(done));
  }
  void GetForReader(const Digest& digest, store::ChunkCallback done) override {
    {
      std::lock_guard lock(mutex_);
      if (others_are_away_ && !waits_ended_) {
        waiting_.emplace_back(digest, std::move(done));
        return;
      }
    }
    Get(digest, std::move(done));
  }
  void GetFromDisk(const Digest& digest, store::ChunkCallback done) override {
    if (store::LocalChunkStore* found = Find(digest)) return found->GetFromDisk(digest, std::move(done));
    Get(digest, std::move(done));
  }
  void EndWaits() override {
    for (auto& [digest, done] : TakeWaiting(/*end=*/true)) done(Away());
  }
  // What only other hosts have cannot be read until they are back.
  void OthersGo() { others_are_away_ = true; }
  void OthersComeBack() {
    others_are_away_ = false;
    for (auto& [digest, done] : TakeWaiting(/*end=*/false)) Get(digest, std::move(done));
  }
  size_t waiting_count() {
    std::lock_guard lock(mutex_);
    return waiting_.size();
  }
  void Prefetch(std::span<const Digest>) override {}
  // From now on syncs wait, until LetSyncsGo or the end of their context.
  void HangSyncs() { syncs_hang_ = true; }
  void LetSyncsGo() { syncs_hang_ = false; }
  unsigned hanging_syncs() const { return syncs_hang_ ? hanging_syncs_.load() : 0; }
  Status Sync() override { return SyncWithin({}); }
  Status SyncWithin(const Context& context) {
    syncs++;
    hanging_syncs_++;
    bool may_go = true;
    while (may_go && syncs_hang_) may_go = context.Sleep(std::chrono::milliseconds(10));
    hanging_syncs_--;
    if (!may_go && context.IsStopped()) return MakeError(ErrorCode::kInterrupted, "nobody waits any more");
    if (!may_go) return MakeError(ErrorCode::kUnavailable, "too late");
    if (syncs_fail) return MakeError(sync_error, "too few nodes");
    {
      std::lock_guard lock(mutex_);
      copied_.merge(covered_);
      covered_.clear();
    }
    return own_.Sync();
  }
  void SetMinReplicas(unsigned) override {}
  void SetRepairRate(uint64_t) override {}
  Status SyncLocal() {
    local_syncs++;
    return own_.Sync();
  }
  Result<Unreadable> SyncReadable(const Context& context, SyncScope scope) override {
    if (before_sync) std::exchange(before_sync, nullptr)();
    const Status synced = scope == SyncScope::kThisNode ? SyncLocal() : SyncWithin(context);
    if (!synced.ok()) return synced.error();
    std::lock_guard lock(mutex_);
    return unreadable_;
  }
  std::atomic<uint64_t> syncs_of_some{0};
  std::atomic<size_t> passing_chunks_max{0};  // one of so many chunks does not hang
  Result<Unreadable> SyncOnly(const Context& context, SyncScope scope, std::span<const Digest> chunks) override {
    syncs_of_some++;
    if (chunks.size() > passing_chunks_max) return SyncReadable(context, scope);
    const Status synced = SyncLocal();
    if (!synced.ok()) return synced.error();
    return Unreadable();
  }
  // As if it could not be read back to be sent.
  void SetUnreadable(const Digest& digest) {
    std::lock_guard lock(mutex_);
    unreadable_.emplace(digest, MakeError(ErrorCode::kIo, "chunk of the test cannot be read back"));
  }
  void SetAllReadable() {
    std::lock_guard lock(mutex_);
    unreadable_.clear();
  }
  // What was ever covered counts as copied once a sync went well.
  std::vector<store::ChunkPin> Cover(std::span<const Sized> chunks) override {
    std::vector<store::ChunkPin> pins;
    for (const Sized& chunk : chunks) {
      store::LocalChunkStore* found = Find(chunk.digest);
      EXPECT_NE(found, nullptr) << "no host has it";
      if (found == nullptr) continue;
      auto data = store::GetBlocking(*found, chunk.digest);
      EXPECT_TRUE(data.ok());
      if (data.ok()) {
        EXPECT_EQ(data->size, chunk.size);
      }
      std::lock_guard lock(mutex_);
      if (copied_.contains(chunk.digest)) continue;
      covered_.insert(chunk.digest);
      pins.emplace_back(this, chunk.digest);
    }
    return pins;
  }
  size_t copied_count() {
    std::lock_guard lock(mutex_);
    return copied_.size();
  }
  size_t covered_count() {
    std::lock_guard lock(mutex_);
    return covered_.size();
  }
  Status AwaitHealing(const Context&) override {
    if (heal) heal();
    return {};
  }
  std::atomic<uint64_t> epochs_begun{0};
  std::atomic<bool> is_unsafe{false};  // nobody says that he has what is being saved
  void BeginEpoch() override { epochs_begun++; }
  Status AwaitSafe(const Context&) override {
    return is_unsafe ? Status(MakeError(ErrorCode::kUnavailable, "nobody has it")) : Status();
  }
  void HoldRepair(bool) override {}
  Status ForgetHolders(const Context&, const store::LiveTest&) override { return {}; }
  void NoteReferenced(std::span<const Digest> chunks) override {
    std::lock_guard lock(mutex_);
    referenced_.insert(chunks.begin(), chunks.end());
  }
  size_t referenced_count() {
    std::lock_guard lock(mutex_);
    return referenced_.size();
  }
  std::atomic<bool> lacks_nodes{false};
  bool LacksNodes() override { return lacks_nodes; }
  std::string DescribeShortage() override { return syncs_fail || syncs_hang_ ? "nodes that do not answer: other" : ""; }
  size_t CountUnderReplicated(std::span<const Digest> chunks) override {
    return syncs_fail || syncs_hang_ ? chunks.size() : 0;
  }
  cluster::ClusterChunkStats ClusterStats() const override { return {}; }
  cluster::ChunkServer& peer() override { abort(); }  // these are asked directly, by no service

 protected:
  void Unpin(const Digest&) override {}

 private:
  store::LocalChunkStore* Find(const Digest& digest) {
    if (own_.Has({&digest, 1})[0]) return &own_;
    for (store::LocalChunkStore* each : all_) {
      if (each->Has({&digest, 1})[0]) return each;
    }
    return nullptr;
  }
  using Waiting = std::vector<std::pair<Digest, store::ChunkCallback>>;
  static Error Away() { return MakeError(ErrorCode::kUnavailable, "the others are away"); }
  Waiting TakeWaiting(bool end) {
    std::lock_guard lock(mutex_);
    waits_ended_ = end;
    return std::exchange(waiting_, {});
  }
  store::LocalChunkStore& own_;
  const Stores& all_;
  std::atomic<bool> others_are_away_{false}, syncs_hang_{false};
  std::atomic<unsigned> hanging_syncs_{0};
  std::mutex mutex_;
  bool waits_ended_ = false;
  Waiting waiting_;
  Unreadable unreadable_;
  std::set<Digest> covered_, copied_, referenced_;
};

// Who answers for which node. A node without a handler cannot be reached.
struct Switchboard {
  std::mutex mutex;
  std::map<cluster::NodeId, cluster::OrphanHandler> handlers;
  std::map<cluster::NodeId, cluster::OpenHandler> open_handlers;
  std::set<cluster::NodeId> silent;
  std::map<cluster::NodeId, int> busy;
  std::atomic<int> hold_calls{0}, open_calls{0};
};

class TestPeers final : public cluster::Peers {
 public:
  TestPeers(Switchboard& board, const cluster::NodeId& self) : board_(board), self_(self) {}
  void SetHandler(cluster::OrphanHandler handler) override {
    std::unique_lock lock(board_.mutex);
    if (handler) {
      board_.handlers[self_] = std::move(handler);
      return;
    }
    board_.handlers.erase(self_);
    while (board_.busy[self_] > 0) {
      lock.unlock();
      Clock::SleepFor(std::chrono::milliseconds(1));
      lock.lock();
    }
  }
  Result<std::vector<bool>> HoldOrphans(const Context&, const cluster::NodeId& node,
                                        const std::vector<InodeId>& inodes) override {
    board_.hold_calls++;
    cluster::OrphanHandler handler;
    {
      std::lock_guard lock(board_.mutex);
      auto found = board_.handlers.find(node);
      if (found == board_.handlers.end()) return MakeError(ErrorCode::kUnavailable, "nobody answers");
      handler = found->second;
      board_.busy[node]++;
    }
    std::vector<bool> answer = handler(inodes);
    std::lock_guard lock(board_.mutex);
    board_.busy[node]--;
    return answer;
  }
  void SetOpenHandler(cluster::OpenHandler handler) override {
    std::lock_guard lock(board_.mutex);
    board_.open_handlers[self_] = std::move(handler);
  }
  Result<std::vector<InodeId>> OpenFiles(const Context&, const cluster::NodeId& node, cluster::OpenWhat what) override {
    board_.open_calls++;
    std::lock_guard lock(board_.mutex);
    const auto found = board_.open_handlers.find(node);
    const bool answers = found != board_.open_handlers.end() && found->second && !board_.silent.contains(node);
    if (!answers) return MakeError(ErrorCode::kUnavailable, "nobody answers");
    return found->second(what);
  }

 private:
  Switchboard& board_;
  const cluster::NodeId self_;
};

}  // namespace cairnfs::fs
