#include "store/read_lane.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace cairnfs::store {

ReadLane::~ReadLane() {
  MutexLock lock(mutex_);
  assert(bytes_under_way_ == 0 && line_.empty());
}

void ReadLane::Start(Ticket ticket, std::shared_ptr<SegmentRead> read, std::function<void()> done) {
  Waiting waiting{ticket, std::move(read), std::move(done)};
  {
    MutexLock lock(mutex_);
    if (bytes_under_way_ >= bytes_max_) {
      line_.push_back(std::move(waiting));
      return;
    }
    bytes_under_way_ += waiting.read->bytes();
  }
  Begin(std::move(waiting));
}

void ReadLane::Hurry(Ticket ticket) {
  Waiting waiting;
  {
    MutexLock lock(mutex_);
    auto found = std::find_if(line_.begin(), line_.end(), [&](const Waiting& item) { return item.ticket == ticket; });
    if (found == line_.end()) return;
    waiting = std::move(*found);
    line_.erase(found);
    bytes_under_way_ += waiting.read->bytes();
  }
  Begin(std::move(waiting));
}

void ReadLane::Begin(Waiting waiting) {
  const size_t bytes = waiting.read->bytes();
  SegmentRead::Start(waiting.read, [this, bytes, done = std::move(waiting.done)] {
    OnDone(bytes);
    done();  // may end the store: the last thing that is done
  });
}

void ReadLane::OnDone(size_t bytes) {
  bool first = true;
  for (;;) {
    Waiting next;
    {
      MutexLock lock(mutex_);
      if (std::exchange(first, false)) bytes_under_way_ -= bytes;
      if (line_.empty() || bytes_under_way_ >= bytes_max_) return;
      next = std::move(line_.front());
      line_.pop_front();
      bytes_under_way_ += next.read->bytes();
    }
    Begin(std::move(next));
  }
}

}  // namespace cairnfs::store
