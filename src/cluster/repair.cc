#include "cluster/repair.h"

#include <pthread.h>

#include <algorithm>
#include <functional>
#include <map>

#include "base/log.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kEntriesPerScan = 1024;
constexpr size_t kBytesInFlightMax = 16 * kMiB;
constexpr std::chrono::seconds kEndWaitMax{60};
// A collection that takes longer does not keep copies from being made any more.
constexpr std::chrono::hours kHeldMax{1};
constexpr size_t kTellsWaitingMax = 32 * 1024;
constexpr std::chrono::nanoseconds kRepairAgainAfter = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kRepairAgainAfterMax = std::chrono::minutes(5);
constexpr std::chrono::nanoseconds kLookEvery = std::chrono::hours(1);
constexpr std::chrono::nanoseconds kPausePerQuestion{20'000};  // 50,000 chunks a second are asked about at most
constexpr std::chrono::seconds kRepairRetryInterval{2};
constexpr std::chrono::seconds kRepairRetryIntervalMax{160};
constexpr std::chrono::seconds kSurplusLookInterval{30};

}  // namespace

Repair::Repair(const Parts& parts, uint64_t bytes_per_second_max)
    : parts_(parts),
      self_(parts.membership.self()),
      bytes_per_second_max_(std::max<uint64_t>(1, bytes_per_second_max)),
      rebalance_(parts, bytes_per_second_max_) {
  thread_ = std::thread([this] { Run(); });
}

void Repair::Stop() {
  stop_.request_stop();
  rebalance_.Hold(true);
  if (thread_.joinable()) thread_.join();
}

void Repair::Kick(Depth depth) {
  MutexLock lock(mutex_);
  kicked_ = std::max(depth, kicked_.value_or(depth));
  wake_.NotifyAll();
}

void Repair::Hold(bool hold) {
  {
    MutexLock lock(mutex_);
    is_held_ = hold;
    wake_.NotifyAll();
  }
  rebalance_.Hold(hold);
}

bool Repair::IsCalled() {
  MutexLock lock(mutex_);
  return is_held_ || kicked_.has_value() || context_.IsStopped();
}

bool Repair::AwaitRelease() {
  MutexLock lock(mutex_);
  if (!is_held_) return false;
  static_cast<void>(context_.WithTimeout(kHeldMax).Wait(mutex_, wake_, [this] {
    mutex_.AssertHeld();
    return !is_held_;
  }));
  is_held_ = false;
  return true;
}

Repair::Progress Repair::progress() const {
  MutexLock lock(mutex_);
  return {chunks_left_.load() + rebalance_.chunks_left(), missing_copies_.load(),
          bytes_total_.load() + rebalance_.bytes_moved(), phase_, has_looked_};
}

void Repair::SetPhase(const char* phase) {
  MutexLock lock(mutex_);
  phase_ = phase;
}

// Chunks that fell short by what lasted a moment are tried again without news of the nodes: soon, when enough nodes
// take chunks, and more and more rarely, when it does not help.
void Repair::Tick(Clock::time_point now) {
  if (parts_.needs.updates_dropped.exchange(false)) Kick(Depth::kHolders);
  if (parts_.needs.surplus && now - looked_for_surplus_at_ >= kSurplusLookInterval) {
    parts_.needs.surplus = false;
    looked_for_surplus_at_ = now;
    Kick(Depth::kHolders);
  }
  const uint64_t count = parts_.needs.count();
  if (count == 0) retry_ = {};
  if (count == 0 || now - retry_.kicked_at < retry_.interval) return;
  const ViewPtr view = parts_.reachability.view();
  const auto taking = std::count_if(view->nodes.begin(), view->nodes.end(), std::mem_fn(&NodeInfo::takes_chunks));
  const bool may_help = static_cast<size_t>(taking) >= parts_.copies;
  const bool has_grown = count > retry_.count;
  retry_.interval =
      may_help && has_grown ? kRepairRetryInterval : std::min(2 * retry_.interval, kRepairRetryIntervalMax);
  retry_.count = count;
  retry_.kicked_at = now;
  if (may_help || retry_.interval == kRepairRetryIntervalMax) Kick(Depth::kLists);
}

// Once at the start too: copies may have been missing when this node stopped. And now and then without a reason, for
// what nobody noticed.
void Repair::Run() {
  pthread_setname_np(pthread_self(), "cairn-repair");
  std::chrono::nanoseconds pause = kRepairAgainAfter;
  auto look_at = Clock::Now() + pause;
  for (;;) {
    Depth depth = Depth::kHolders;
    {
      MutexLock lock(mutex_);
      context_.WithDeadline(look_at).Wait(mutex_, wake_, [this] {
        mutex_.AssertHeld();
        return kicked_.has_value();
      });
      if (context_.IsStopped()) return;
      depth = std::exchange(kicked_, std::nullopt).value_or(depth);
    }
    bool ok = RunOnce(depth);
    if (depth == Depth::kHolders && parts_.needs.under_replicated > 0) ok = RunOnce(Depth::kLists) && ok;
    if (ok && depth == Depth::kHolders) {
      SetPhase("rebalancing");
      const Rebalance::Outcome rebalanced = rebalance_.Run(context_, [this] { return IsCalled(); });
      ok = rebalanced.is_complete;
      // One that was called away, by a collection for instance, goes on soon.
      if (rebalanced.has_changed || IsCalled()) pause = kRepairAgainAfter;
    }
    SetPhase("");
    if (!ok) {
      look_at = Clock::Now() + pause;
      pause = std::min(2 * pause, kRepairAgainAfterMax);
    } else if (depth == Depth::kHolders) {
      look_at = Clock::Now() + kLookEvery;
      pause = kRepairAgainAfter;
    }
  }
}

bool Repair::RunOnce(Depth depth) {
  AwaitRelease();  // a look at a chunk keeps it from the collection that runs
  SetPhase("scanning");
  // What is short of copies has lists that say so, and these are gone through now. A look at holders leaves to others
  // what they are the first to have, though they may not know of it: so it settles nothing.
  RepairNeeds& needs = parts_.needs;
  const uint64_t short_before = depth == Depth::kLists ? needs.under_replicated.load() : 0,
                 in_few_domains_before = needs.in_few_domains.load();
  std::vector<Todo> todo;
  size_t short_count = 0;
  const bool all_seen = Scan(depth, &todo, &short_count);
  if (context_.IsStopped()) return true;
  const auto spread = static_cast<size_t>(
      std::count_if(todo.begin(), todo.end(), [](const Todo& one) { return one.domain_copies != 0; }));
  const size_t missing = todo.size() - spread;
  {
    MutexLock lock(mutex_);
    missing_copies_ = missing + replicating_;
    chunks_left_ = todo.size() + replicating_ + spreading_;
  }
  if (all_seen) {
    needs.under_replicated.fetch_add(short_count);
    needs.under_replicated.fetch_sub(short_before);
    needs.in_few_domains.fetch_sub(in_few_domains_before);
    MutexLock lock(mutex_);
    has_looked_ = true;
  }
  if (todo.empty()) return all_seen;
  spdlog::info("repair: {} chunks of this node lack copies, {} lie in too few failure domains", missing, spread);
  SetPhase("copying");
  bool ok = all_seen;
  for (const Todo& one : todo) {
    if (!AwaitInFlight(context_, kBytesInFlightMax)) return true;
    if (AwaitRelease()) {  // what was found may be dead by now
      Kick(depth);
      return true;
    }
    ok = Copy(one) && ok;
  }
  // Those that are still short of copies are found by the next scan.
  AwaitInFlight(context_.WithTimeout(kEndWaitMax), 0);
  if (context_.IsStopped()) return true;
  spdlog::info("repair: done, with {} chunks left", chunks_left_.load());
  return ok && chunks_left_ == 0;
}

bool Repair::AwaitInFlight(const Context& context, size_t bytes_max) {
  MutexLock lock(mutex_);
  return context.Wait(mutex_, wake_, [&] {
    mutex_.AssertHeld();
    return bytes_in_flight_ <= bytes_max;
  });
}

// False: something could not be read, or somebody did not answer.
bool Repair::Scan(Depth depth, std::vector<Todo>* todo, size_t* short_count) {
  // So that the lists of this moment are seen, and no older ones.
  if (Status status = parts_.commit.CommitAndWait(); !status.ok()) {
    spdlog::warn("repair: {}", status.error().message);
    return false;
  }
  std::set<NodeId> silent;
  std::optional<Digest> after;
  for (;;) {
    auto entries = ScanHolders(parts_.engine, after, kEntriesPerScan);
    if (!entries.ok()) {
      spdlog::error("repair: {}", entries.error().message);
      return false;
    }
    if (entries->empty()) return silent.empty();
    after = entries->back().digest;
    std::vector<Finding> findings = Look(*entries);
    if (depth == Depth::kHolders) AskHolders(*entries, &findings, &silent);
    const ViewPtr view = parts_.membership.view();
    for (size_t i = 0; i < entries->size(); ++i) {
      if (auto found = Examine(depth, (*entries)[i], findings[i], *view, short_count)) {
        todo->push_back(*std::move(found));
      }
    }
    const auto pause = depth == Depth::kHolders ? kPausePerQuestion : std::chrono::nanoseconds();
    if (!context_.Sleep(pause * entries->size())) return true;
  }
}

std::vector<Repair::Finding> Repair::Look(const std::vector<HolderEntry>& entries) {
  std::vector<Digest> digests;
  for (const HolderEntry& entry : entries) digests.push_back(entry.digest);
  const std::vector<bool> here = parts_.local.HasSound(digests);
  const std::vector<bool> pending = parts_.replicator.Knows(digests, Replicator::Known::kPending);
  std::vector<Finding> findings(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) findings[i] = {here[i], pending[i], {}};
  return findings;
}

void Repair::AskHolders(const std::vector<HolderEntry>& entries, std::vector<Finding>* findings,
                        std::set<NodeId>* silent) {
  const ViewPtr view = parts_.membership.view();
  std::map<NodeId, std::vector<size_t>> questions;
  for (size_t i = 0; i < entries.size(); ++i) {
    if ((*findings)[i].is_being_put) continue;
    for (const NodeId& holder : entries[i].holders) {
      const NodeInfo* node = view->Find(holder);
      if (holder == self_ || node == nullptr || node->state != NodeState::kUp || silent->contains(holder)) {
        continue;
      }
      questions[holder].push_back(i);
    }
  }
  std::map<NodeId, PeerCaller::Bits> answers;
  for (const auto& [node, indexes] : questions) {
    std::vector<Digest> digests;
    for (size_t i : indexes) digests.push_back(entries[i].digest);
    answers.emplace(node, parts_.caller.Confirm(node, digests, parts_.confirm_timeout));
  }
  for (auto& [node, answer] : answers) {
    answer->Wait({});
    const Result<std::vector<bool>> bits = answer->Take();
    const std::vector<size_t>& indexes = questions[node];
    if (!bits.ok() || bits->size() != indexes.size()) {
      silent->insert(node);
      continue;
    }
    for (size_t k = 0; k < indexes.size(); ++k) {
      if (!(*bits)[k]) (*findings)[indexes[k]].denied.push_back(node);
    }
  }
}

std::optional<Repair::Todo> Repair::Examine(Depth depth, const HolderEntry& entry, const Finding& finding,
                                            const View& view, size_t* short_count) {
  if (finding.is_being_put) return std::nullopt;
  Holders left;  // down ones are expected back
  for (const NodeId& holder : entry.holders) {
    const NodeInfo* node = view.Find(holder);
    if (holder == self_ || node == nullptr || node->state == NodeState::kOut) continue;
    if (!Contains(finding.denied, holder)) left.push_back(holder);
  }
  const bool is_named = Contains(entry.holders, self_);
  Holders others = left;
  if (finding.is_here) left.push_back(self_);
  // Of those that have it, the first that is up does what is to be done. That holds when a change of the nodes makes
  // all look. What this node alone knows to be short is its own to do.
  const std::vector<const NodeInfo*> order = Order(view, entry.digest);
  const auto first = std::find_if(order.begin(), order.end(), [&](const NodeInfo* node) {
    return node->state == NodeState::kUp && Contains(left, node->id) && (depth == Depth::kHolders || node->id == self_);
  });
  if (first == order.end() || (*first)->id != self_) return std::nullopt;
  // A home that is new to the chunk learns who has it. It became so by a change that brings a full pass; the short ones
  // in between would only say it again.
  const NodeInfo* home = order.front();
  if (depth == Depth::kHolders && home->state == NodeState::kUp && !Contains(left, home->id)) {
    // So many wait only when the node is slow: it gets time.
    const size_t waiting = parts_.replicator.Tell(home->id, entry.digest, left);
    if (waiting > kTellsWaitingMax) static_cast<void>(context_.Sleep(std::chrono::milliseconds(10)));
  }
  std::vector<const NodeInfo*> have, possible;
  for (const NodeInfo* node : order) {
    const bool has = Contains(left, node->id);
    if (has) have.push_back(node);
    if (has || node->takes_chunks()) possible.push_back(node);
  }
  const size_t copies = parts_.copies;
  if (left.size() < copies) {
    if (possible.size() > left.size()) return Todo{entry.digest, std::move(others)};
    ++*short_count;
  } else if (const size_t domains = DomainCount(have);
             domains < copies && domains < std::min(copies, DomainCount(possible))) {
    return Todo{entry.digest, std::move(others), left.size() + std::min(copies, DomainCount(possible)) - domains};
  }
  if (!finding.denied.empty() || !is_named) parts_.commit.SetHolders(entry.digest, left);
  return std::nullopt;
}

// Its domains may be away again since the scan.
bool Repair::CanSpread(const Todo& todo) {
  const ViewPtr view = parts_.reachability.view();
  Holders holders = todo.others;
  holders.push_back(self_);
  return !MoreTargets(*view, todo.digest, FindAll(*view, holders), 1, NewDomains::kOnly).empty();
}

bool Repair::Copy(const Todo& todo) {
  const bool is_spread = todo.domain_copies != 0;
  if (is_spread && !CanSpread(todo)) {
    parts_.needs.in_few_domains.fetch_add(1);
    chunks_left_.fetch_sub(1);
    return true;
  }
  Answer<Result<store::ChunkData>> answer;
  parts_.reads.Get(todo.digest, [&](Result<store::ChunkData> data) { answer.Set(std::move(data)); });
  answer.Wait({});
  auto data = answer.Take();
  if (!data.ok()) {
    spdlog::error("repair: chunk {} cannot be read: {}", todo.digest.ToHex(), data.error().message);
    return false;
  }
  const size_t size = data->size;
  enum class Change { kBegins, kIsGivenUp, kEnds };
  auto note = [this, size, is_spread](Change change) {
    MutexLock lock(mutex_);
    size_t& under_way = is_spread ? spreading_ : replicating_;
    under_way = change == Change::kBegins ? under_way + 1 : under_way - 1;
    bytes_in_flight_ = change == Change::kBegins ? bytes_in_flight_ + size : bytes_in_flight_ - size;
    wake_.NotifyAll();
    if (change != Change::kEnds) return;
    bytes_total_.fetch_add(size);
    chunks_left_.fetch_sub(1);
    if (!is_spread) missing_copies_.fetch_sub(1);
  };
  note(Change::kBegins);
  // A copy that is damaged or not there after all is stored anew.
  const bool is_here = parts_.local.HasSound({&todo.digest, 1})[0];
  ChunkCopies::Repair repair{std::move(data->slices), todo.others, todo.domain_copies, is_here, Clock::Now()};
  if (!parts_.replicator.Repair(todo.digest, std::move(repair), size, [note] { note(Change::kEnds); })) {
    note(Change::kIsGivenUp);
    return false;
  }
  static_cast<void>(
      context_.Sleep(std::chrono::nanoseconds(std::chrono::seconds(1)) * size / bytes_per_second_max_.load()));
  return true;
}

}  // namespace cairnfs::cluster
