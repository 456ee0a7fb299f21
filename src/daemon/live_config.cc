#include "daemon/live_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <variant>

#include "base/answer.h"
#include "base/log.h"
#include "daemon/config_keys.h"
#include "daemon/volume.h"
#include "fs/maintenance.h"

namespace cairnfs::daemon {
namespace {

// The keys that can change, beside the words for the kernel.
constexpr std::array<std::string_view, 5> kLiveKeys = {"read_only", "log_level", "flush_interval", "collect_rate",
                                                       "repair_rate"};

bool IsSame(const ConfigKey& key, const Config& one, const Config& other) {
  return std::visit([&](auto member) { return one.*member == other.*member; }, key.target);
}

Status CheckMayChange(const Config& running, const Config& wanted) {
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.name == "mount_options" || IsSame(key, running, wanted)) continue;
    if (std::find(kLiveKeys.begin(), kLiveKeys.end(), key.name) != kLiveKeys.end()) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} cannot change while the filesystem is mounted, as ro, rw, noatime, log_level, "
                                 "flush_interval, collect_rate and repair_rate can: unmount it and mount it again",
                                 key.name));
  }
  return {};
}

// The daemon itself follows the words about access times. The last one that is named counts.
void TakeAtimeWords(const std::vector<std::string>& named, std::vector<std::string>& words) {
  for (const std::string& word : named) {
    const bool keeps = word == "atime" || word == "relatime" || word == "strictatime";
    if (keeps || word == "noatime") std::erase(words, "noatime");
    if (word == "noatime") words.push_back(word);
  }
}

}  // namespace

Result<Config> ConfigAfter(const Config& running, const control::RemountCall& call) {
  Config wanted = running;
  wanted.mount_options.clear();
  if (!call.config.empty()) {
    CAIRNFS_RETURN_IF_ERROR(ReadConfigFile(call.config, wanted));
    wanted.data = running.data;
    wanted.mount_point = running.mount_point;
  }
  for (const std::string& options : call.options) CAIRNFS_RETURN_IF_ERROR(ApplyMountOptions(options, wanted));
  CAIRNFS_RETURN_IF_ERROR(MakePathsAbsolute(wanted, call.directory));
  CAIRNFS_RETURN_IF_ERROR(CheckMayChange(running, wanted));
  std::vector<std::string> words = running.mount_options;
  TakeAtimeWords(wanted.mount_options, words);
  wanted.mount_options = std::move(words);
  return wanted;
}

Result<control::RemountReport> LiveConfig::Look(const control::RemountCall& call) {
  MutexLock lock(mutex_);
  control::RemountReport report;
  CAIRNFS_ASSIGN_OR_RETURN(const Config wanted, ConfigAfter(config_, call));
  CAIRNFS_RETURN_IF_ERROR(volume_.MayTake(wanted));
  report.read_only = wanted.read_only;
  return report;
}

Status LiveConfig::Remount(const Context& context, const control::RemountCall& call) {
  MutexLock lock(mutex_);
  CAIRNFS_ASSIGN_OR_RETURN(const Config wanted, ConfigAfter(config_, call));
  CAIRNFS_RETURN_IF_ERROR(volume_.MayTake(wanted));
  if (auto changed = Change(context, wanted); !changed.ok()) {
    static_cast<void>(Change({}, config_));
    return changed.error().WithContext("not remounted");
  }
  volume_.Take(wanted);
  spdlog::set_level(spdlog::level::from_str(wanted.log_level));
  spdlog::info("remounted {}: log_level {}, flush_interval {} ms, collect_rate {}, repair_rate {}",
               wanted.read_only ? "read-only" : "read-write", wanted.log_level, wanted.flush_interval_ms,
               wanted.collect_rate, wanted.repair_rate);
  config_ = wanted;
  return {};
}

Status LiveConfig::Change(const Context& context, const Config& config) {
  const auto changed = AwaitStatus(
      context, [&](auto done) { filesystem_.maintenance().Change(FileSystemOptions(config, 0), std::move(done)); });
  if (changed) return *changed;
  return MakeError(ErrorCode::kInterrupted, "interrupted before everything was durable");
}

}  // namespace cairnfs::daemon
