#include "base/machine_limits.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/comma_list.h"
#include "base/types.h"

namespace cairnfs {
namespace {

namespace stdfs = std::filesystem;

// UINT64_MAX for a file that is not there or holds no number: "max", where nothing is limited.
uint64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number;
  return file >> number ? number : UINT64_MAX;
}

// How many cores a group's share of the time comes to. It has `quota` of each `period`, in microseconds.
uint64_t CoresIn(uint64_t quota, uint64_t period) {
  if (quota == UINT64_MAX || period == UINT64_MAX || period == 0) return UINT64_MAX;
  return std::max<uint64_t>(1, (quota + period - 1) / period);
}

// The limit of the group in a folder of cgroup v1 or v2; UINT64_MAX: none.
struct Limit {
  std::string_view controller;  // of v1, and the name of its hierarchy
  uint64_t (*first_version)(const std::string& group);
  uint64_t (*second_version)(const std::string& group);
};

const Limit kMemory = {
    "memory",
    [](const std::string& group) { return NumberIn(group + "/memory.limit_in_bytes"); },
    [](const std::string& group) { return NumberIn(group + "/memory.max"); },
};

const Limit kCores = {
    "cpu",
    [](const std::string& group) {
      return CoresIn(NumberIn(group + "/cpu.cfs_quota_us"), NumberIn(group + "/cpu.cfs_period_us"));
    },
    [](const std::string& group) {
      std::ifstream file(group + "/cpu.max");  // "max 100000", or two numbers
      uint64_t quota, period;
      return file >> quota >> period ? CoresIn(quota, period) : UINT64_MAX;
    },
};

// The least of a group and of those above it. The root counts too: in a container it is often the container's own
// group, while /proc names the group by its path on the host.
uint64_t LeastUpwards(const std::string& hierarchy, std::string group, uint64_t (*limit)(const std::string& group)) {
  uint64_t least = UINT64_MAX;
  while (group.ends_with('/')) group.pop_back();
  for (;;) {
    least = std::min(least, limit(hierarchy + group));
    if (group.empty()) return least;
    const size_t slash = group.rfind('/');
    group.resize(slash == std::string::npos ? 0 : slash);
  }
}

bool HoldsWord(std::string_view list, std::string_view word) {
  return std::ranges::count(SplitAtCommas(list), word) > 0;
}

// By the lines ID:CONTROLLERS:PATH of /proc/self/cgroup; without controllers it is the one of cgroup v2.
uint64_t ControlGroupLimit(const std::string& root, const Limit& limit) {
  uint64_t least = UINT64_MAX;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min(least, LeastUpwards(root + "/sys/fs/cgroup", group, limit.second_version));
    } else if (HoldsWord(controllers, limit.controller)) {
      const std::string hierarchy = root + "/sys/fs/cgroup/" + std::string(limit.controller);
      least = std::min(least, LeastUpwards(hierarchy, group, limit.first_version));
    }
  }
  return least;
}

uint64_t MachineMemory(const std::string& root) {
  std::ifstream file(root + "/proc/meminfo");
  for (std::string name; file >> name; std::getline(file, name)) {
    if (uint64_t kibibytes; name == "MemTotal:" && file >> kibibytes) return kibibytes * kKiB;
  }
  return UINT64_MAX;
}

// The name of the program that a process runs, without its folder. Where this process may not see that one's file, it
// is the process's name, which it could have changed. Empty: it has ended, or is a thread of the kernel.
std::string ProgramOf(const stdfs::path& process) {
  std::error_code error;
  std::string program = stdfs::read_symlink(process / "exe", error).filename().string();
  if (error == std::errc::permission_denied) {
    std::ifstream name(process / "comm");
    std::getline(name, program);
  }
  constexpr std::string_view kReplaced = " (deleted)";  // by another version, while it runs
  if (program.ends_with(kReplaced)) program.resize(program.size() - kReplaced.size());
  return program;
}

// Whether all four user ids of the process (real, effective, saved, of files) are `user`. A set-id program that a
// stranger started belongs half to the stranger.
bool IsOf(const stdfs::path& process, uid_t user) {
  std::ifstream status(process / "status");
  for (std::string name; status >> name; std::getline(status, name)) {
    if (name != "Uid:") continue;
    for (int i = 0; i < 4; ++i) {
      if (uid_t id; !(status >> id) || id != user) return false;
    }
    return true;
  }
  return false;
}

}  // namespace

uint64_t UsableMemory(const std::string& root) {
  return std::min(MachineMemory(root), ControlGroupLimit(root, kMemory));
}

unsigned UsableCores(const std::string& root) {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return static_cast<unsigned>(std::min<uint64_t>(cores, ControlGroupLimit(root, kCores)));
}

unsigned DaemonsBeside(const std::string& root) {
  unsigned count = 0;
  std::error_code error;
  for (stdfs::directory_iterator entry(root + "/proc", error), end; !error && entry != end; entry.increment(error)) {
    const std::string pid = entry->path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos || pid == std::to_string(getpid())) continue;
    if (ProgramOf(entry->path()) != "cairnfsd") continue;
    if (IsOf(entry->path(), 0) || IsOf(entry->path(), geteuid())) ++count;
  }
  return count;
}

}  // namespace cairnfs
