#include "control/commit_failures.h"

#include <utility>

#include "base/utc_text.h"

namespace cairnfs::control {
namespace {

bool LiesIn(std::string_view path, std::string_view directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

bool MayConcern(std::string_view directory, std::string_view path) {
  return path.empty() || directory.starts_with('#') || LiesIn(directory, path) || LiesIn(path, directory);
}

std::string ToText(const fs::CommitFailure& failure) {
  std::string text = UtcText(failure.at) + ": " + failure.directory + " was not renamed";
  if (!failure.host.empty()) text += " on " + failure.host;
  const char* separator = ": ";
  for (const std::string& cause : failure.causes) text += std::exchange(separator, "; ") + cause;
  return text;
}

}  // namespace

std::vector<std::string> DescribeFailures(std::span<const fs::CommitFailure> failures, std::string_view path) {
  std::vector<std::string> texts;
  for (const fs::CommitFailure& failure : failures) {
    if (MayConcern(failure.directory, path)) texts.push_back(ToText(failure));
  }
  return texts;
}

}  // namespace cairnfs::control
