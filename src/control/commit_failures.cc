#include "control/commit_failures.h"

namespace cairnfs::control {
namespace {

bool LiesIn(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

bool MayConcern(std::string_view directory, std::string_view path) {
  const bool is_cut = directory.starts_with('#') || directory.starts_with("...");
  return path.empty() || is_cut || LiesIn(directory, path) || LiesIn(path, directory);
}

void ToMessage(const meta::RefusedCommit& failure, RefusedCommit& message) {
  message.set_at(static_cast<uint64_t>(failure.at.seconds));
  message.set_host(failure.host);
  message.set_uid(failure.uid);
  message.set_directory(failure.directory);
  for (const auto& [file, host, why] : failure.causes) {
    RefusalCause& cause = *message.add_causes();
    cause.set_file(file);
    cause.set_host(host);
    cause.set_cause(why);
  }
  message.set_left_out(failure.left_out);
}

}  // namespace

void AddFailures(std::span<const meta::RefusedCommit> failures, std::string_view path, StatusReply& reply) {
  for (const meta::RefusedCommit& failure : failures) {
    if (MayConcern(failure.directory, path)) ToMessage(failure, *reply.add_failures());
  }
}

}  // namespace cairnfs::control
