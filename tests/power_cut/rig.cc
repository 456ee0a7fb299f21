#include "rig.h"

#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "command.h"

namespace cairnfs::testing {

LoopMount::LoopMount(const std::string& file, const std::string& mount_point, const std::string& options)
    : mount_point_(mount_point) {
  std::filesystem::create_directories(mount_point);
  device_ = MustRun({"losetup", "--find", "--show", file});
  device_.erase(device_.find_last_not_of(" \n") + 1);
  CommandResult mounted = RunCommand({"mount", "-t", "ext4", "-o", options, device_, mount_point});
  if (mounted.exit_code != 0) failure_ = mounted.output;
}

LoopMount::~LoopMount() { Close(); }

void LoopMount::Close() {
  if (device_.empty()) return;
  if (failure_.empty()) {
    for (int i = 0; umount(mount_point_.c_str()) != 0 && i < 500; ++i) usleep(10000);
    umount2(mount_point_.c_str(), MNT_DETACH);
  }
  RunCommand({"losetup", "--detach", device_});
  device_.clear();
}

LoggedDisks::LoggedDisks(const std::string& server, const std::string& mount_point, const std::string& log,
                         const std::string& count, const std::vector<std::string>& images)
    : mount_point_(mount_point) {
  std::filesystem::create_directories(mount_point);
  std::vector<const char*> arguments = {server.c_str(), mount_point.c_str(), log.c_str(), count.c_str()};
  for (const std::string& image : images) arguments.push_back(image.c_str());
  arguments.push_back(nullptr);
  int rc = posix_spawn(&pid_, server.c_str(), nullptr, nullptr, const_cast<char**>(arguments.data()), environ);
  if (rc != 0) {
    fmt::print("{}: {}\n", server, strerror(rc));
    exit(2);
  }
  struct stat info;
  for (int i = 0; i < 12000; ++i) {
    if (stat(file(0).c_str(), &info) == 0 && info.st_size > 0) return;
    usleep(5000);
  }
  fmt::print("{} did not become ready\n", server);
  exit(2);
}

LoggedDisks::~LoggedDisks() {
  for (int i = 0; umount(mount_point_.c_str()) != 0 && errno == EBUSY && i < 500; ++i) usleep(10000);
  umount2(mount_point_.c_str(), MNT_DETACH);
  for (int i = 0; i < 3000; ++i) {
    if (waitpid(pid_, nullptr, WNOHANG) != 0) return;
    usleep(10000);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

}  // namespace cairnfs::testing
