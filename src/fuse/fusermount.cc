#include "fuse/fusermount.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/descriptor.h"

namespace cairnfs::fuse {
namespace {

constexpr const char* kHelper = "fusermount3";

struct HelperResult {
  int exit_code;
  std::string said;  // its stderr, trimmed
};

std::string ReadAll(int fd) {
  std::string text;
  char piece[512];
  for (;;) {
    ssize_t size = read(fd, piece, sizeof piece);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) break;
    text.append(piece, static_cast<size_t>(size));
  }
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

Error HelperMissing(int error) {
  if (error == ENOENT) {
    return MakeError(ErrorCode::kPermission,
                     "not root, and fusermount3 is not installed; install the package fuse3, or run as root");
  }
  return ErrnoError(error, "run fusermount3");
}

// Runs the helper; `inherited` (or -1) stays open in it and is named by _FUSE_COMMFD.
Result<HelperResult> RunHelper(const std::vector<std::string>& arguments, int inherited) {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return ErrnoError(errno, "pipe");
  Descriptor output(pipe_fds[0]), input(pipe_fds[1]);

  std::vector<char*> argv{const_cast<char*>(kHelper)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::string channel = "_FUSE_COMMFD=" + std::to_string(inherited);
  std::vector<char*> environment{channel.data()};
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (std::strncmp(*variable, "_FUSE_COMMFD=", 13) != 0) environment.push_back(*variable);
  }
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.get(), STDERR_FILENO);
  // dup2 onto itself clears close-on-exec in the child alone.
  if (inherited >= 0) posix_spawn_file_actions_adddup2(&actions, inherited, inherited);
  pid_t child = -1;
  int error = posix_spawnp(&child, kHelper, &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return HelperMissing(error);

  input = Descriptor();
  HelperResult result{-1, ReadAll(output.get())};
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

// -1 when the peer sent none.
int ReceiveDescriptor(int socket) {
  char byte;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  ssize_t size;
  do {
    size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  cmsghdr* header = size > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

}  // namespace

Result<int> FusermountMount(const std::string& mount_point, const std::vector<std::string>& options) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return ErrnoError(errno, "socketpair");
  Descriptor ours(sockets[0]), theirs(sockets[1]);
  std::string joined;
  for (const std::string& option : options) joined += (joined.empty() ? "" : ",") + option;
  CAIRNFS_ASSIGN_OR_RETURN(HelperResult result, RunHelper({"-o", joined, "--", mount_point}, theirs.get()));
  theirs = Descriptor();
  if (result.exit_code != 0) {
    return MakeError(ErrorCode::kPermission,
                     "not root, and fusermount3 refused to mount " + mount_point + ": " + result.said);
  }
  int fd = ReceiveDescriptor(ours.get());
  if (fd < 0) return MakeError(ErrorCode::kIo, "fusermount3 mounted " + mount_point + " but passed no descriptor");
  return fd;
}

Status FusermountUnmount(const std::string& mount_point, Unmounting how) {
  std::vector<std::string> arguments{"-u"};
  if (how == Unmounting::kLazily) arguments.emplace_back("-z");
  arguments.insert(arguments.end(), {"--", mount_point});
  CAIRNFS_ASSIGN_OR_RETURN(HelperResult result, RunHelper(arguments, -1));
  if (result.exit_code == 0) return {};
  // fusermount3 ends with 1 whatever went wrong, and prints the error of umount2, in English in every locale.
  const bool is_busy = result.said.find("busy") != std::string::npos;
  // For another user's mount it says that it finds none.
  const bool may_not =
      result.said.find("not permitted") != std::string::npos || result.said.find("not found in") != std::string::npos;
  return MakeError(is_busy ? ErrorCode::kBusy : ErrorCode::kPermission,
                   (may_not ? "only root, or the user who mounted it, may unmount " : "fusermount3 did not unmount ") +
                       mount_point + ": " + result.said);
}

bool UserMayAllowOther() {
  std::ifstream file("/etc/fuse.conf");
  for (std::string line; std::getline(file, line);) {
    size_t begin = line.find_first_not_of(" \t");
    if (begin == std::string::npos) continue;
    size_t end = line.find_last_not_of(" \t\r");
    if (line.substr(begin, end - begin + 1) == "user_allow_other") return true;
  }
  return false;
}

}  // namespace cairnfs::fuse
