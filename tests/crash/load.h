// The load of one round: several writers, and one who removes what is no longer needed and asks for collections.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "disk_stalls.h"
#include "workload.h"

namespace cairnfs::testing {

struct LoadOptions {
  std::string mount, tool;  // tool: the path of `cairnfs`
  std::string stalls;       // a file, of no other use, on the disk below the filesystem: DiskStalls
  unsigned round = 0, writer_count = 3;
  uint64_t seed = 0;
  uint64_t file_bytes_max = 256 * 1024;
  unsigned pause_us_max = 3000;
  bool quiet = false;  // no sync points
  bool directory_renames_wait = true;
  bool collects = false;            // asks for collections
  unsigned collect_pause_ms = 0;    // between two of them
  std::vector<std::string> remove;  // directories below the mount that may go
};

class Load {
 public:
  explicit Load(const LoadOptions& options);
  // Makes the writers' directories, durably, and starts everything. What failed, or empty.
  std::string Start(Sequence& sequence);
  // Waits for the end of all threads; the daemon is dead, or `stop` is wanted.
  void Finish();
  // True when a writer met an error.
  bool HasFailed() const { return failed_; }
  std::string Failures() const;

  const std::vector<Writer>& writers() const { return writers_; }
  // Over the time in which it counts that bytes become durable by themselves.
  int64_t StalledBefore(int64_t time_ns) const { return stalls_.Before(time_ns, kStallWindowNs); }

 private:
  void Tidy();

  static constexpr int64_t kStallWindowNs = 10'000'000'000;

  LoadOptions options_;
  DiskStalls stalls_;
  std::vector<Writer> writers_;
  std::vector<std::unique_ptr<Workload>> workloads_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false}, failed_{false};
};

}  // namespace cairnfs::testing
