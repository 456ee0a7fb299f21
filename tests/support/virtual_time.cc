#include "virtual_time.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace cairnfs {
namespace {

// Between two looks while threads run.
constexpr std::chrono::microseconds kPause{50};

// The value of the line of /proc/PID/status that starts with `name` and a colon.
std::string_view ValueOf(std::string_view status, std::string_view name) {
  const size_t at = status.find(name);
  if (at == std::string_view::npos) {
    std::fprintf(stderr, "virtual time: /proc does not tell %s\n", std::string(name).c_str());
    std::abort();
  }
  const size_t begin = at + name.size();
  return status.substr(begin, status.find('\n', begin) - begin);
}

}  // namespace

VirtualTime::VirtualTime() {
  Clock::Replace(this);
  thread_ = std::thread([this] { Run(); });
}

VirtualTime::~VirtualTime() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    changed_.notify_all();
  }
  thread_.join();
  Clock::Replace(nullptr);
}

Clock::time_point VirtualTime::Now() { return began_ + passed_.load(); }

Timestamp VirtualTime::WallTime() {
  const auto time = (wall_began_ + passed_.load()).time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(time);
  return {seconds.count(), static_cast<uint32_t>(std::chrono::nanoseconds(time - seconds).count())};
}

void VirtualTime::WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                            Clock::time_point time) {
  decltype(waits_)::iterator place;
  bool is_time;
  {
    const std::lock_guard own(mutex_);
    is_time = Now() >= time;
    if (!is_time) place = waits_.emplace(time, &condition);
    changes_++;
    changed_.notify_all();
  }
  if (is_time) {
    lock.unlock();
    return lock.lock();
  }
  // Run notifies the condition only when this thread sleeps: so not between here and the wait.
  condition.wait(lock);
  const std::lock_guard own(mutex_);
  waits_.erase(place);
  changes_++;
}

void VirtualTime::Run() {
  own_id_ = std::to_string(gettid());
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    if (waits_.empty()) {
      changed_.wait(lock);
      continue;
    }
    // Threads whose states are looked at one after the other slept all at one instant if none was switched to until a
    // second look at each: the instant between the two.
    const uint64_t changes = changes_;
    lock.unlock();
    Switches first, second;
    const bool all_sleep = AllSleep(first) && AllSleep(second) && first == second;
    if (!all_sleep) std::this_thread::sleep_for(kPause);
    lock.lock();
    if (!all_sleep || changes != changes_) continue;
    // Whoever waits for a time that has come was woken, and waits for a lock.
    const auto next = waits_.upper_bound(Now());
    if (next == waits_.end()) {
      changed_.wait(lock);
      continue;
    }
    passed_ = next->first - began_;
    for (auto at = next; at != waits_.end() && at->first == next->first; ++at) at->second->notify_all();
  }
}

bool VirtualTime::AllSleep(Switches& switches) const {
  DIR* const threads = opendir("/proc/self/task");
  bool all_sleep = threads != nullptr;
  while (const dirent* entry = all_sleep ? readdir(threads) : nullptr) {
    const std::string id = entry->d_name;
    if (id[0] == '.' || id == own_id_) continue;
    const int file = open(("/proc/self/task/" + id + "/status").c_str(), O_RDONLY | O_CLOEXEC);
    char text[4096];
    const ssize_t length = file < 0 ? 0 : read(file, text, sizeof(text));
    if (file >= 0) close(file);
    if (length <= 0) continue;  // it has ended
    const std::string_view status(text, static_cast<size_t>(length));
    const char state = ValueOf(status, "\nState:\t")[0];
    if (state == 'Z' || state == 'X') continue;  // it ends
    all_sleep = state == 'S';
    if (all_sleep) switches[id] = std::string(ValueOf(status, "\nvoluntary_ctxt_switches:\t"));
  }
  if (threads != nullptr) closedir(threads);
  return all_sleep;
}

}  // namespace cairnfs

int main(int argument_count, char** arguments) {
  testing::InitGoogleTest(&argument_count, arguments);
  cairnfs::VirtualTime time;
  return RUN_ALL_TESTS();
}
