#include "cluster/home.h"

#include <algorithm>

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::seconds kClaimTimeMax{30};
constexpr std::chrono::seconds kHoldTimeMax{2};
// Once one of the chunks of a held answer has come, more are likely to.
constexpr std::chrono::milliseconds kGatherTime{20};
// More than the hosts of a cluster have on their way, and than one waits with. Beyond it a node that asks without end
// costs no more memory: whoever asks brings, and is answered at once.
constexpr size_t kClaimsMax = 1024 * 1024;
constexpr size_t kHeldPerCallerMax = 64;

}  // namespace

bool HomeClaims::IsOver(const Claim& claim, const View& view, Clock::time_point now) const {
  if (now >= claim.until) return true;
  const NodeInfo* claimant = view.Find(claim.claimant);
  return claimant == nullptr || claimant->state != NodeState::kUp || claimant->session != claim.session;
}

// What this node knows of a chunk on which there is no claim.
HasAnswer HomeClaims::Find(const Digest& digest, GroupCommit::Presence here, const View& view) {
  using Presence = GroupCommit::Presence;
  HasAnswer answer{here == Presence::kDurable ? HasAnswer::Kind::kKnownHere : HasAnswer::Kind::kKnown, {}};
  if (here != Presence::kAbsent) answer.holders.push_back(membership_.self());
  if (auto holders = commit_.FindHolders(digest)) {
    for (const NodeId& holder : *holders) {
      const NodeInfo* node = view.Find(holder);
      if (holder == membership_.self() || node == nullptr || node->state == NodeState::kOut) continue;
      answer.holders.push_back(holder);
    }
  } else if (here != GroupCommit::Presence::kAbsent) {
    commit_.SetHoldersIfNone(digest, {membership_.self()});  // others count on it from now on, so repair must see it
  }
  if (answer.holders.empty()) answer.kind = HasAnswer::Kind::kBring;
  return answer;
}

std::vector<HasAnswer> HomeClaims::Ask(const std::vector<Digest>& digests, const NodeId& caller) {
  const ViewPtr view = membership_.view();
  const auto now = Clock::now();
  const NodeInfo* info = view->Find(caller);
  const uint64_t session = info != nullptr ? info->session : 0;
  std::vector<HasAnswer> answers(digests.size());
  std::vector<bool> unclaimed(digests.size());
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < digests.size(); ++i) {
      auto claim = claims_.find(digests[i]);
      unclaimed[i] = claim == claims_.end() || IsOver(claim->second, *view, now);
      if (unclaimed[i]) continue;
      answers[i].kind = claim->second.claimant == caller ? HasAnswer::Kind::kBring : HasAnswer::Kind::kWait;
      if (claim->second.claimant == caller) claim->second.until = now + kClaimTimeMax;
    }
  }
  const std::vector<GroupCommit::Presence> here = commit_.Find(digests);
  for (size_t i = 0; i < digests.size(); ++i) {
    if (unclaimed[i]) answers[i] = Find(digests[i], here[i], *view);
  }
  MutexLock lock(mutex_);
  for (size_t i = 0; i < digests.size(); ++i) {
    if (!unclaimed[i] || answers[i].kind != HasAnswer::Kind::kBring) continue;
    if (claims_.size() >= kClaimsMax && !claims_.contains(digests[i])) continue;
    auto [claim, is_first] = claims_.try_emplace(digests[i], Claim{caller, session, now + kClaimTimeMax});
    if (is_first) continue;
    if (claim->second.claimant != caller && !IsOver(claim->second, *view, now)) {
      answers[i].kind = HasAnswer::Kind::kWait;  // another caller came in between
    } else {
      claim->second = Claim{caller, session, now + kClaimTimeMax};
    }
  }
  return answers;
}

void HomeClaims::AskAndHold(std::vector<Digest> digests, const NodeId& caller, Respond respond) {
  std::vector<HasAnswer> answers = Ask(digests, caller);
  const bool all_wait = std::all_of(answers.begin(), answers.end(),
                                    [](const HasAnswer& answer) { return answer.kind == HasAnswer::Kind::kWait; });
  if (all_wait && !digests.empty()) {
    auto held = std::make_shared<Held>();
    held->caller = caller;
    held->until = Clock::now() + kHoldTimeMax;
    MutexLock lock(mutex_);
    // A claim may have ended since: then nobody would wake this before its time, which is bounded.
    const auto held_already =
        std::count_if(held_.begin(), held_.end(), [&](const HeldPtr& other) { return other->caller == caller; });
    if (!closed_ && static_cast<size_t>(held_already) < kHeldPerCallerMax) {
      for (const Digest& digest : digests) waiting_.emplace(digest, held);
      held->digests = std::move(digests);
      held->respond = std::move(respond);
      held_.push_back(std::move(held));
      return;
    }
  }
  respond(std::move(answers));
}

void HomeClaims::NoteCame(const Digest& digest, Clock::time_point now) {
  auto [first, last] = waiting_.equal_range(digest);
  for (auto it = first; it != last; ++it) {
    Held& held = *it->second;
    if (!std::exchange(held.any_came, true)) held.until = std::min(held.until, now + kGatherTime);
  }
}

void HomeClaims::EndClaim(const Digest& digest) {
  MutexLock lock(mutex_);
  if (claims_.erase(digest) == 0) return;
  NoteCame(digest, Clock::now());
}

void HomeClaims::Tick() {
  const ViewPtr view = membership_.view();
  const auto now = Clock::now();
  std::vector<HeldPtr> due;
  {
    MutexLock lock(mutex_);
    std::erase_if(claims_, [&](const auto& item) {
      mutex_.AssertHeld();
      if (!IsOver(item.second, *view, now)) return false;
      NoteCame(item.first, now);
      return true;
    });
    for (auto it = held_.begin(); it != held_.end();) {
      if ((*it)->until > now && !closed_) {
        ++it;
        continue;
      }
      due.push_back(std::move(*it));
      it = held_.erase(it);
    }
    for (const HeldPtr& held : due) {
      for (const Digest& digest : held->digests) {
        auto [first, last] = waiting_.equal_range(digest);
        while (first != last) first = first->second == held ? waiting_.erase(first) : std::next(first);
      }
    }
  }
  for (const HeldPtr& held : due) held->respond(Ask(held->digests, held->caller));
}

void HomeClaims::Close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  Tick();
}

}  // namespace cairnfs::cluster
