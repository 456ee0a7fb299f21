#include "base/clock.h"

#include <time.h>

#include <atomic>
#include <cassert>
#include <thread>

namespace cairnfs {
namespace {

std::atomic<TimeSource*> replaced_by = nullptr;  // null: the real time

TimeSource* Replacement() { return replaced_by.load(std::memory_order_acquire); }

timespec Read(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return now;
}

std::chrono::nanoseconds Since(const timespec& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

Clock::time_point Clock::Now() {
  TimeSource* const source = Replacement();
  return source == nullptr ? std::chrono::steady_clock::now() : source->Now();
}

std::chrono::nanoseconds Clock::SinceBoot() {
  TimeSource* const source = Replacement();
  return source == nullptr ? Since(Read(CLOCK_BOOTTIME)) : source->Now().time_since_epoch();
}

Timestamp Clock::WallTime() {
  if (TimeSource* const source = Replacement(); source != nullptr) return source->WallTime();
  const timespec now = Read(CLOCK_REALTIME);
  return {now.tv_sec, static_cast<uint32_t>(now.tv_nsec)};
}

Clock::duration Clock::ThreadTime() { return Since(Read(CLOCK_THREAD_CPUTIME_ID)); }

void Clock::SleepUntil(time_point time) {
  if (Replacement() == nullptr) return std::this_thread::sleep_until(time);
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  while (Now() < time) WaitUntil(never, lock, time);
}

void Clock::WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock, time_point time) {
  assert(lock.owns_lock());
  if (time == time_point::max()) return condition.wait(lock);
  if (TimeSource* const source = Replacement(); source != nullptr) return source->WaitUntil(condition, lock, time);
  condition.wait_until(lock, time);
}

std::chrono::system_clock::time_point Clock::LibraryDeadline(duration timeout) {
  return std::chrono::system_clock::now() + std::chrono::duration_cast<std::chrono::system_clock::duration>(timeout);
}

void Clock::Replace(TimeSource* source) { replaced_by.store(source, std::memory_order_release); }

}  // namespace cairnfs
