#include "commit_text.h"

#include <fmt/format.h>

#include <cmath>

#include "base/user.h"
#include "base/utc_text.h"
#include "daemon/size_text.h"
#include "keeping.h"

namespace cairnfs::tools {

using nlohmann::ordered_json;

std::string WhenText(double seconds) {
  const double whole = std::floor(seconds);
  return UtcText(
      {.seconds = static_cast<int64_t>(whole), .nanoseconds = static_cast<uint32_t>((seconds - whole) * 1e9)});
}

std::string CountText(const ordered_json& commit, const char* key) {
  const auto found = commit.find(key);
  const bool is_known = found != commit.end() && found->is_number_unsigned();
  return is_known ? std::to_string(found->get<uint64_t>()) : "-";
}

std::string BytesText(const ordered_json& commit, const char* key) {
  const auto found = commit.find(key);
  const bool is_known = found != commit.end() && found->is_number_unsigned();
  return is_known ? daemon::FormatSize(found->get<uint64_t>()) : "-";
}

std::string SecondsText(const ordered_json& commit, const char* key) {
  const auto found = commit.find(key);
  const bool is_known = found != commit.end() && found->is_number();
  return is_known ? fmt::format("{:.1f} s", found->get<double>()) : "-";
}

std::string CommitterText(const ordered_json& commit) {
  const std::string host = commit.value("host", "");
  return fmt::format("{}{}{} {}", host, host.empty() ? "" : " ", UserName(commit.value("uid", 0U)),
                     commit.value("command", ""));
}

std::string CommitText(const ordered_json& commit) {
  return fmt::format("{} by {}: files {}, bytes {}, new {}, save {}, write {}, wait {}",
                     WhenText(commit.value("committed_at", 0.0)), CommitterText(commit), CountText(commit, "files"),
                     BytesText(commit, "bytes"), BytesText(commit, "new_bytes"), SecondsText(commit, "save_seconds"),
                     SecondsText(commit, "write_seconds"), SecondsText(commit, "wait_seconds"));
}

ordered_json CheckpointJson(const Checkpoint& checkpoint) {
  ordered_json json;
  json["path"] = checkpoint.path;
  if (checkpoint.step) json["step"] = *checkpoint.step;
  json["time"] = checkpoint.time;
  json["committed"] = checkpoint.commit.has_value();
  json.update(ProtectionJson(ReadProtection(checkpoint.path)));
  if (checkpoint.commit) json.update(*checkpoint.commit);
  return json;
}

}  // namespace cairnfs::tools
