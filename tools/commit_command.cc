#include "commit_command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "commands.h"
#include "control/rank_gate.h"
#include "control/required_files.h"
#include "daemon/exit_codes.h"
#include "daemon/size_text.h"
#include "deferred_commit.h"
#include "json_text.h"
#include "locate.h"
#include "output.h"
#include "seal_commands.h"

namespace cairnfs::tools {
namespace {

namespace stdfs = std::filesystem;

constexpr const char* kRankTimeout = "10min";
// Where launchers say which rank a process is: torchrun, Open MPI, MPICH and Intel MPI, Slurm.
constexpr std::array kRankVariables = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};

Error Wrong(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

Status ChooseRank(const CommitCommand& command, control::GateCall& call) {
  call.id = command.id;
  if (!command.id.empty()) return {};
  std::string text = command.rank, where = "--rank";
  for (const char* name : kRankVariables) {
    const char* value = std::getenv(name);
    if (!text.empty() || value == nullptr) continue;
    text = value;
    where = name;
  }
  if (text.empty()) {
    return Wrong(
        "which rank is this? Give --rank NUMBER, or --id NAME; RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and "
        "SLURM_PROCID are not set");
  }
  unsigned rank = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (code != std::errc{} || end != text.data() + text.size()) {
    return Wrong(fmt::format("{} must be a whole number, not \"{}\"", where, text));
  }
  call.rank = rank;
  return {};
}

std::optional<struct stat> Look(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return std::nullopt;
  return info;
}

// Looks at the directory; or at the final name, when an earlier call renamed the directory and its answer was lost.
Result<struct stat> LookAtDirectory(const std::string& from, const std::string& to) {
  auto info = Look(from);
  const int error = errno;
  if (!info && error == ENOENT) info = Look(to);
  if (!info) return ErrnoError(error, "cannot commit " + from);
  if (!S_ISDIR(info->st_mode)) return Wrong(fmt::format("{} is not a directory: only directories are committed", from));
  return *info;
}

Result<control::GateCall> MakeCall(const CommitCommand& command, const std::string& from, const std::string& to) {
  control::GateCall call;
  call.ranks = command.ranks;
  call.at_least = command.at_least;
  call.required = command.required;
  if (const auto required = control::RequiredFiles::Parse(call.required); !required.ok()) return required.error();
  CAIRNFS_RETURN_IF_ERROR(ChooseRank(command, call));
  auto timeout_ms = daemon::ParseDurationMs(command.timeout.empty() ? kRankTimeout : command.timeout);
  if (!timeout_ms.ok()) return timeout_ms.error().WithContext("--timeout");
  call.timeout = std::chrono::milliseconds(*timeout_ms);
  CAIRNFS_ASSIGN_OR_RETURN(const CommitTarget target, LookAtCommit(from, to));
  call.directory = target.directory;
  call.final_parent = target.final_parent;
  call.final_name = target.final_name;
  return call;
}

// Called when the daemon asks for it: the directory does not have the final name yet.
Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) == 0) return {};
  return ErrnoError(errno, fmt::format("cannot rename {} to {}", from, to));
}

int RunRank(const CommitCommand& command) {
  const std::string from = WithoutSlashes(command.from), to = WithoutSlashes(command.to);
  auto call = MakeCall(command, from, to);
  if (!call.ok()) return Fail(call.error());
  auto mount = LocateMount(stdfs::path(Absolute(to)).parent_path().string());
  if (!mount.ok()) return Fail(mount.error());
  auto client = Connect({mount->source, mount->mount_point});
  if (!client.ok()) return Fail(client.error());
  Status committed = client->Commit(*call, [&] { return Rename(from, to); });
  if (!committed.ok()) return Fail(committed.error());
  if (command.json) Print(JsonText({{"committed", true}, {"path", Absolute(to)}, {"ranks", command.ranks}}));
  return daemon::kExitDone;
}

}  // namespace

Result<CommitTarget> LookAtCommit(const std::string& from, const std::string& to) {
  CAIRNFS_ASSIGN_OR_RETURN(struct stat directory, LookAtDirectory(from, to));
  const stdfs::path final_path(to);
  const std::string parent = final_path.has_parent_path() ? final_path.parent_path().string() : ".";
  struct stat final_parent;
  if (stat(parent.c_str(), &final_parent) != 0) return ErrnoError(errno, "cannot commit to " + to);
  if (final_parent.st_dev != directory.st_dev) {
    return Wrong(fmt::format("{} and {} do not lie in one mount", from, to));
  }
  return CommitTarget{InodeId{directory.st_ino}, InodeId{final_parent.st_ino}, final_path.filename().string()};
}

int RunCommit(const CommitCommand& command) {
  if (!command.ticket.empty()) return RunAwaitTicket(command);
  if (command.to.empty()) return Fail(Wrong("FINAL is required: the final name of the directory"));
  if (command.seal && (command.is_async || command.ranks > 0)) {
    const Status planned = SealAtCommit(command.from);
    // Another rank may have renamed it already.
    if (!planned.ok() && planned.error().code != ErrorCode::kNotFound) return Fail(planned.error());
  }
  if (command.is_async) return RunDeferCommit(command);
  if (command.ranks > 0) return RunRank(command);
  return Fail(Wrong("one of --ranks, --async and --wait is required"));
}

}  // namespace cairnfs::tools
