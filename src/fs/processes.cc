#include "fs/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>

#include "base/descriptor.h"

namespace cairnfs::fs {
namespace {

std::string ReadProc(uint32_t id, const char* file) {
  std::ifstream in("/proc/" + std::to_string(id) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// What comes after may be a line for each of a million files of an epoll set.
std::string ReadBegin(const std::string& path) {
  char text[512];
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const ssize_t size = file.get() < 0 ? 0 : read(file.get(), text, sizeof(text));
  return {text, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

// Of a file of /proc/PID/fdinfo: proc(5). `ino` came with Linux 5.14.
struct DescriptorInfo {
  uint64_t inode = 0, mount = 0;
  bool writes = false;
};
DescriptorInfo ParseDescriptorInfo(const std::string& text) {
  DescriptorInfo info;
  std::istringstream lines(text);
  for (std::string field; lines >> field;) {
    if (field == "flags:") {
      int flags = 0;
      lines >> std::oct >> flags >> std::dec;
      info.writes = (flags & O_ACCMODE) != O_RDONLY;
    } else if (field == "mnt_id:") {
      lines >> info.mount;
    } else if (field == "ino:") {
      lines >> info.inode;
      return info;
    }
  }
  return {};
}

// Of the CairnFS that the thread sees. Numbers of inodes of other filesystems may be the same.
std::set<uint64_t> CairnFsMounts(uint32_t thread) {
  std::istringstream lines(ReadProc(thread, "mountinfo"));
  std::set<uint64_t> mounts;
  for (std::string line; std::getline(lines, line);) {
    uint64_t mount = 0;
    if (line.find(" - fuse.cairnfs ") != std::string::npos && std::istringstream(line) >> mount) mounts.insert(mount);
  }
  return mounts;
}

// exec(2) closes descriptors while it holds a lock of its process, and recent kernels (6.18) take that lock for whoever
// reads `stat`: who read it before he answers such a close would wait for himself. `status` takes none. A thread gives
// up its memory before it closes its files at its end, and an exec never is without.
enum class Life { kUnseen, kRuns, kEnds };
Life LifeOf(uint32_t thread) {
  const std::string status = ReadProc(thread, "status");
  if (status.empty()) return Life::kUnseen;
  return status.find("\nVmSize:") == std::string::npos ? Life::kEnds : Life::kRuns;
}

// nullopt: it cannot be seen. Of one that runs nothing else is read, and `started` is not told.
std::optional<ThreadEnd> ReadEnd(uint32_t thread) {
  switch (thread == 0 ? Life::kUnseen : LifeOf(thread)) {
    case Life::kUnseen: return std::nullopt;
    case Life::kRuns: return ThreadEnd{};
    case Life::kEnds: break;
  }
  return ParseThreadStat(ReadProc(thread, "stat"));
}

// Links of /proc and the exit code in `stat` are shown to the same: proc(5), PTRACE_MODE_READ_FSCREDS.
bool ShowsItsEnd(uint32_t thread) {
  char target = 0;
  return readlink(("/proc/" + std::to_string(thread) + "/exe").c_str(), &target, 1) >= 0 || errno != EACCES;
}

}  // namespace

// "pid (name) state ... flags ... exit_code": proc(5), fields 9, 22 and 52. A name may hold blanks and parentheses. The
// exit code is that of wait(2), set before a thread closes its files; in its low 7 bits is the signal.
std::optional<ThreadEnd> ParseThreadStat(const std::string& text) {
  constexpr int kFirstAfterName = 3, kFlagsField = 9, kStartField = 22, kExitCodeField = 52;
  constexpr uint64_t kExiting = 0x4;  // PF_EXITING of linux/sched.h
  constexpr uint64_t kSignalMask = 0x7f;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  ThreadEnd end;
  std::string word;
  for (int field = kFirstAfterName; field <= kExitCodeField; field++) {
    if (!(words >> word)) return std::nullopt;
    if (field != kFlagsField && field != kStartField && field != kExitCodeField) continue;
    uint64_t value = 0;
    if (!(std::istringstream(word) >> value)) return std::nullopt;
    if (field == kFlagsField) end.is_exiting = (value & kExiting) != 0;
    if (field == kStartField) end.started = value;
    if (field == kExitCodeField) end.by_signal = (value & kSignalMask) != 0;
  }
  return end;
}

// A number of its /proc/TID/status; nullopt: it cannot be seen.
static std::optional<pid_t> StatusNumber(uint32_t thread, const std::string& name) {
  const std::string text = ReadProc(thread, "status");
  const size_t at = text.find("\n" + name + ":");
  if (at == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(at + name.size() + 2));
  pid_t number = 0;
  return words >> number ? std::optional(number) : std::nullopt;
}

pid_t ProcessOf(uint32_t thread) {
  return thread == 0 ? 0 : StatusNumber(thread, "Tgid").value_or(static_cast<pid_t>(thread));
}

pid_t ParentOf(uint32_t thread) { return thread == 0 ? 0 : StatusNumber(thread, "PPid").value_or(0); }

uint64_t StartOf(uint32_t thread) {
  if (thread == 0) return 0;
  const auto end = ParseThreadStat(ReadProc(thread, "stat"));
  return end ? end->started : 0;
}

ProcessId ProcessIdOf(uint32_t thread) {
  const pid_t process = ProcessOf(thread);
  return {process, StartOf(static_cast<uint32_t>(process))};
}

std::string CommandOf(uint32_t thread) {
  if (thread == 0) return {};
  std::string name = ReadProc(static_cast<uint32_t>(ProcessOf(thread)), "comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

bool IsAlive(pid_t process) { return process == 0 || LifeOf(static_cast<uint32_t>(process)) == Life::kRuns; }

std::optional<ThreadEnd> EndOf(uint32_t thread) {
  auto end = ReadEnd(thread);
  if (end && end->is_exiting && !ShowsItsEnd(thread)) end->by_signal = true;
  return end;
}

bool HasOpenForWriting(uint32_t thread, InodeId inode) {
  const std::string folder = "/proc/" + std::to_string(thread) + "/fdinfo";
  const std::unique_ptr<DIR, int (*)(DIR*)> descriptors(opendir(folder.c_str()), &closedir);
  if (descriptors == nullptr) return false;
  std::optional<std::set<uint64_t>> mounts;
  size_t count = 0;
  while (const dirent* entry = readdir(descriptors.get())) {
    const auto info = ParseDescriptorInfo(ReadBegin(folder + "/" + entry->d_name));
    if (info.writes && info.inode == inode.value) {
      if (!mounts) mounts = CairnFsMounts(thread);
      if (mounts->contains(info.mount)) return true;
    }
    if (++count > kDescriptorsReadMax) return true;
  }
  return false;
}

bool DiesBySignal(uint32_t thread) {
  const auto end = ReadEnd(thread);
  return end && end->is_exiting && end->by_signal;
}

}  // namespace cairnfs::fs
