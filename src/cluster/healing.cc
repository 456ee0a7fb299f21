#include "cluster/healing.h"

#include "base/log.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kAtOnceMax = 4;
constexpr std::chrono::seconds kSilenceMax{60};  // after which nobody waits for more to be replaced
constexpr size_t kLeftMax = 64 * 1024;           // about as many as the chunk index keeps in mind as damaged
constexpr std::chrono::nanoseconds kAgainAfter = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kAgainAfterMax = std::chrono::minutes(5);

}  // namespace

void Healing::Add(const Digest& digest) {
  MutexLock lock(mutex_);
  if (left_.size() >= kLeftMax || !left_.insert(digest).second) return;
  untried_.insert(digest);
  waiting_.push_back(digest);
}

void Healing::RetryNow() {
  MutexLock lock(mutex_);
  retry_at_ = {};
}

void Healing::Close() {
  MutexLock lock(mutex_);
  closed_ = true;
  ended_.NotifyAll();
}

size_t Healing::left() const {
  MutexLock lock(mutex_);
  return left_.size();
}

Status Healing::Await(const Context& context) {
  const auto begun = Clock::Now();
  MutexLock lock(mutex_);
  for (;;) {
    const auto silent_at = std::max(begun, replaced_at_) + kSilenceMax;
    const size_t untried = untried_.size();
    const auto has_news = [&] {
      mutex_.AssertHeld();
      return closed_ || untried_.empty() || untried_.size() != untried;
    };
    const bool is_news = context.WithDeadline(silent_at).Wait(mutex_, ended_, has_news);
    if (closed_ || context.Expired()) return MakeError(ErrorCode::kInterrupted, "stopped");
    if (!is_news || untried_.empty()) return {};
  }
}

void Healing::Tick() {
  for (const Digest& digest : TakeDue()) {
    replace_(digest, [this, digest](std::optional<size_t> replaced_bytes) { OnEnded(digest, replaced_bytes); });
  }
}

std::vector<Digest> Healing::TakeDue() {
  std::vector<Digest> due;
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  if (closed_) return due;
  if (!put_off_.empty() && now >= retry_at_) {
    spdlog::warn("{} chunks are damaged on this node and could not be replaced: trying again", put_off_.size());
    waiting_.insert(waiting_.end(), put_off_.begin(), put_off_.end());
    put_off_.clear();
  }
  for (; !waiting_.empty() && running_ < kAtOnceMax && now >= next_at_; ++running_) {
    due.push_back(waiting_.front());
    waiting_.pop_front();
  }
  return due;
}

void Healing::OnEnded(const Digest& digest, std::optional<size_t> replaced_bytes) {
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  --running_;
  untried_.erase(digest);
  if (replaced_bytes) {
    replaced_at_ = now;
    left_.erase(digest);
    pause_ = kAgainAfter;
    const std::chrono::nanoseconds second = std::chrono::seconds(1);
    next_at_ = std::max(now, next_at_) + second * *replaced_bytes / bytes_per_second_max_.load();
  } else {
    if (put_off_.empty()) {
      retry_at_ = now + pause_;
      pause_ = std::min(2 * pause_, kAgainAfterMax);
    }
    put_off_.push_back(digest);
  }
  ended_.NotifyAll();
}

}  // namespace cairnfs::cluster
