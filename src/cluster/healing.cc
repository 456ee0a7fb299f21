#include "cluster/healing.h"

#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kAtOnceMax = 4;
constexpr std::chrono::milliseconds kLookInterval{50};  // whether somebody wants to wait no more
constexpr std::chrono::seconds kSilenceMax{60};         // after which nobody waits for more to be replaced
constexpr size_t kLeftMax = 64 * 1024;                  // about as many as the chunk index keeps in mind as damaged
constexpr std::chrono::nanoseconds kAgainAfter = std::chrono::seconds(5);
constexpr std::chrono::nanoseconds kAgainAfterMax = std::chrono::minutes(5);

}  // namespace

Healing::Healing(ClusterChunkStoreImpl& store, uint64_t bytes_per_second_max)
    : store_(store), bytes_per_second_max_(std::max<uint64_t>(1, bytes_per_second_max)), pause_(kAgainAfter) {
  thread_ = std::thread([this] { Run(); });
}

void Healing::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

void Healing::Add(const Digest& digest) {
  MutexLock lock(mutex_);
  if (left_.size() >= kLeftMax || !left_.insert(digest).second) return;
  untried_.insert(digest);
  waiting_.push_back(digest);
  wake_.NotifyAll();
}

void Healing::RetryNow() {
  MutexLock lock(mutex_);
  retry_at_ = {};
  wake_.NotifyAll();
}

size_t Healing::left() const {
  MutexLock lock(mutex_);
  return left_.size();
}

Status Healing::Await(const std::stop_token& stop) {
  const auto begun = Clock::Now();
  MutexLock lock(mutex_);
  while (!untried_.empty() && Clock::Now() < std::max(begun, replaced_at_) + kSilenceMax) {
    if (stopping_ || stop.stop_requested()) return MakeError(ErrorCode::kInterrupted, "stopped");
    wake_.WaitFor(mutex_, kLookInterval);
  }
  return {};
}

void Healing::Run() {
  pthread_setname_np(pthread_self(), "cairn-heal");
  while (auto digest = AwaitNext()) {
    store_.ReplaceDamaged(
        *digest, [this, digest = *digest](std::optional<size_t> replaced_bytes) { OnEnded(digest, replaced_bytes); });
  }
}

std::optional<Digest> Healing::AwaitNext() {
  MutexLock lock(mutex_);
  for (;;) {
    if (stopping_) return std::nullopt;
    const auto now = Clock::Now();
    if (!put_off_.empty() && now >= retry_at_) {
      spdlog::warn("{} chunks are damaged on this node and could not be replaced: trying again", put_off_.size());
      waiting_.insert(waiting_.end(), put_off_.begin(), put_off_.end());
      put_off_.clear();
    }
    const bool may_begin = !waiting_.empty() && running_ < kAtOnceMax;
    if (may_begin && now >= next_at_) break;
    if (may_begin) {
      wake_.WaitFor(mutex_, next_at_ - now);
    } else if (!put_off_.empty()) {
      wake_.WaitFor(mutex_, retry_at_ - now);
    } else {
      wake_.Wait(mutex_);
    }
  }
  const Digest digest = waiting_.front();
  waiting_.pop_front();
  ++running_;
  return digest;
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
  wake_.NotifyAll();
}

}  // namespace cairnfs::cluster
