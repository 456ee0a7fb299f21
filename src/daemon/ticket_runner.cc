#include "daemon/ticket_runner.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>
#include <vector>

namespace cairnfs::daemon {
namespace {

using fs::TicketOutcome;

// A host or a disk is away or full, the mount was ended or is read-only for now, or the machine is short of something.
bool MayPass(int error) {
  switch (error) {
    case ETIMEDOUT:
    case EINTR:
    case ESTALE:
    case EROFS:
    case ENOTCONN:
    case ECONNABORTED:
    case ENOSPC:
    case EDQUOT:
    case EBUSY:
    case EAGAIN:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return true;
    default: return false;
  }
}

}  // namespace

std::string OutcomeLine(int error, const std::string& reason) {
  std::string line = std::to_string(error) + " " + reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

TicketOutcome ParseOutcomeLine(const std::string& line) {
  int error = 0;
  const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), error);
  if (code != std::errc{} || end == line.data() + line.size() || *end != ' ') {
    return {TicketOutcome::Kind::kLater, "the process that renames told something strange"};
  }
  if (error == 0) return {TicketOutcome::Kind::kRenamed};
  return {MayPass(error) ? TicketOutcome::Kind::kLater : TicketOutcome::Kind::kRefused,
          std::string(end + 1, line.data() + line.size())};
}

TicketOutcome TicketRunner::Run(const Context& context, const fs::TicketJob& job) {
  TicketOutcome outcome{TicketOutcome::Kind::kLater, "the process that renames was ended"};
  const auto number = [](InodeId inode) { return std::to_string(inode.value); };
  std::vector<std::string> words = {options_.program, "apply-commit",
                                    "--mount",        options_.mount_point,
                                    "--inode",        number(job.directory),
                                    "--from-inode",   number(job.from.parent),
                                    "--to-inode",     number(job.to.parent),
                                    "--user",         std::to_string(job.who.uid),
                                    "--group",        std::to_string(job.who.gid)};
  for (const uint32_t group : job.who.groups) words.insert(words.end(), {"--other-group", std::to_string(group)});
  words.insert(words.end(), {"--", job.from.parent_path, job.from.name, job.to.parent_path, job.to.name});
  const auto has_told =
      processes_.Run(context, words, [&](const std::string& line) { outcome = ParseOutcomeLine(line); });
  if (!has_told.ok()) outcome.reason = has_told.error().message;
  return outcome;
}

}  // namespace cairnfs::daemon
