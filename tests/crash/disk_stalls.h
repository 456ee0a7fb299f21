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
  // Longer than a turn takes on a machine that is not busy, also while the disk syncs for others.
  static constexpr int64_t kUsualNs = 300'000'000;
  // Until the end, a thread takes turns: it writes to this file, which it makes and removes, syncs it and sleeps 10 ms.
  // A turn beyond `usual_ns` is a stall.
  DiskStalls(const std::string& file, int64_t usual_ns);
  ~DiskStalls();
  void Stop();
  // Nanoseconds of the stalls that touch the `window_ns` before `time_ns` (NowNs).
  int64_t Before(int64_t time_ns, int64_t window_ns) const;

 private:
  void Run();

  const std::string file_;
  const int64_t usual_ns_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::vector<std::pair<int64_t, int64_t>> stalls_;  // end and length
  std::thread thread_;
};

}  // namespace cairnfs::testing
