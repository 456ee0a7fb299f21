#include "client/temporary_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/hex.h"
#include "base/random_bytes.h"
#include "client/descriptor.h"
#include "client/errors.h"

namespace cairnfs::client {
namespace {

constexpr char kTemporaryMark[] = ".tmp-";
constexpr size_t kTemporaryRandomBytes = 8;

bool IsTemporaryName(std::string_view name, const std::string& prefix) {
  if (name.size() != prefix.size() + 2 * kTemporaryRandomBytes || name.substr(0, prefix.size()) != prefix) return false;
  return name.find_first_not_of("0123456789abcdef", prefix.size()) == std::string_view::npos;
}

// In a directory that others may write to, anything may have such a name.
bool IsOwnFile(const struct stat& found) { return S_ISREG(found.st_mode) && found.st_uid == geteuid(); }

void RemoveIfAbandoned(int directory, const std::string& name) {
  struct stat found {};
  if (fstatat(directory, name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 || !IsOwnFile(found)) return;
  constexpr int kFlags = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  // NFS wants it open for writing; the mode may not let its owner.
  int opened = openat(directory, name.c_str(), O_RDWR | kFlags);
  if (opened < 0) opened = openat(directory, name.c_str(), O_RDONLY | kFlags);
  if (opened < 0) return;
  const Descriptor file(opened);
  if (fstat(opened, &found) != 0 || !IsOwnFile(found) || flock(opened, LOCK_EX | LOCK_NB) != 0) return;
  // A name is given once: what was renamed meanwhile is not there any more.
  unlinkat(directory, name.c_str(), 0);
}

}  // namespace

std::string TemporaryPrefix(int directory, const std::string& name) {
  const long limit = fpathconf(directory, _PC_NAME_MAX);
  const size_t name_max = limit > 0 ? static_cast<size_t>(limit) : NAME_MAX;
  const size_t more = sizeof kTemporaryMark - 1 + 2 * kTemporaryRandomBytes;
  size_t length = std::min(name.size(), name_max > more ? name_max - more : 0);
  // Not within a character of UTF-8.
  while (length > 0 && length < name.size() && (static_cast<unsigned char>(name[length]) & 0xC0U) == 0x80U) length--;
  return name.substr(0, length) + kTemporaryMark;
}

std::string TemporaryName(const std::string& prefix) { return prefix + ToHex(RandomBytes(kTemporaryRandomBytes)); }

Result<bool> LockTemporary(int descriptor) {
  while (flock(descriptor, LOCK_SH | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    // There is no flock here, so nobody removes the file either.
    if (errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == ENOLCK) return true;
    if (errno != EINTR) return FileError(errno, "the file cannot be locked");
  }
  struct stat found {};
  return fstat(descriptor, &found) != 0 || found.st_nlink > 0;
}

void RemoveAbandoned(int directory, const std::string& prefix) {
  const int opened = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (opened < 0) return;
  DIR* entries = fdopendir(opened);
  if (entries == nullptr) {
    close(opened);
    return;
  }
  std::vector<std::string> names;
  while (const dirent* entry = readdir(entries)) {
    if (IsTemporaryName(entry->d_name, prefix)) names.emplace_back(entry->d_name);
  }
  closedir(entries);
  for (const std::string& name : names) RemoveIfAbandoned(directory, name);
}

}  // namespace cairnfs::client
