// A cairnfsd that a test starts, kills and starts again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace cairnfs::testing {

struct DaemonOptions {
  std::string bin_dir;  // holds cairnfs and cairnfsd
  std::string mount_point, data;
  std::string options;  // as after -o; empty: none
  std::string log;      // receives stderr of all of its processes
};

// From the environment variable CAIRNFS_BIN_DIR; ends the process when it is not set.
std::string BinDirOrExit();

class DaemonProcess {
 public:
  explicit DaemonProcess(const DaemonOptions& options);
  // Kills the daemon and detaches the mount, if they are there.
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  enum class Started { kReady, kDied, kTimedOut };
  // Starts it with CAIRNFS_FAILPOINTS set to `failpoints`, and returns when the mount answers or the daemon died.
  Started Start(const std::string& failpoints = "");
  // True while the process lives. Reaps it.
  bool IsRunning();
  // SIGKILL, and waits for the end. The mount is left behind, dead.
  void Kill();
  // Unmounts through `cairnfs umount`, which drains. The message of what failed, or empty.
  std::string Stop();
  // Detaches a mount that a dead daemon left.
  void Detach();

  std::string Tool() const { return options_.bin_dir + "/cairnfs"; }
  // How the last process ended: "exit 1", "signal 9".
  const std::string& last_end() const { return last_end_; }
  // The last lines of the log.
  std::string LogTail() const;
  const DaemonOptions& options() const { return options_; }

 private:
  DaemonOptions options_;
  pid_t pid_ = 0;
  std::string last_end_;
};

}  // namespace cairnfs::testing
