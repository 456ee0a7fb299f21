#include "spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "daemon/environment.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

constexpr int kReadyFd = 3;

bool IsProgram(const stdfs::path& path) { return access(path.c_str(), X_OK) == 0 && stdfs::is_regular_file(path); }

std::vector<char*> Argv(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return argv;
}

std::vector<char*> CleanEnvironment() {
  std::vector<char*> clean;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (daemon::IsPassedOn(*variable)) clean.push_back(*variable);
  }
  clean.push_back(nullptr);
  return clean;
}

// Runs in the child. Keeps nothing of the starter's terminal or pipes. The daemon leaves the starter's directory
// itself, once it has resolved relative paths.
[[noreturn]] void ExecDetached(int pipe_end, const std::string& program, const std::vector<char*>& argv,
                               const std::vector<char*>& environment) {
  setsid();
  int null = open("/dev/null", O_RDWR);
  if (null < 0 || pipe_end < 0) _exit(1);
  if (pipe_end != kReadyFd && dup2(pipe_end, kReadyFd) < 0) _exit(1);
  if (pipe_end == kReadyFd) fcntl(kReadyFd, F_SETFD, 0);
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  close_range(kReadyFd + 1, ~0U, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(program.c_str(), argv.data(), environment.data());
  std::string message = "failed 1\ncannot start " + program;
  [[maybe_unused]] ssize_t written = write(kReadyFd, message.data(), message.size());
  _exit(1);
}

std::string ReadToEnd(int fd) {
  std::string text;
  char buffer[4096];
  for (;;) {
    ssize_t size = read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer, static_cast<size_t>(size));
  }
}

}  // namespace

Result<std::string> FindDaemon() {
  std::error_code error;
  stdfs::path own = stdfs::read_symlink("/proc/self/exe", error).parent_path();
  std::vector<stdfs::path> candidates = {own / "cairnfsd", own / "../sbin/cairnfsd", own / "../bin/cairnfsd",
                                         stdfs::path(CAIRNFS_SBINDIR) / "cairnfsd"};
  if (const char* path = std::getenv("PATH"); path != nullptr) {
    std::istringstream folders(path);
    for (std::string folder; std::getline(folders, folder, ':');)
      candidates.push_back(stdfs::path(folder) / "cairnfsd");
  }
  for (const stdfs::path& candidate : candidates) {
    if (IsProgram(candidate)) return candidate.lexically_normal().string();
  }
  return MakeError(ErrorCode::kNotFound, "cannot find the program cairnfsd beside this one, in " CAIRNFS_SBINDIR
                                         " or on PATH; is CairnFS installed whole?");
}

Result<daemon::StartReport> StartInBackground(const std::vector<std::string>& arguments) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string program, FindDaemon());
  std::vector<std::string> all = arguments;
  all.insert(all.end(), {"--ready-fd", std::to_string(kReadyFd)});
  std::vector<char*> argv = Argv(program, all), environment = CleanEnvironment();
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "cannot make a pipe");
  pid_t child = fork();
  if (child < 0) return ErrnoError(errno, "cannot start a process");
  if (child == 0) ExecDetached(ends[1], program, argv, environment);
  close(ends[1]);
  daemon::StartReport report = daemon::ParseStartReport(ReadToEnd(ends[0]));
  close(ends[0]);
  // A daemon that failed is still ending. Its lock is free once it has ended.
  if (!report.ready) waitpid(child, nullptr, 0);
  return report;
}

Error BecomeDaemon(const std::vector<std::string>& arguments) {
  auto program = FindDaemon();
  if (!program.ok()) return program.error();
  std::vector<char*> argv = Argv(*program, arguments);
  execve(program->c_str(), argv.data(), CleanEnvironment().data());
  return ErrnoError(errno, "cannot start " + *program);
}

}  // namespace cairnfs::tools
