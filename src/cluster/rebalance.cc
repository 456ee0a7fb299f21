#include "cluster/rebalance.h"

#include <unordered_set>

#include "base/log.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kChunksPerLook = 1024;
constexpr std::chrono::milliseconds kBusyPauseMin{50}, kBusyPauseMax{1000};  // a node that is busy is asked again
constexpr std::chrono::seconds kDeliverTimeout{20};                          // the receiver syncs before it answers
// Each time that chunks are freed all of the index is read: one in so many of this node's at once, within bounds.
constexpr uint64_t kShareFreedAtOnce = 32;
constexpr uint64_t kFreedAtOnceMin = 4 * 1024;
constexpr uint64_t kFreedAtOnceMax = 64 * 1024;
// Of the segments of a node without room, so many are emptied at once, or one of so many.
constexpr size_t kSegmentsEmptiedMin = 4;
constexpr size_t kShareOfSegmentsEmptied = 16;
constexpr std::chrono::nanoseconds kPausePerLook{20'000};  // 50,000 chunks a second are asked about at most
constexpr std::chrono::seconds kJudgeEvery{5};             // nodes tell what they have every few seconds
constexpr size_t kNewsWaitingMax = 32 * 1024;

Holders IdsOf(const std::vector<const NodeInfo*>& nodes) {
  Holders ids;
  for (const NodeInfo* node : nodes) ids.push_back(node->id);
  return ids;
}

bool IsUp(const View& view, const NodeId& id) {
  const NodeInfo* node = view.Find(id);
  return node != nullptr && node->state == NodeState::kUp;
}

bool ContainsAll(const Holders& holders, const Holders& wanted) {
  return std::all_of(wanted.begin(), wanted.end(), [&](const NodeId& id) { return Contains(holders, id); });
}

}  // namespace

void Rebalance::Hold(bool hold) {
  MutexLock lock(mutex_);
  is_held_ = hold;
  if (!hold) return;
  stop_.request_stop();
  while (is_freeing_) freed_.Wait(mutex_);
}

Rebalance::Outcome Rebalance::Run(const Context& context, const std::function<bool()>& yields) {
  Pass pass{context, yields};
  JudgeBalance(pass);
  chunks_left_ = pass.gives ? CountMoves(pass) : 0;
  if (pass.gives && IsFull()) EmptySegments(pass);
  Visit(pass, [](SegmentId) { return true; });
  chunks_left_ = 0;
  pass.outcome.is_complete = pass.outcome.is_complete && pass.silent.empty();
  return pass.outcome;
}

void Rebalance::Visit(Pass& pass, const std::function<bool(SegmentId)>& is_meant) {
  std::stop_source ends;
  std::vector<Digest> digests;
  auto look = [&] {
    if (!ends.stop_requested() && (pass.yields() || pass.context.Expired())) ends.request_stop();
    if (Clock::Now() >= pass.judged_at + kJudgeEvery) JudgeBalance(pass);
    if (!ends.stop_requested()) Look(pass, digests);
    digests.clear();
  };
  const Status visited =
      parts_.local.VisitChunks(pass.context.WithStop(ends.get_token()), [&](const Digest& digest, SegmentId segment) {
        if (!is_meant(segment)) return;
        digests.push_back(digest);
        if (digests.size() == kChunksPerLook) look();
      });
  look();
  if (!visited.ok() || ends.stop_requested()) pass.outcome.is_complete = false;
  Free(pass);
}

bool Rebalance::IsFull() const {
  const ViewPtr view = parts_.membership.view();
  const NodeInfo* self = view->Find(self_);
  return self != nullptr && self->full;
}

// Chunks that are freed here and there leave room only to a compaction, which needs some itself. So first a few
// segments go as a whole: those that have the fewest chunks.
void Rebalance::EmptySegments(Pass& pass) {
  std::unordered_map<uint64_t, uint64_t> counts;
  const Status visited =
      parts_.local.VisitChunks(pass.context, [&](const Digest&, SegmentId segment) { ++counts[segment.value]; });
  if (!visited.ok() || counts.empty()) return;
  std::vector<std::pair<uint64_t, uint64_t>> by_count;
  for (const auto& [segment, count] : counts) by_count.emplace_back(count, segment);
  std::sort(by_count.begin(), by_count.end());
  by_count.resize(std::min(by_count.size(), std::max(kSegmentsEmptiedMin, by_count.size() / kShareOfSegmentsEmptied)));
  std::unordered_set<uint64_t> chosen;
  for (const auto& [count, segment] : by_count) chosen.insert(segment);
  pass.is_emptying = true;
  Visit(pass, [&](SegmentId segment) { return chosen.contains(segment.value); });
  pass.is_emptying = false;
}

void Rebalance::JudgeBalance(Pass& pass) {
  const ViewPtr view = parts_.membership.view();
  std::optional<StoredBytes> stored;
  if (parts_.stored_bytes) {
    stored = parts_.stored_bytes(pass.context);
    // A node that has just come tells it soon.
    const bool all_told = stored && std::all_of(view->nodes.begin(), view->nodes.end(), [&](const NodeInfo& node) {
                            return node.state != NodeState::kUp || stored->contains(node.id);
                          });
    if (!all_told) pass.outcome.is_complete = false;
  }
  pass.givers.clear();
  for (const NodeInfo& node : view->nodes) {
    if (node.state == NodeState::kUp && GivesAway(*view, stored.value_or(StoredBytes()), node.id)) {
      pass.givers.insert(node.id);
    }
  }
  pass.gives = pass.givers.contains(self_);
  pass.judged_at = Clock::Now();
}

// nullopt: the chunk should lie here, or may as well. Who gives nothing away frees only what enough others have
// already.
std::optional<Rebalance::Stray> Rebalance::Judge(const Pass& pass, const View& view, const Digest& digest) const {
  Holders have = parts_.commit.FindHolders(digest).value_or(Holders());
  std::erase(have, self_);
  if (!pass.is_emptying) have.push_back(self_);
  const TargetsAmong among = pass.gives ? TargetsAmong::kAll : TargetsAmong::kHolders;
  Stray stray{digest, IdsOf(Targets(view, digest, FindAll(view, have), parts_.copies, among))};
  if (stray.targets.size() < parts_.copies || Contains(stray.targets, self_)) return std::nullopt;
  stray.is_ours = pass.is_emptying;
  if (!pass.gives || pass.is_emptying) return stray;
  // One of those that give it away sends it.
  stray.is_ours = std::none_of(have.begin(), have.end(), [&](const NodeId& other) {
    return other < self_ && !Contains(stray.targets, other) && pass.givers.contains(other);
  });
  return stray;
}

uint64_t Rebalance::CountMoves(Pass& pass) {
  const ViewPtr view = parts_.membership.view();
  uint64_t count = 0;
  std::stop_source ends;
  static_cast<void>(
      parts_.local.VisitChunks(pass.context.WithStop(ends.get_token()), [&](const Digest& digest, SegmentId) {
        const auto stray = Judge(pass, *view, digest);
        if (!stray || !stray->is_ours) return;
        const auto have = parts_.commit.FindHolders(digest);
        if (have && ContainsAll(*have, stray->targets)) return;
        if (++count % kChunksPerLook == 0 && pass.yields()) ends.request_stop();
      }));
  return count;
}

void Rebalance::Look(Pass& pass, const std::vector<Digest>& digests) {
  const ViewPtr view = parts_.membership.view();
  std::vector<Stray> strays;
  for (const Digest& digest : digests) {
    if (auto stray = Judge(pass, *view, digest)) strays.push_back(*std::move(stray));
  }
  if (strays.empty()) return;
  AskTargets(strays, pass.silent);
  Send(pass, strays);
  for (const Stray& stray : strays) {
    const bool is_surplus = stray.is_known && (stray.lacking.empty() || (stray.is_ours && stray.sends_failed == 0));
    if (is_surplus) {
      pass.surplus.push_back(stray.digest);
    } else if (pass.gives) {
      pass.outcome.is_complete = false;
    }
  }
  const uint64_t at_once = parts_.local.Stats().chunk_count / kShareFreedAtOnce;
  if (pass.surplus.size() >= std::clamp(at_once, kFreedAtOnceMin, kFreedAtOnceMax)) Free(pass);
  static_cast<void>(pass.context.Sleep(kPausePerLook * digests.size()));
}

// Those that do not answer are noted in `silent`, and asked no more.
void Rebalance::AskTargets(std::vector<Stray>& strays, std::set<NodeId>& silent) {
  const ViewPtr view = parts_.membership.view();
  std::map<NodeId, std::vector<Stray*>> questions;
  for (Stray& stray : strays) {
    for (const NodeId& target : stray.targets) {
      const bool is_asked = IsUp(*view, target) && !silent.contains(target);
      stray.is_known = stray.is_known && is_asked;
      if (is_asked) questions[target].push_back(&stray);
    }
  }
  struct Asked {
    NodeId node;
    std::vector<Stray*> strays;
    PeerCaller::Bits answer;
  };
  std::vector<Asked> asked;
  for (const auto& [node, about] : questions) {
    for (size_t begin = 0; begin < about.size(); begin += kDigestsPerMessageMax) {
      const size_t end = std::min(about.size(), begin + kDigestsPerMessageMax);
      Asked one{node, {about.begin() + static_cast<ptrdiff_t>(begin), about.begin() + static_cast<ptrdiff_t>(end)}, {}};
      std::vector<Digest> digests;
      for (const Stray* stray : one.strays) digests.push_back(stray->digest);
      one.answer = parts_.caller.Confirm(node, digests, parts_.confirm_timeout);
      asked.push_back(std::move(one));
    }
  }
  for (Asked& one : asked) {
    one.answer->Wait({});
    const Result<std::vector<bool>> bits = one.answer->Take();
    const bool is_answer = bits.ok() && bits->size() == one.strays.size();
    if (!is_answer) silent.insert(one.node);
    for (size_t i = 0; i < one.strays.size(); ++i) {
      one.strays[i]->is_known = one.strays[i]->is_known && is_answer;
      if (is_answer && !(*bits)[i]) one.strays[i]->lacking.push_back(one.node);
    }
  }
}

void Rebalance::Send(Pass& pass, std::vector<Stray>& strays) {
  std::map<NodeId, Parcel> parcels;
  for (Stray& stray : strays) {
    if (!stray.is_known || !stray.is_ours || stray.lacking.empty() || pass.yields()) continue;
    Answer<Result<store::ChunkData>> answer;
    parts_.reads.Get(stray.digest, [&](Result<store::ChunkData> data) { answer.Set(std::move(data)); });
    answer.Wait({});
    const Result<store::ChunkData> data = answer.Take();
    if (!data.ok()) spdlog::warn("chunk {} cannot be moved: {}", stray.digest.ToHex(), data.error().message);
    Holders holders = parts_.commit.FindHolders(stray.digest).value_or(Holders{self_});
    for (const NodeId& target : stray.targets) {
      if (!Contains(holders, target)) holders.push_back(target);
    }
    const ViewPtr reachable = parts_.reachability.view();
    for (const NodeId& node : stray.lacking) {
      const NodeInfo* info = reachable->Find(node);
      ++stray.sends_failed;  // until it has come
      if (!data.ok() || info == nullptr || !info->takes_chunks()) continue;
      Parcel& parcel = parcels[node];
      parcel.items.push_back({stray.digest, static_cast<uint32_t>(data->size), holders});
      parcel.strays.push_back(&stray);
      parcel.message.payload.insert(parcel.message.payload.end(), data->slices.begin(), data->slices.end());
      parcel.bytes += data->size;
      if (parcel.bytes >= kPayloadBytesFull) Deliver(pass, node, std::exchange(parcel, {}));
    }
  }
  for (auto& [node, parcel] : parcels) {
    if (!parcel.items.empty()) Deliver(pass, node, std::move(parcel));
  }
}

void Rebalance::Deliver(Pass& pass, const NodeId& node, Parcel parcel) {
  parcel.message.head = EncodePut(parcel.items);
  Result<std::vector<PutAnswer>> answers = std::vector<PutAnswer>();
  for (auto pause = kBusyPauseMin;; pause = std::min(2 * pause, kBusyPauseMax)) {
    auto answer = std::make_shared<Answer<Result<std::vector<PutAnswer>>>>();
    parts_.caller.Call<std::vector<PutAnswer>>(
        node, PeerMethod::kPut, parcel.message, kDeliverTimeout, DecodePutReply,
        [answer](Result<std::vector<PutAnswer>> replied) { answer->Set(std::move(replied)); });
    answer->Wait({});
    answers = answer->Take();
    const bool is_busy = !answers.ok() && answers.error().code == ErrorCode::kBusy;
    if (!is_busy || pass.yields() || !pass.context.Sleep(pause)) break;
  }
  if (!answers.ok() || answers->size() != parcel.items.size()) return;
  for (size_t i = 0; i < parcel.items.size(); ++i) {
    if ((*answers)[i] == PutAnswer::kNoSpace) parts_.reachability.NoteFull(node);
    if ((*answers)[i] != PutAnswer::kDurable) continue;
    bytes_moved_ += parcel.items[i].size;
    if (--parcel.strays[i]->sends_failed > 0) continue;
    pass.outcome.has_changed = true;
    if (chunks_left_ > 0) --chunks_left_;
  }
  const auto second = std::chrono::nanoseconds(std::chrono::seconds(1));
  static_cast<void>(pass.context.Sleep(second * parcel.bytes / bytes_per_second_max_.load()));
}

// Why enough copies stay: the store records from before the targets are asked until the last of these chunks is
// deleted, and deletes none that somebody asked for meanwhile. So where this node relies on another's copy, and that
// one deletes it after it was asked, the other began to record after it was asked, and so after this node did. From
// each deletion to one that it relied on and that came to nothing, the beginnings get later and later, which ends:
// there is a deletion whose targets all have their copies. docs/cluster/rebalancing.md.
void Rebalance::Free(Pass& pass) {
  std::vector<Digest> surplus = std::exchange(pass.surplus, {});
  if (surplus.empty()) return;
  Context context;
  {
    MutexLock lock(mutex_);
    if (is_held_) {
      pass.outcome.is_complete = false;
      return;
    }
    is_freeing_ = true;
    stop_ = std::stop_source();
    context = pass.context.WithStop(stop_.get_token());
  }
  parts_.local.BeginCollection();
  const size_t wanted = surplus.size();
  surplus = ConfirmedElsewhere(pass, surplus);
  const std::unordered_set<Digest, DigestHash> freed(surplus.begin(), surplus.end());
  store::SweepOptions options;
  options.bytes_per_second_max = bytes_per_second_max_.load();
  options.companion_key = HolderKey;
  store::SweepProgress progress;
  Status swept = parts_.local.Sweep(
      context, [&](const Digest& digest) { return !freed.contains(digest); }, options, progress);
  {
    MutexLock lock(mutex_);
    is_freeing_ = false;
    freed_.NotifyAll();
  }
  const uint64_t count = progress.chunks_freed.load();
  if (count < wanted) pass.outcome.is_complete = false;
  if (count > 0) pass.outcome.has_changed = true;
  spdlog::info("freed {} chunks, {} MiB, that {} other nodes have", count, progress.bytes_freed.load() / kMiB,
               parts_.copies);
  if (!swept.ok() && swept.error().code != ErrorCode::kInterrupted) {
    spdlog::warn("freeing chunks that other nodes have: {}", swept.error().message);
  }
}

// Those that all their targets have durably. What this node saves or copies at present it may count on its own copy of.
// The targets learn that they are all who have it.
std::vector<Digest> Rebalance::ConfirmedElsewhere(const Pass& pass, const std::vector<Digest>& digests) {
  const ViewPtr view = parts_.membership.view();
  const std::vector<bool> is_pending = parts_.replicator.Knows(digests, Replicator::Known::kPending);
  std::vector<Stray> strays;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (is_pending[i]) continue;
    if (auto stray = Judge(pass, *view, digests[i])) strays.push_back(*std::move(stray));
  }
  std::set<NodeId> silent;
  AskTargets(strays, silent);
  std::vector<Digest> confirmed;
  for (const Stray& stray : strays) {
    if (!stray.is_known || !stray.lacking.empty()) continue;
    confirmed.push_back(stray.digest);
    for (const NodeId& target : stray.targets) {
      const size_t waiting = parts_.replicator.Tell(target, stray.digest, stray.targets);
      if (waiting > kNewsWaitingMax) static_cast<void>(pass.context.Sleep(std::chrono::milliseconds(10)));
    }
  }
  return confirmed;
}

}  // namespace cairnfs::cluster
