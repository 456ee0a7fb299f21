#include "disk_stalls.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>

#include "history.h"

namespace cairnfs::testing {
DiskStalls::DiskStalls(const std::string& file, int64_t usual_ns)
    : file_(file), usual_ns_(usual_ns), thread_([this] { Run(); }) {}

DiskStalls::~DiskStalls() { Stop(); }

void DiskStalls::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void DiskStalls::Run() {
  const int fd = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return;
  const std::array<char, 4096> page{};
  while (!stop_) {
    const int64_t begin = NowNs();
    if (pwrite(fd, page.data(), page.size(), 0) != static_cast<ssize_t>(page.size()) || fsync(fd) != 0) break;
    usleep(10'000);
    const int64_t end = NowNs();
    if (end - begin <= usual_ns_) continue;
    std::lock_guard lock(mutex_);
    stalls_.emplace_back(end, end - begin);
  }
  close(fd);
  unlink(file_.c_str());
}

int64_t DiskStalls::Before(int64_t time_ns, int64_t window_ns) const {
  int64_t total = 0;
  std::lock_guard lock(mutex_);
  for (const auto& [end, length] : stalls_) {
    if (end - length < time_ns && end > time_ns - window_ns) total += length;
  }
  return total;
}

}  // namespace cairnfs::testing
