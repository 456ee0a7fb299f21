// `cairnfs status`.
#include <sys/stat.h>

#include <cerrno>

#include "cairnfs/cairnfs.h"
#include "checkpoints.h"
#include "commands.h"
#include "commit_text.h"
#include "daemon/exit_codes.h"
#include "json_text.h"
#include "keeping.h"
#include "output.h"
#include "quota_command.h"
#include "seal_commands.h"

namespace cairnfs::tools {
namespace {

using Commit = std::optional<nlohmann::ordered_json>;

// Of a directory that a rename has published. A mount point is none, and is not touched: its daemon may be gone.
Commit CommitOf(const Target& target) {
  if (target.path.empty()) return std::nullopt;
  const auto mount = LocateMount(target.path);
  if (!mount.ok() || WithoutSlashes(Absolute(target.path)) == mount->mount_point) return std::nullopt;
  const auto commit = ReadCommit(target.path);
  return commit.ok() ? *commit : std::nullopt;
}

Result<control::StatusReply> AskDaemon(const StatusCommand& command) {
  CAIRNFS_ASSIGN_OR_RETURN(LocatedDaemon located, LocateDaemon(command.target));
  return located.client.GetStatus({located.location.path, command.exact, command.metadata});
}

// A mount point is not touched, and what is in no mount is told by AskDaemon.
Status CheckIsThere(const std::string& path) {
  if (path.empty()) return {};
  const auto mount = LocateMount(path);
  if (!mount.ok() || WithoutSlashes(Absolute(path)) == mount->mount_point) return {};
  struct stat info = {};
  const bool is_missing = lstat(path.c_str(), &info) != 0 && (errno == ENOENT || errno == ENOTDIR);
  return is_missing ? ErrnoError(errno, "cannot tell the status of " + path) : Status();
}

}  // namespace

int RunStatus(const StatusCommand& command) {
  auto status = AskDaemon(command);
  const bool may_not_ask = !status.ok() && status.error().code == ErrorCode::kPermission;
  if (status.ok() || may_not_ask) {  // a mount whose daemon does not answer is not touched
    if (const Status there = CheckIsThere(command.target.path); !there.ok()) return Fail(there.error());
  }
  const bool is_commit_enough = may_not_ask && !command.exact && !command.metadata;
  const Commit commit = status.ok() || is_commit_enough ? CommitOf(command.target) : std::nullopt;
  if (!status.ok() && !commit) return Fail(status.error());
  const bool may_have_quota = status.ok() && !command.target.path.empty();
  if (may_have_quota) {
    if (auto quota = QuotaOf(command.target.path); quota.ok()) *status->mutable_quota() = *std::move(quota);
  }
  const auto seal = command.target.path.empty() || !status.ok()
                        ? Result<std::optional<std::string>>(std::nullopt)
                        : ReadAttribute(WithoutSlashes(Absolute(command.target.path)), CAIRNFS_XATTR_SEALED);
  const bool has_seal = seal.ok() && *seal;
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (command.json) {
    if (status.ok()) json = StatusJson(*status);
    if (commit) json["commit"] = *commit;
    if (has_seal) json["seal"] = **seal;
    Print(JsonText(json));
  } else {
    Print((status.ok() ? StatusText(*status) : "") + (commit ? StatusLine("commit", CommitText(*commit)) : "") +
          (has_seal ? StatusLine("seal", SealSentence(**seal)) : ""));
  }
  return daemon::kExitDone;
}

}  // namespace cairnfs::tools
