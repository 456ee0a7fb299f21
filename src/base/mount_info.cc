#include "base/mount_info.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace cairnfs {
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
  constexpr ptrdiff_t kWordsBefore = 6;
  std::vector<std::string> words;
  std::istringstream rest(line);
  for (std::string word; std::getline(rest, word, ' ');) words.push_back(Unescape(word));
  if (std::ssize(words) < kWordsBefore) return std::nullopt;
  const auto dash = std::find(words.begin() + kWordsBefore, words.end(), "-");
  if (words.end() - dash < 3) return std::nullopt;
  return MountEntry{words[2], words[3], words[4], dash[1], dash[2], words[5], words.end() - dash > 3 ? dash[3] : ""};
}

}  // namespace

std::vector<MountEntry> ParseMountInfo(std::string_view text) {
  std::vector<MountEntry> mounts;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (auto entry = ParseLine(line)) mounts.push_back(std::move(*entry));
  }
  return mounts;
}

Result<std::vector<MountEntry>> ReadMountInfo(const std::string& path) {
  std::ifstream file(path);
  if (!file) return MakeError(ErrorCode::kIo, "cannot read " + path + "; is /proc mounted?");
  std::ostringstream text;
  text << file.rdbuf();
  return ParseMountInfo(text.str());
}

std::optional<MountEntry> TopmostAt(const std::vector<MountEntry>& mounts, std::string_view mount_point) {
  for (auto entry = mounts.rbegin(); entry != mounts.rend(); ++entry) {
    if (entry->mount_point == mount_point) return *entry;
  }
  return std::nullopt;
}

}  // namespace cairnfs
