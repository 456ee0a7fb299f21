#include "fuse/interrupt.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>

#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

bool MaskHasKill(std::string_view proc_status, std::string_view field) {
  size_t at = proc_status.find(field);
  if (at == std::string_view::npos) return false;
  std::string_view rest = proc_status.substr(at + field.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
  uint64_t mask = 0;
  std::from_chars(rest.data(), rest.data() + rest.size(), mask, 16);
  return mask & (1ULL << (SIGKILL - 1));
}

}  // namespace

bool ShowsPendingKill(std::string_view proc_status) {
  return MaskHasKill(proc_status, "\nSigPnd:") || MaskHasKill(proc_status, "\nShdPnd:");
}

std::string ReadProcFile(const char* path) {
  std::string text;
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char part[4096];
  for (ssize_t size = 0; (size = read(fd, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(size));
  close(fd);
  return text;
}

bool IsBeingKilled(pid_t thread) {
  if (thread == 0) return false;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/status", thread);
  // In that file the caller's groups, perhaps thousands, come before its signals.
  return ShowsPendingKill(ReadProcFile(path));
}

fs::Credentials CredentialsOf(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  fs::Credentials caller{context->uid, context->gid, {}};
  const int count = fuse_req_getgroups(request, 0, nullptr);
  if (count <= 0) return caller;
  caller.groups.resize(static_cast<size_t>(count));
  const int now = fuse_req_getgroups(request, count, caller.groups.data());
  caller.groups.resize(static_cast<size_t>(std::clamp(now, 0, count)));
  return caller;
}

bool IsInGroup(fuse_req_t request, uint32_t gid) {
  const fs::Credentials caller = CredentialsOf(request);
  return caller.uid == 0 || caller.gid == gid ||
         std::find(caller.groups.begin(), caller.groups.end(), gid) != caller.groups.end();
}

fs::Caller CallerOf(fuse_req_t request) {
  const fuse_ctx* context = fuse_req_ctx(request);
  fs::Caller caller;
  caller.uid = context->uid;
  caller.gid = context->gid;
  caller.pid = static_cast<uint32_t>(context->pid);
  caller.context = SessionOf(request).kill_watch().ContextOf(request);
  caller.is_in_group = [request](uint32_t gid) { return IsInGroup(request, gid); };
  return caller;
}

fs::Caller UntilStop(fuse_req_t request, fs::Caller caller) {
  caller.context = caller.context.WithStop(SessionOf(request).stop());
  return caller;
}

}  // namespace cairnfs::fuse
