// Time for unit tests: it passes only while every thread of the process sleeps, and then at once.
//
// While a VirtualTime lives, whatever asks base/clock.h is shown its time. Code that runs takes none of it. When no
// thread runs, or waits for a disk, it is the time at which the first of those that wait by the clock goes on. So a
// test of a timeout or a lease is written as with real time, with SleepFor and Eventually, and takes milliseconds; and
// on a busy machine no timeout passes while a thread that would have met it waits for a processor.
//
// What it does not know: waits for other processes, and waits of libraries by the real time (gRPC, RocksDB). Meanwhile
// the time flies. A program that tests these links no virtual_time.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace cairnfs {

class VirtualTime final : public TimeSource {
 public:
  // Starts at the real time. REQUIRES: of these one lives, and no other thread looks at the clock when it begins and
  // ends.
  VirtualTime();
  ~VirtualTime() override;
  VirtualTime(const VirtualTime&) = delete;

  Clock::time_point Now() override;
  Timestamp WallTime() override;
  void WaitUntil(std::condition_variable& condition, std::unique_lock<std::mutex>& lock,
                 Clock::time_point time) override;

 private:
  void Run();
  // Whether at some instant of the call all other threads slept: none ran, or waited for a disk.
  bool AllSleep();
  struct ThreadFiles {  // in /proc; -1: not open
    int wchan = -1;
    int stat = -1;
  };
  bool EachSleeps(DIR* threads);
  void CloseFiles();
  static bool Sleeps(pid_t id, ThreadFiles& files);
  // Empty: there is no such thread any more.
  static std::string_view Read(pid_t id, const char* name, int& file, std::span<char> text);

  std::atomic<Clock::duration> passed_{};
  const Clock::time_point began_ = std::chrono::steady_clock::now();
  const std::chrono::system_clock::time_point wall_began_ = std::chrono::system_clock::now();

  std::mutex mutex_;  // taken after that of a condition
  std::condition_variable changed_;
  std::multimap<Clock::time_point, std::condition_variable*> waits_;
  uint64_t changes_ = 0;  // of waits_
  bool is_ending_ = false;
  pid_t own_id_ = 0;                    // of thread_, as the next
  pid_t last_awake_ = 0;                // 0: none
  std::map<pid_t, ThreadFiles> files_;  // of each thread that was looked at
  std::thread thread_;
};

}  // namespace cairnfs
