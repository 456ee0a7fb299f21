#include "remount.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/comma_list.h"
#include "daemon/config.h"
#include "fuse/server.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

// Words that mount(8) finds in the mount table, and hands over with those of the user. They say how it was mounted.
constexpr std::array<std::string_view, 7> kTold = {"user_id", "group_id", "rootmode", "max_read",
                                                   "blksize", "fsname",   "subtype"};

bool IsForDaemon(std::string_view word) {
  return !word.empty() && word != "remount" &&
         std::find(kTold.begin(), kTold.end(), word.substr(0, word.find('='))) == kTold.end();
}

// Begins with the kernel's state of the mount, as mount(8) does: somebody may have changed the kernel's alone.
control::RemountCall MakeCall(const MountCommand& command, const fuse::MountState& before) {
  control::RemountCall call;
  if (command.config.empty()) call.options.emplace_back(before.read_only ? "ro" : "rw");
  for (const std::string& options : command.options) {
    std::string kept;
    for (std::string_view word : SplitAtCommas(options)) {
      if (IsForDaemon(word)) kept += (kept.empty() ? "" : ",") + std::string(word);
    }
    if (!kept.empty()) call.options.push_back(kept);
  }
  std::error_code error;
  call.directory = stdfs::current_path(error).string();
  if (!command.config.empty()) call.config = Absolute(command.config);
  return call;
}

// The words for the kernel are those that the caller named, and not the answer of a daemon, which may be a stranger's.
Result<std::vector<std::string>> WordsOf(const control::RemountCall& call) {
  daemon::Config named;
  if (!call.config.empty()) CAIRNFS_RETURN_IF_ERROR(daemon::ReadConfigFile(call.config, named));
  for (const std::string& options : call.options) {
    CAIRNFS_RETURN_IF_ERROR(daemon::ApplyMountOptions(options, named));
  }
  return named.mount_options;
}

// fstab and --data may name it in other words than the mount table.
Status CheckData(const std::string& data, const MountEntry& mount) {
  std::error_code error;
  if (data.empty() || data == mount.source || stdfs::equivalent(data, mount.source, error)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("{} is mounted from {}, and a remount cannot change that to {}", mount.mount_point,
                               mount.source, data));
}

}  // namespace

bool IsRemount(const MountCommand& command) {
  return std::any_of(command.options.begin(), command.options.end(), [](const std::string& options) {
    const auto words = SplitAtCommas(options);
    return std::find(words.begin(), words.end(), "remount") != words.end();
  });
}

Status Remount(const MountCommand& command) {
  const std::string point = command.mount_point.empty() ? daemon::kDefaultMountPoint : command.mount_point;
  CAIRNFS_ASSIGN_OR_RETURN(const MountEntry mount, LocateMount(point));
  if (!NamesMountPoint(point, mount.mount_point)) {
    return MakeError(ErrorCode::kUnavailable,
                     fmt::format("{} is not a mount point; it lies in the mount {}", point, mount.mount_point));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckData(command.data, mount));
  CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect({mount.source, mount.mount_point}));
  CAIRNFS_ASSIGN_OR_RETURN(const fuse::MountState before, fuse::StateOfMount(mount.mount_point));
  const control::RemountCall call = MakeCall(command, before);
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<std::string> words, WordsOf(call));
  auto tell_kernel = [&](const control::RemountReport& report) -> Status {
    CAIRNFS_ASSIGN_OR_RETURN(const fuse::MountState after,
                             fuse::StateAfter(before, {.words = words, .read_only = report.read_only}));
    return fuse::RemountAt(mount.mount_point, after);
  };
  auto take_back = [&] {
    const Status back = fuse::RemountAt(mount.mount_point, before);
    if (!back.ok()) fmt::print(stderr, "cairnfs: {}\n", back.error().message);
  };
  return client.Remount(call, tell_kernel, take_back);
}

}  // namespace cairnfs::tools
