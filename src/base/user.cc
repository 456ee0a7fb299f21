#include "base/user.h"

#include <pwd.h>

#include <array>

namespace cairnfs {
namespace {

// Empty when there is none.
std::string NameOf(uid_t uid) {
  std::array<char, 16384> buffer;
  passwd entry;
  passwd* found = nullptr;
  if (getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) return {};
  return entry.pw_name;
}

}  // namespace

std::string UserName(uid_t uid) {
  std::string number = "uid " + std::to_string(uid);
  std::string name = NameOf(uid);
  return name.empty() ? number : name + " (" + number + ")";
}

std::string UserWord(uid_t uid) {
  std::string name = NameOf(uid);
  return name.empty() ? std::to_string(uid) : name;
}

}  // namespace cairnfs
