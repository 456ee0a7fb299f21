#include "control/mount_table.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace cairnfs::control {
namespace {

bool IsOctalDigit(char digit) { return digit >= '0' && digit <= '7'; }

// The kernel writes blanks and backslashes as \ooo.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    bool escaped = text[i] == '\\' && i + 3 < text.size() && IsOctalDigit(text[i + 1]) && IsOctalDigit(text[i + 2]) &&
                   IsOctalDigit(text[i + 3]);
    if (!escaped) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(((text[i + 1] - '0') << 6) | ((text[i + 2] - '0') << 3) | (text[i + 3] - '0'));
    i += 3;
  }
  return out;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty()) {
    size_t end = line.find(' ');
    if (end != 0) words.push_back(line.substr(0, end));
    line = end == std::string_view::npos ? std::string_view{} : line.substr(end + 1);
  }
  return words;
}

// id parent major:minor root mount_point options [optional...] - type source super_options
std::optional<MountEntry> ParseLine(std::string_view line) {
  std::vector<std::string_view> words = Words(line);
  size_t dash = 6;
  while (dash < words.size() && words[dash] != "-") ++dash;
  if (dash + 2 >= words.size()) return std::nullopt;
  if (words[dash + 1] != "fuse.cairnfs" && words[dash + 1] != "cairnfs") return std::nullopt;
  MountEntry entry{Unescape(words[4]), Unescape(words[dash + 2]), 0, Unescape(words[3])};
  std::string device(words[2]);
  if (size_t colon = device.find(':'); colon != std::string::npos) {
    entry.device_minor = std::strtoull(device.c_str() + colon + 1, nullptr, 10);
  }
  return entry;
}

bool LiesIn(const std::string& path, const std::string& directory) {
  if (directory == "/") return true;
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

std::optional<MountEntry> Innermost(const std::vector<MountEntry>& mounts, const std::string& path) {
  std::optional<MountEntry> best;
  for (const MountEntry& mount : mounts) {
    if (!LiesIn(path, mount.mount_point)) continue;
    if (!best || mount.mount_point.size() >= best->mount_point.size()) best = mount;  // a later one lies on top
  }
  return best;
}

std::string AbsoluteText(const std::string& path) {
  std::error_code error;
  std::string absolute = std::filesystem::absolute(path, error).lexically_normal().string();
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  return absolute;
}

}  // namespace

std::vector<MountEntry> ParseMountInfo(std::string_view text) {
  std::vector<MountEntry> mounts;
  while (!text.empty()) {
    size_t end = text.find('\n');
    if (auto entry = ParseLine(text.substr(0, end))) mounts.push_back(*std::move(entry));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return mounts;
}

Result<std::vector<MountEntry>> ListMounts() {
  std::ifstream file("/proc/self/mountinfo");
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) return MakeError(ErrorCode::kIo, "cannot read /proc/self/mountinfo; is /proc mounted?");
  return ParseMountInfo(text.str());
}

Result<MountEntry> FindMount(const std::string& path) {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<MountEntry> mounts, ListMounts());
  if (auto found = Innermost(mounts, AbsoluteText(path))) return *found;
  std::error_code error;
  std::string canonical = std::filesystem::canonical(path, error).string();
  if (!error) {
    if (auto found = Innermost(mounts, canonical)) return *found;
  }
  return MakeError(ErrorCode::kNotFound, "no CairnFS is mounted at " + path);
}

std::string PathInFilesystem(const MountEntry& mount, const std::string& path) {
  std::string absolute = AbsoluteText(path);
  if (!LiesIn(absolute, mount.mount_point)) {
    std::error_code error;
    absolute = std::filesystem::canonical(path, error).string();
    if (error || !LiesIn(absolute, mount.mount_point)) absolute = mount.mount_point;
  }
  const std::string below = mount.mount_point == "/" ? absolute : absolute.substr(mount.mount_point.size());
  const std::string whole = (mount.root == "/" ? "" : mount.root) + below;
  return whole.substr(std::min(whole.find_first_not_of('/'), whole.size()));
}

}  // namespace cairnfs::control
