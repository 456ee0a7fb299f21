// Loop devices and mounts of the power-cut test, taken down in the right order whatever happens.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

namespace cairnfs::testing {

// ext4 on a loop device over a file, mounted. Ends the process with status 2 when it cannot be set up.
class LoopMount {
 public:
  // `options`: as after mount -o.
  LoopMount(const std::string& file, const std::string& mount_point, const std::string& options);
  ~LoopMount();
  LoopMount(const LoopMount&) = delete;
  // What the kernel said when the filesystem could not be mounted; empty: it is there.
  const std::string& failure() const { return failure_; }
  // Unmounts and gives the device back; the destructor does it otherwise, forcefully.
  void Close();

 private:
  std::string mount_point_, device_, failure_;
};

// The running block_log_fs over `images`; `file(i)` is the disk over the i-th.
class LoggedDisks {
 public:
  LoggedDisks(const std::string& server, const std::string& mount_point, const std::string& log,
              const std::string& count, const std::vector<std::string>& images);
  ~LoggedDisks();
  LoggedDisks(const LoggedDisks&) = delete;
  std::string file(size_t i) const { return mount_point_ + "/disk" + std::to_string(i) + ".img"; }

 private:
  std::string mount_point_;
  pid_t pid_ = 0;
};

}  // namespace cairnfs::testing
