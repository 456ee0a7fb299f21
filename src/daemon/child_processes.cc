#include "daemon/child_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

constexpr int kLookEveryMs = 100;  // whether it is to end
constexpr std::chrono::milliseconds kBetweenLooksAtEnd{10};
constexpr std::chrono::seconds kEndMax{5};   // of a process that was killed
constexpr size_t kLeftMax = 8;               // that have not ended by then
constexpr size_t kLineBytesMax = 64 * 1024;  // what is longer tells nothing

// Nothing of the daemon's descriptors, signals or output.
class SpawnSettings {
 public:
  explicit SpawnSettings(int output) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions_, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes_);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  // -1: errno says why.
  pid_t Spawn(const std::vector<std::string>& words) const {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    pid_t child = -1;
    errno = posix_spawn(&child, argv[0], &actions_, &attributes_, argv.data(), environ);
    return errno == 0 ? child : -1;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

// What a child tells, line by line.
class Lines {
 public:
  explicit Lines(const std::function<void(std::string line)>& take_line) : take_line_(take_line) {}
  void Take(std::string_view bytes) {
    for (const char byte : bytes) {
      if (byte == '\n') {
        take_line_(std::exchange(line_, {}));
      } else if (line_.size() < kLineBytesMax) {
        line_ += byte;
      }
    }
  }

 private:
  const std::function<void(std::string line)>& take_line_;
  std::string line_;
};

// True: the child has told all, and closed its end.
bool ReadAll(const Context& context, int input, Lines& lines) {
  std::array<char, 4096> bytes{};
  while (!context.Expired()) {
    pollfd ready{.fd = input, .events = POLLIN, .revents = 0};
    const int found = poll(&ready, 1, kLookEveryMs);
    if (found < 0 && errno != EINTR) return true;
    if (found <= 0) continue;
    const ssize_t size = read(input, bytes.data(), bytes.size());
    if (size == 0 || (size < 0 && errno != EINTR)) return true;
    if (size > 0) lines.Take({bytes.data(), static_cast<size_t>(size)});
  }
  return false;
}

bool HasEnded(pid_t child) { return waitpid(child, nullptr, WNOHANG) != 0; }

bool IsFileToRun(const stdfs::path& path) {
  std::error_code ignored;
  return stdfs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

Result<bool> ChildProcesses::Run(const Context& context, const std::vector<std::string>& words,
                                 const std::function<void(std::string line)>& take_line) {
  if (ReapLeft() >= kLeftMax) {
    return MakeError(ErrorCode::kBusy, "processes that were ended before still wait in the mount");
  }
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "cannot make a pipe");
  const pid_t child = SpawnSettings(ends[1]).Spawn(words);
  const int failure = errno;
  close(ends[1]);
  bool has_told = false;
  if (child >= 0) {
    Lines lines(take_line);
    has_told = ReadAll(context, ends[0], lines);
    End(child);
  }
  close(ends[0]);
  return child >= 0 ? Result<bool>(has_told) : Result<bool>(ErrnoError(failure, "cannot start " + words[0]));
}

// It has told all, or its time is over.
void ChildProcesses::End(pid_t child) {
  kill(child, SIGKILL);
  const auto give_up = Clock::Now() + kEndMax;
  while (!HasEnded(child)) {
    if (Clock::Now() >= give_up) {
      MutexLock lock(mutex_);
      left_.push_back(child);
      return;
    }
    Clock::SleepFor(kBetweenLooksAtEnd);
  }
}

size_t ChildProcesses::ReapLeft() {
  MutexLock lock(mutex_);
  std::erase_if(left_, HasEnded);
  return left_.size();
}

Result<std::string> FindCairnfs() {
  std::error_code error;
  const stdfs::path own = stdfs::read_symlink("/proc/self/exe", error).parent_path();
  for (const stdfs::path& candidate :
       {own / "cairnfs", own / "../bin/cairnfs", stdfs::path(CAIRNFS_BINDIR) / "cairnfs"}) {
    if (IsFileToRun(candidate)) return candidate.lexically_normal().string();
  }
  return MakeError(ErrorCode::kNotFound, "cannot find the program cairnfs beside this one, or in " CAIRNFS_BINDIR);
}

}  // namespace cairnfs::daemon
