#include "fuse/mount_table.h"

#include <cerrno>
#include <fstream>
#include <sstream>

namespace cairnfs::fuse {
namespace {

bool IsOctal(char c) { return c >= '0' && c <= '7'; }

std::string Unescape(std::string_view field) {
  std::string plain;
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] == '\\' && i + 3 < field.size() && IsOctal(field[i + 1]) && IsOctal(field[i + 2]) &&
        IsOctal(field[i + 3])) {
      plain.push_back(static_cast<char>((field[i + 1] - '0') * 64 + (field[i + 2] - '0') * 8 + (field[i + 3] - '0')));
      i += 3;
    } else {
      plain.push_back(field[i]);
    }
  }
  return plain;
}

// proc(5): id parent major:minor root mount-point options [optional...] - type source super-options
std::optional<MountEntry> ParseLine(const std::string& line) {
  std::istringstream words(line);
  std::string id, parent, root, word;
  MountEntry entry;
  if (!(words >> id >> parent >> entry.device >> root >> entry.mount_point >> entry.options)) return std::nullopt;
  while (words >> word) {
    if (word == "-") break;
  }
  if (!(words >> entry.type >> entry.source)) return std::nullopt;
  words >> entry.super_options;
  entry.mount_point = Unescape(entry.mount_point);
  entry.source = Unescape(entry.source);
  return entry;
}

}  // namespace

std::vector<MountEntry> ParseMountInfo(std::string_view text) {
  std::vector<MountEntry> table;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (auto entry = ParseLine(line)) table.push_back(std::move(*entry));
  }
  return table;
}

Result<std::vector<MountEntry>> ReadMountTable() {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return ErrnoError(errno, "open /proc/self/mountinfo");
  std::ostringstream text;
  text << file.rdbuf();
  return ParseMountInfo(text.str());
}

std::optional<MountEntry> FindMount(const std::vector<MountEntry>& table, std::string_view mount_point) {
  for (auto entry = table.rbegin(); entry != table.rend(); ++entry) {
    if (entry->mount_point == mount_point) return *entry;
  }
  return std::nullopt;
}

}  // namespace cairnfs::fuse
