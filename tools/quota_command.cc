#include "quota_command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "cairnfs/cairnfs.h"
#include "commands.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "locate.h"
#include "meta/quota_records.h"
#include "output.h"
#include "progress.h"

namespace cairnfs::tools {
namespace {

using control::Quota;

constexpr size_t kQuotaBytesMax = 4096;  // of the attribute
constexpr const char* kNone = "none";

Result<struct stat> StatOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    const int why = errno;
    if (why == ENOENT || why == ENOTDIR) return InvalidArgument("there is no " + Printable(path));
    return ErrnoError(why, "cannot look at " + Printable(path));
  }
  return info;
}

Result<InodeId> DirectoryOf(const std::string& path) {
  CAIRNFS_RETURN_IF_ERROR(LocateMount(path));
  CAIRNFS_ASSIGN_OR_RETURN(const struct stat info, StatOf(path));
  if (!S_ISDIR(info.st_mode))
    return InvalidArgument(Printable(path) + " is not a directory: only directories have one");
  return InodeId{info.st_ino};
}

// The name of the directory that has the quota, which is the path or above it.
std::string NameAbove(const std::string& path, uint64_t inode) {
  std::error_code error;
  auto at = std::filesystem::canonical(path, error);
  for (; !error && !at.empty(); at = at.parent_path()) {
    struct stat info;
    if (stat(at.c_str(), &info) == 0 && info.st_ino == inode && S_ISDIR(info.st_mode)) return at;
    if (at == at.parent_path()) break;
  }
  return fmt::format("#{}", inode);
}

std::string Of(const char* what, uint64_t used, bool has_limit, uint64_t limit) {
  const std::string of_limit = has_limit ? " of " + daemon::FormatSize(limit) : ", no limit";
  return fmt::format("{} {}{}", what, daemon::FormatSize(used), of_limit);
}

int Tell(const Quota& quota, bool json) {
  Print(json ? JsonText(FieldsOf(quota)) : QuotaText(quota) + "\n");
  return daemon::kExitDone;
}

int ShowAll(const std::string& mount, bool json) {
  auto located = LocateDaemon({.path = mount, .data = ""});
  if (!located.ok()) return Fail(located.error());
  const auto status = located->client.GetStatus();
  if (!status.ok()) return Fail(status.error());
  if (json) {
    auto list = nlohmann::ordered_json::array();
    for (const Quota& quota : status->quotas()) list.push_back(FieldsOf(quota));
    Print(JsonText(nlohmann::ordered_json{{"quotas", list}}));
    return daemon::kExitDone;
  }
  if (status->quotas().empty()) Print("no directory has a quota\n");
  for (const Quota& quota : status->quotas()) Print(QuotaText(quota) + "\n");
  return daemon::kExitDone;
}

int Change(const QuotaCommand& command, control::QuotaRequest request) {
  const auto inode = DirectoryOf(command.directory);
  if (!inode.ok()) return Fail(inode.error());
  request.set_inode(inode->value);
  auto located = LocateDaemon({.path = command.directory, .data = ""});
  if (!located.ok()) return Fail(located.error());
  Status done;
  {
    ProgressLine line(!command.json);
    done = located->client.SetQuota(
        request, [&line](uint64_t inodes) { line.Show(fmt::format("{} files and directories", inodes)); });
  }
  return done.ok() ? daemon::kExitDone : Fail(done.error().WithContext(Printable(command.directory)));
}

// kNoLimit: "none".
Result<uint64_t> ParseLimit(const std::string& text) {
  if (text == kNone) return meta::QuotaRecord::kNoLimit;
  const auto bytes = daemon::ParseSize(text);
  if (!bytes.ok()) return InvalidArgument(fmt::format("{}, or \"{}\" for no limit", bytes.error().message, kNone));
  if (*bytes > 0 && *bytes <= INT64_MAX) return *bytes;
  return InvalidArgument(fmt::format("a quota has 1 to 2^63-1 bytes, not {}; \"{}\" takes a limit off", text, kNone));
}

}  // namespace

std::string QuotaText(const Quota& quota) {
  return fmt::format(
      "{}: {}; {}{}", Printable(quota.directory()),
      Of("logical", quota.logical_used_bytes(), quota.has_logical_limit_bytes(), quota.logical_limit_bytes()),
      Of("unique", quota.unique_used_bytes(), quota.has_unique_limit_bytes(), quota.unique_limit_bytes()),
      quota.state() == "on" ? "" : "; it is " + quota.state());
}

Result<Quota> QuotaOf(const std::string& path) {
  std::array<char, kQuotaBytesMax> text;
  const ssize_t size = getxattr(path.c_str(), CAIRNFS_XATTR_QUOTA, text.data(), text.size());
  if (size < 0 && (errno == ENODATA || errno == EOPNOTSUPP)) {
    return MakeError(ErrorCode::kNoData, Printable(path) + " falls under no quota");
  }
  if (size < 0) return ErrnoError(errno, "cannot read the quota of " + Printable(path));
  const auto json = nlohmann::json::parse(text.data(), text.data() + size, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return MakeError(ErrorCode::kCorrupt, "the daemon tells of a quota in a way not known here");
  Quota quota;
  const auto number = [&](const char* name) { return json.value(name, uint64_t{0}); };
  const auto is_there = [&](const char* name) { return json.contains(name) && json[name].is_number_unsigned(); };
  quota.set_directory(NameAbove(path, number("directory_inode")));
  quota.set_inode(std::to_string(number("directory_inode")));
  quota.set_state(json.value("state", ""));
  if (is_there("logical_limit_bytes")) quota.set_logical_limit_bytes(number("logical_limit_bytes"));
  if (is_there("unique_limit_bytes")) quota.set_unique_limit_bytes(number("unique_limit_bytes"));
  quota.set_logical_used_bytes(number("logical_used_bytes"));
  quota.set_unique_used_bytes(number("unique_used_bytes"));
  return quota;
}

int RunQuotaSet(const QuotaCommand& command) {
  control::QuotaRequest request;
  if (command.logical.empty() && command.unique.empty()) {
    return Fail(InvalidArgument("say how much it may be: --logical SIZE, --unique SIZE, or both"));
  }
  for (const bool is_logical : {true, false}) {
    const std::string& text = is_logical ? command.logical : command.unique;
    if (text.empty()) continue;
    const auto bytes = ParseLimit(text);
    if (!bytes.ok()) return Fail(bytes.error().WithContext(is_logical ? "--logical" : "--unique"));
    is_logical ? request.set_logical_bytes(*bytes) : request.set_unique_bytes(*bytes);
  }
  request.set_force(command.force);
  if (const int code = Change(command, request); code != daemon::kExitDone) return code;
  const auto quota = QuotaOf(command.directory);
  return quota.ok() ? Tell(*quota, command.json) : Fail(quota.error());
}

int RunQuotaShow(const QuotaCommand& command) {
  if (command.directory.empty()) return ShowAll("", command.json);
  if (const auto mount = LocateMount(command.directory); !mount.ok()) return Fail(mount.error());
  const auto info = StatOf(command.directory);
  if (!info.ok()) return Fail(info.error());
  if (info->st_ino == kRootInode.value) return ShowAll(command.directory, command.json);  // it never has one itself
  const auto quota = QuotaOf(command.directory);
  return quota.ok() ? Tell(*quota, command.json) : Fail(quota.error());
}

int RunQuotaOff(const QuotaCommand& command) {
  control::QuotaRequest request;
  request.set_take_off(true);
  const int code = Change(command, request);
  if (code == daemon::kExitDone && command.json) Print("{}\n");
  return code;
}

}  // namespace cairnfs::tools
