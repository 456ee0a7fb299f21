// How long a disk, or the machine, kept everybody waiting: what a bound in seconds is judged with on a busy machine.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace cairnfs::testing {

class DiskStalls {
 public:
  // Until the end, a thread writes to this file, which it makes and removes, syncs it and sleeps for 10 ms.
  explicit DiskStalls(const std::string& file);
  ~DiskStalls();
  void Stop();
  // Nanoseconds that its turns took beyond what they take on an idle machine, of those that touch the `window_ns`
  // before `time_ns` (NowNs). 0 where the disk is quick.
  int64_t Before(int64_t time_ns, int64_t window_ns) const;

 private:
  void Run();

  const std::string file_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> stalls_;  // end and length
  std::thread thread_;
};

}  // namespace cairnfs::testing
