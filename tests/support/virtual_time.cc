#include "virtual_time.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "files_of_test.h"

namespace cairnfs {
namespace {

// Between two looks while threads run.
constexpr std::chrono::microseconds kPause{50};
// Of so many threads files are kept open; most of these ended long ago.
constexpr size_t kThreadsMax = 1000;

// How often threads of this process, but for this one, have gone to sleep.
uint64_t SleepsOfOthers() {
  rusage all, own;
  getrusage(RUSAGE_SELF, &all);
  getrusage(RUSAGE_THREAD, &own);
  return static_cast<uint64_t>(all.ru_nvcsw - own.ru_nvcsw);
}

}  // namespace

VirtualTime::VirtualTime() {
  rlimit files;
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
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
  CloseFiles();
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
  own_id_ = gettid();
  std::unique_lock lock(mutex_);
  while (!is_ending_) {
    if (waits_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const uint64_t changes = changes_;
    lock.unlock();
    const bool all_sleep = AllSleep();
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

// The threads are looked at one after the other. If each sleeps, and meanwhile none has gone to sleep, all slept when
// the look began. A thread is counted as gone to sleep somewhat later than it sleeps, when the kernel has found the
// next for its processor. So whom it woke just before is looked at once more.
bool VirtualTime::AllSleep() {
  const uint64_t sleeps = SleepsOfOthers();
  if (files_.size() > kThreadsMax) CloseFiles();
  // Who was awake at the last look often still is.
  if (auto last = files_.find(last_awake_); last != files_.end() && !Sleeps(last->first, last->second)) return false;
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  const bool all_sleep = EachSleeps(threads) && EachSleeps(threads);
  closedir(threads);
  return all_sleep && SleepsOfOthers() == sleeps;
}

bool VirtualTime::EachSleeps(DIR* threads) {
  rewinddir(threads);
  while (const dirent* entry = readdir(threads)) {
    const pid_t id = atoi(entry->d_name);  // 0: "." and ".."
    if (id == 0 || id == own_id_ || Sleeps(id, files_[id])) continue;
    last_awake_ = id;
    return false;
  }
  return true;
}

void VirtualTime::CloseFiles() {
  for (const auto& [id, files] : files_) {
    if (files.wchan >= 0) close(files.wchan);
    if (files.stat >= 0) close(files.stat);
  }
  files_.clear();
}

// Nearly all wait for a futex: what a thread waits for is cheaper to read than its state, and is none while it runs or
// is about to.
bool VirtualTime::Sleeps(pid_t id, ThreadFiles& files) {
  char text[256];
  if (const std::string_view waits_for = Read(id, "wchan", files.wchan, text); waits_for.starts_with("futex")) {
    return true;
  }
  const std::string_view stat = Read(id, "stat", files.stat, text);
  if (stat.empty()) return true;                 // it has ended
  const char state = stat[stat.rfind(')') + 2];  // after the name, which may have any letters
  return state == 'S' || state == 'Z' || state == 'X';
}

// Of a thread that has ended nothing can be read; the file is opened anew then for another of the same id.
std::string_view VirtualTime::Read(pid_t id, const char* name, int& file, std::span<char> text) {
  ssize_t length = file < 0 ? -1 : pread(file, text.data(), text.size(), 0);
  if (length <= 0) {
    if (file >= 0) close(file);
    const std::string path = "/proc/self/task/" + std::to_string(id) + "/" + name;
    file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    length = file < 0 ? 0 : pread(file, text.data(), text.size(), 0);
  }
  return {text.data(), static_cast<size_t>(std::max<ssize_t>(length, 0))};
}

}  // namespace cairnfs

int main(int argument_count, char** arguments) {
  cairnfs::VirtualTime time;
  return cairnfs::RunTests(argument_count, arguments);
}
