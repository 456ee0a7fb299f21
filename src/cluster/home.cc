#include "cluster/home.h"

#include <algorithm>

#include "base/clock.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::seconds kHoldTimeMax{2};
constexpr std::chrono::milliseconds kClaimLookInterval{500};  // there may be a million claims
// Once one of the chunks of a held answer has come, more are likely to.
constexpr std::chrono::milliseconds kGatherTime{20};
// More than the hosts of a cluster have on their way, and than one waits with. Beyond it a node that asks without end
// costs no more memory: it is told that it has the claim, at once.
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
    // Others count on it from now on, so repair must see it; they have it confirmed, which makes the list durable.
    if (commit_.SetHoldersIfNone(digest, {membership_.self()})) answer.kind = HasAnswer::Kind::kKnown;
  }
  if (answer.holders.empty()) answer.kind = HasAnswer::Kind::kClaim;
  return answer;
}

// What there is, is looked up without the lock, so a claim that is taken meanwhile is seen afterwards; so is one that
// even ended: then the chunk may have come behind the look, and is looked up once more.
std::vector<HasAnswer> HomeClaims::Ask(const std::vector<Digest>& digests, const NodeId& caller) {
  using Presence = GroupCommit::Presence;
  const ViewPtr view = membership_.view();
  const auto now = Clock::Now();
  const NodeInfo* info = view->Find(caller);
  const uint64_t session = info != nullptr ? info->session : 0;
  std::vector<HasAnswer> answers(digests.size());
  std::vector<bool> unclaimed(digests.size());
  uint64_t ended_before;
  {
    MutexLock lock(mutex_);
    ended_before = ended_count_;
    for (size_t i = 0; i < digests.size(); ++i) {
      auto claim = claims_.find(digests[i]);
      unclaimed[i] = claim == claims_.end() || IsOver(claim->second, *view, now);
      if (unclaimed[i]) continue;
      answers[i] = AnswerOf(claim->second, caller);
      if (claim->second.claimant == caller) claim->second.until = now + claim_time_max_;
    }
  }
  const std::vector<Presence> here = commit_.Find(digests);
  for (size_t i = 0; i < digests.size(); ++i) {
    if (unclaimed[i]) answers[i] = Find(digests[i], here[i], *view);
  }
  std::vector<size_t> outdated;
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < digests.size(); ++i) {
      if (!unclaimed[i]) continue;
      auto claim = claims_.find(digests[i]);
      const bool is_claimed = claim != claims_.end() && !IsOver(claim->second, *view, now);
      if (is_claimed) {
        // Another call came in between. It may even be here by now, and not yet on the others that its list names.
        answers[i] = AnswerOf(claim->second, caller);
        continue;
      }
      if (here[i] != Presence::kAbsent) continue;
      if (ended_count_ != ended_before) outdated.push_back(i);
      if (answers[i].kind != HasAnswer::Kind::kClaim) continue;
      if (claim == claims_.end() && claims_.size() >= kClaimsMax) continue;
      claims_.insert_or_assign(digests[i], Claim{caller, session, now + claim_time_max_});
    }
  }
  if (!outdated.empty()) AskAgain(digests, outdated, Claim{caller, session, now + claim_time_max_}, *view, answers);
  return answers;
}

// `own` is the claim that the caller got, unless there were too many. No other claim is ended here: it may be of a
// chunk that is not yet on the others that its list names.
void HomeClaims::AskAgain(const std::vector<Digest>& digests, const std::vector<size_t>& indexes, const Claim& own,
                          const View& view, std::vector<HasAnswer>& answers) {
  std::vector<Digest> asked;
  for (size_t i : indexes) asked.push_back(digests[i]);
  const std::vector<GroupCommit::Presence> here = commit_.Find(asked);
  std::vector<HasAnswer> found;
  for (size_t k = 0; k < asked.size(); ++k) found.push_back(Find(asked[k], here[k], view));
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  for (size_t k = 0; k < asked.size(); ++k) {
    HasAnswer& answer = answers[indexes[k]];
    auto claim = claims_.find(asked[k]);
    const bool is_claimed = claim != claims_.end() && !IsOver(claim->second, view, now);
    const bool is_own = is_claimed && claim->second.claimant == own.claimant && claim->second.until == own.until;
    if (is_claimed && !is_own) {
      answer = AnswerOf(claim->second, own.claimant);
      continue;
    }
    if (!found[k].is_known()) continue;
    if (is_own) EndClaimLocked(asked[k]);
    answer = std::move(found[k]);
  }
}

void HomeClaims::AskAndHold(std::vector<Digest> digests, const NodeId& caller, Respond respond) {
  std::vector<HasAnswer> answers = Ask(digests, caller);
  const bool all_wait = std::all_of(answers.begin(), answers.end(),
                                    [](const HasAnswer& answer) { return answer.kind == HasAnswer::Kind::kWait; });
  if (all_wait && !digests.empty()) {
    auto held = std::make_shared<Held>();
    held->caller = caller;
    held->until = Clock::Now() + kHoldTimeMax;
    MutexLock lock(mutex_);
    // A claim may have ended since: then nobody would wake this before its time, which is bounded.
    size_t& held_already = held_of_[caller];
    if (!closed_ && held_already < kHeldPerCallerMax) {
      ++held_already;
      for (const Digest& digest : digests) waiting_[digest].insert(held);
      held->digests = std::move(digests);
      held->respond = std::move(respond);
      held_.push_back(std::move(held));
      return;
    }
    if (held_already == 0) held_of_.erase(caller);
  }
  respond(std::move(answers));
}

void HomeClaims::NoteCame(const Digest& digest, Clock::time_point now) {
  auto waiting = waiting_.find(digest);
  if (waiting == waiting_.end()) return;
  for (const HeldPtr& held : waiting->second) {
    if (!std::exchange(held->any_came, true)) held->until = std::min(held->until, now + kGatherTime);
  }
}

void HomeClaims::EndClaim(const Digest& digest) {
  MutexLock lock(mutex_);
  EndClaimLocked(digest);
}

void HomeClaims::EndClaimLocked(const Digest& digest) {
  if (claims_.erase(digest) == 0) return;
  ++ended_count_;
  NoteCame(digest, Clock::Now());
}

void HomeClaims::EndOldClaims(const View& view, Clock::time_point now) {
  std::erase_if(claims_, [&](const auto& item) {
    mutex_.AssertHeld();
    if (!IsOver(item.second, view, now)) return false;
    NoteCame(item.first, now);
    ++ended_count_;
    return true;
  });
}

std::vector<HomeClaims::HeldPtr> HomeClaims::TakeDue(Clock::time_point now) {
  std::vector<HeldPtr> due;
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
      auto waiting = waiting_.find(digest);
      if (waiting == waiting_.end()) continue;  // it asked for it twice
      waiting->second.erase(held);
      if (waiting->second.empty()) waiting_.erase(waiting);
    }
    auto of_caller = held_of_.find(held->caller);
    if (--of_caller->second == 0) held_of_.erase(of_caller);
  }
  return due;
}

// Each answer looks up as much as a question does: not on the thread that ticks.
void HomeClaims::Tick() {
  const ViewPtr view = membership_.view();
  const auto now = Clock::Now();
  std::vector<HeldPtr> due;
  {
    MutexLock lock(mutex_);
    if (view != looked_with_ || now >= look_at_) {
      looked_with_ = view;
      look_at_ = now + kClaimLookInterval;
      EndOldClaims(*view, now);
    }
    due = TakeDue(now);
  }
  for (const HeldPtr& held : due) {
    post_([this, held] { Answer(*held); });
  }
}

void HomeClaims::Close() {
  std::vector<HeldPtr> due;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    due = TakeDue(Clock::Now());
  }
  for (const HeldPtr& held : due) Answer(*held);
}

}  // namespace cairnfs::cluster
