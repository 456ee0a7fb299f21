#include "command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace cairnfs::testing {

CommandResult RunCommand(const std::vector<std::string>& arguments) {
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) abort();
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output[1], 1);
  posix_spawn_file_actions_adddup2(&actions, output[1], 2);
  pid_t child = 0;
  int rc = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(output[1]);
  CommandResult result;
  if (rc != 0) {
    result.output = fmt::format("{} cannot be started", arguments[0]);
  } else {
    char buffer[4096];
    for (ssize_t count; (count = read(output[0], buffer, sizeof(buffer))) > 0;) result.output.append(buffer, count);
    int status = 0;
    waitpid(child, &status, 0);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  close(output[0]);
  return result;
}

std::string MustRun(const std::vector<std::string>& arguments) {
  CommandResult result = RunCommand(arguments);
  if (result.exit_code == 0) return result.output;
  fmt::print("FAILED: {} ended with {}:\n{}\n", fmt::join(arguments, " "), result.exit_code, result.output);
  fflush(stdout);
  exit(2);
}

}  // namespace cairnfs::testing
