#include "daemon_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "command.h"

namespace cairnfs::testing {
namespace {

constexpr int kStartSecondsMax = 60;

std::vector<std::string> EnvironmentWith(const std::string& failpoints) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (strncmp(*variable, "CAIRNFS_FAILPOINTS=", 19) != 0) environment.emplace_back(*variable);
  }
  if (!failpoints.empty()) environment.push_back("CAIRNFS_FAILPOINTS=" + failpoints);
  return environment;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string BinDirOrExit() {
  const char* directory = getenv("CAIRNFS_BIN_DIR");
  if (directory == nullptr) {
    fmt::print(stderr, "CAIRNFS_BIN_DIR must name the directory that holds cairnfs and cairnfsd\n");
    exit(2);
  }
  return directory;
}

DaemonProcess::DaemonProcess(const DaemonOptions& options) : options_(options) {}

DaemonProcess::~DaemonProcess() {
  Kill();
  Detach();
}

DaemonProcess::Started DaemonProcess::Start(const std::string& failpoints) {
  std::vector<std::string> arguments = {options_.bin_dir + "/cairnfsd", options_.mount_point, "--data", options_.data};
  if (!options_.options.empty()) arguments.insert(arguments.end(), {"-o", options_.options});
  std::vector<std::string> environment = EnvironmentWith(failpoints);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, options_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  int rc = posix_spawn(&pid_, arguments[0].c_str(), &actions, nullptr, Pointers(arguments).data(),
                       Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (rc != 0) {
    fmt::print("FAILED: {}: {}\n", arguments[0], strerror(rc));
    exit(2);
  }
  for (int i = 0; i < kStartSecondsMax * 200; ++i) {
    if (!IsRunning()) return Started::kDied;
    struct statfs info;
    // A mount that a dead daemon left answers ENOTCONN until the new one has replaced it.
    if (statfs(options_.mount_point.c_str(), &info) == 0 && info.f_type == FUSE_SUPER_MAGIC) return Started::kReady;
    usleep(5000);
  }
  return Started::kTimedOut;
}

bool DaemonProcess::IsRunning() {
  if (pid_ == 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) == 0) return true;
  last_end_ =
      WIFEXITED(status) ? fmt::format("exit {}", WEXITSTATUS(status)) : fmt::format("signal {}", WTERMSIG(status));
  pid_ = 0;
  return false;
}

void DaemonProcess::Kill() {
  if (!IsRunning()) return;
  kill(pid_, SIGKILL);
  while (IsRunning()) usleep(1000);
}

std::string DaemonProcess::Stop() {
  if (!IsRunning()) return "the daemon is not running, it ended with " + last_end_;
  CommandResult result = RunCommand({Tool(), "umount", options_.mount_point});
  if (result.exit_code != 0) return fmt::format("umount ended with {}: {}", result.exit_code, result.output);
  for (int i = 0; i < 2000 && IsRunning(); ++i) usleep(5000);
  if (IsRunning()) return "the daemon runs on after umount";
  return last_end_ == "exit 0" ? "" : "the daemon ended with " + last_end_;
}

void DaemonProcess::Detach() {
  while (umount2(options_.mount_point.c_str(), MNT_DETACH) == 0) {
  }
}

std::string DaemonProcess::LogTail() const {
  std::ifstream log(options_.log);
  std::ostringstream text;
  text << log.rdbuf();
  std::string all = text.str();
  return all.size() <= 3000 ? all : "..." + all.substr(all.size() - 3000);
}

}  // namespace cairnfs::testing
