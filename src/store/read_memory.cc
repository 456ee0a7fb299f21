#include "store/read_memory.h"

namespace cairnfs::store {

bool ReadMemory::Admit(size_t bytes) {
  if (reads_ > 0 && bytes_ + bytes > bytes_max_) return false;
  ++reads_;
  bytes_ += bytes;
  return true;
}

bool ReadMemory::TryEnter(size_t bytes) {
  MutexLock lock(mutex_);
  return waiters_.empty() && Admit(bytes);
}

bool ReadMemory::EnterOrWait(size_t bytes, std::function<void()> start) {
  MutexLock lock(mutex_);
  if (waiters_.empty() && Admit(bytes)) return true;
  waiters_.push_back({bytes, std::move(start)});
  return false;
}

std::vector<ReadMemory::Waiter> ReadMemory::TakeAdmitted() {
  std::vector<Waiter> admitted;
  while (!waiters_.empty() && Admit(waiters_.front().bytes)) {
    admitted.push_back(std::move(waiters_.front()));
    waiters_.pop_front();
  }
  return admitted;
}

void ReadMemory::Leave() {
  std::vector<Waiter> admitted;
  {
    MutexLock lock(mutex_);
    --reads_;
    admitted = TakeAdmitted();
  }
  for (const Waiter& waiter : admitted) waiter.start();
}

void ReadMemory::GiveBack(size_t bytes) {
  std::vector<Waiter> admitted;
  {
    MutexLock lock(mutex_);
    bytes_ -= bytes;
    admitted = TakeAdmitted();
  }
  for (const Waiter& waiter : admitted) waiter.start();
}

size_t ReadMemory::bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace cairnfs::store
