#include "cluster/waiting_reads.h"

#include <algorithm>
#include <cassert>

#include "base/clock.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kPauseMin{100};
constexpr std::chrono::milliseconds kPauseMax{1000};

}  // namespace

Clock::time_point WaitingReads::Until(const Request& request, Clock::time_point away_since) const {
  return std::min(request.began, away_since) + wait_max_;
}

// Those that failed together are not tried together again and again.
void WaitingReads::Schedule(Read& read, Clock::time_point now) {
  std::uniform_int_distribution<int64_t> some(read.pause.count() / 2, read.pause.count());
  read.try_at = now + std::chrono::milliseconds(some(random_));
  read.pause = std::min(2 * read.pause, kPauseMax);
}

void WaitingReads::Add(Request request, const Error& error, Clock::time_point away_since) {
  auto read = std::make_shared<Read>();
  read->request = std::move(request);
  read->error = error;
  read->until = Until(read->request, away_since);
  read->pause = kPauseMin;
  {
    MutexLock lock(mutex_);
    const auto now = Clock::Now();
    if (!closed_ && now < read->until) {
      Schedule(*read, now);
      reads_.insert(std::move(read));
      return;
    }
  }
  read->request.done(error);
}

void WaitingReads::Tick() {
  std::vector<ReadPtr> due, ended;
  {
    MutexLock lock(mutex_);
    const auto now = Clock::Now();
    for (auto it = reads_.begin(); it != reads_.end();) {
      const ReadPtr read = *it;
      if (now >= read->until) {
        ended.push_back(read);
        it = reads_.erase(it);
        continue;
      }
      ++it;
      if (read->is_tried || now < read->try_at) continue;
      read->is_tried = true;
      ++attempts_;
      due.push_back(read);
    }
  }
  for (const ReadPtr& read : ended) read->request.done(read->error);
  for (const ReadPtr& read : due) Try(read);
}

void WaitingReads::Try(const ReadPtr& read) {
  attempt_(read->request.digest,
           [this, read](Result<store::ChunkData> data, const std::optional<Clock::time_point>& away_since) {
             OnTried(read, std::move(data), away_since);
           });
}

// Else it goes on waiting, or has ended already.
bool WaitingReads::HasEnded(const ReadPtr& read, Result<store::ChunkData>& data,
                            const std::optional<Clock::time_point>& away_since) {
  read->is_tried = false;
  auto found = reads_.find(read);
  if (found == reads_.end()) return false;
  if (!data.ok() && away_since) {
    const auto now = Clock::Now();
    read->error = data.error();
    read->until = Until(read->request, *away_since);
    if (now < read->until) {
      Schedule(*read, now);
      return false;
    }
  }
  reads_.erase(found);
  return true;
}

void WaitingReads::OnTried(const ReadPtr& read, Result<store::ChunkData> data,
                           const std::optional<Clock::time_point>& away_since) {
  bool has_ended;
  {
    MutexLock lock(mutex_);
    has_ended = HasEnded(read, data, away_since);
  }
  if (has_ended) read->request.done(std::move(data));
  MutexLock lock(mutex_);
  if (--attempts_ == 0) ended_.NotifyAll();
}

// The connection to a node that has just come up may take a moment: the first few attempts come quickly.
void WaitingReads::RetryNow() {
  {
    MutexLock lock(mutex_);
    for (const ReadPtr& read : reads_) {
      read->pause = kPauseMin;
      read->try_at = {};
    }
  }
  Tick();
}

void WaitingReads::Close() {
  std::unordered_set<ReadPtr> reads;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    reads.swap(reads_);
  }
  for (const ReadPtr& read : reads) read->request.done(read->error.WithContext("this host stops"));
}

void WaitingReads::AwaitAttempts() {
  MutexLock lock(mutex_);
  assert(closed_);
  while (attempts_ > 0) ended_.Wait(mutex_);
}

}  // namespace cairnfs::cluster
