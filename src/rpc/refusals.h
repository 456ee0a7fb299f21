// Counts what a port refuses, and says why in the log: once a minute, since whoever is refused tries again, and could
// fill the disk with the log's lines about it.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/thread_annotations.h"

namespace cairnfs::rpc {

class RefusalLog {
 public:
  // `port` stands in front of each line, as "the port for joining at 10.0.0.1:7403".
  explicit RefusalLog(std::string port) : port_(std::move(port)) {}

  void Note(const std::string& why);  // any thread
  uint64_t total() const { return total_; }

 private:
  const std::string port_;
  std::atomic<uint64_t> total_{0};
  Mutex mutex_;
  std::optional<Clock::time_point> told_at_ GUARDED_BY(mutex_);
  uint64_t untold_ GUARDED_BY(mutex_) = 0;
};

}  // namespace cairnfs::rpc
