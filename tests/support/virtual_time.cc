#include "virtual_time.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "files_of_test.h"

namespace cairnfs {
namespace {

// Between two looks while threads run.
constexpr std::chrono::microseconds kPause{50};

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
  for (const auto& [id, file] : files_) close(file);
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
// the look began. A thread that was woken and has no processor yet still seems to wait for a futex; its state says that
// it runs.
bool VirtualTime::AllSleep() {
  const uint64_t sleeps = SleepsOfOthers();
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return false;
  const auto each = [&](bool (VirtualTime::*sleeps_by)(int threads, const std::string& id)) {
    rewinddir(threads);
    while (const dirent* entry = readdir(threads)) {
      const std::string id = entry->d_name;
      if (id[0] != '.' && id != own_id_ && !(this->*sleeps_by)(dirfd(threads), id)) return false;
    }
    return true;
  };
  const bool all_sleep = each(&VirtualTime::WaitsOrSleeps) && each(&VirtualTime::Sleeps);
  closedir(threads);
  return all_sleep && SleepsOfOthers() == sleeps;
}

// Nearly all wait for a futex. This shows in a file that is cheap to read again; one of a thread that has ended cannot
// be read, and is opened anew for another of the same id.
bool VirtualTime::WaitsOrSleeps(int threads, const std::string& id) {
  const auto [place, is_new] = files_.try_emplace(id, -1);
  char text[256];
  ssize_t length = is_new ? -1 : pread(place->second, text, sizeof(text), 0);
  if (length <= 0) {
    if (!is_new) close(place->second);
    place->second = openat(threads, (id + "/syscall").c_str(), O_RDONLY | O_CLOEXEC);
    length = place->second < 0 ? 0 : pread(place->second, text, sizeof(text), 0);
    if (place->second < 0) files_.erase(place);
  }
  const std::string futex = std::to_string(SYS_futex) + " ";
  if (length > 0 && std::string_view(text, static_cast<size_t>(length)).starts_with(futex)) return true;
  return Sleeps(threads, id);
}

bool VirtualTime::Sleeps(int threads, const std::string& id) {
  char text[256];
  const int file = openat(threads, (id + "/stat").c_str(), O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? 0 : read(file, text, sizeof(text));
  if (file >= 0) close(file);
  if (length <= 0) return true;  // it has ended
  const std::string_view stat(text, static_cast<size_t>(length));
  const char state = stat[stat.rfind(')') + 2];  // after the name, which may have any letters
  return state == 'S' || state == 'Z' || state == 'X';
}

}  // namespace cairnfs

int main(int argument_count, char** arguments) {
  cairnfs::VirtualTime time;
  return cairnfs::RunTests(argument_count, arguments);
}
