#include "client_operations.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "random.h"

namespace cairnfs::testing {
namespace {

int ErrorOf(int returned) { return returned == 0 ? 0 : errno; }

class Descriptor {
 public:
  Descriptor(const std::string& path, int flags, mode_t mode = 0) : fd_(open(path.c_str(), flags | O_CLOEXEC, mode)) {
    if (fd_ < 0) error_ = errno;
  }
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }
  int error() const { return error_; }
  // A close may say that a write failed.
  int Close() { return ErrorOf(close(std::exchange(fd_, -1))); }

 private:
  int fd_, error_ = 0;
};

TreeResult Create(const std::string& path, int64_t mode) {
  TreeResult result;
  Descriptor file(path, O_CREAT | O_EXCL | O_WRONLY, static_cast<mode_t>(mode));
  result.error = file.error();
  if (result.error != 0) return result;
  struct stat info {};
  result.error = ErrorOf(fstat(file.fd(), &info));
  result.inode = static_cast<int64_t>(info.st_ino);
  if (int error = file.Close(); result.error == 0) result.error = error;
  return result;
}

TreeResult Stat(const std::string& path) {
  TreeResult result;
  struct stat info {};
  result.error = ErrorOf(lstat(path.c_str(), &info));
  if (result.error != 0) return result;
  result.inode = static_cast<int64_t>(info.st_ino);
  result.links = static_cast<int64_t>(info.st_nlink);
  result.mode = info.st_mode & 07777;
  // No specification knows a file with a part of a slot.
  int64_t size = info.st_size;
  result.slots = size % static_cast<int64_t>(kSlotBytes) == 0 ? size / static_cast<int64_t>(kSlotBytes) : -1;
  return result;
}

TreeResult Readdir(const std::string& path) {
  TreeResult result;
  DIR* directory = opendir(path.c_str());
  if (directory == nullptr) {
    result.error = errno;
    return result;
  }
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(directory);
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name != "." && name != "..") result.names.push_back(name);
  }
  result.error = errno;
  closedir(directory);
  std::sort(result.names.begin(), result.names.end());
  return result;
}

int Write(const std::string& path, const TreeOperation& operation, bool sync) {
  Descriptor file(path, O_WRONLY);
  if (file.error() != 0) return file.error();
  std::string bytes;
  for (int64_t i = 0; i < operation.slots; ++i) bytes += SlotContent(operation.token, operation.first_slot + i);
  off_t offset = static_cast<off_t>(operation.first_slot) * static_cast<off_t>(kSlotBytes);
  ssize_t written = pwrite(file.fd(), bytes.data(), bytes.size(), offset);
  if (written < 0) return errno;
  if (written != static_cast<ssize_t>(bytes.size())) return EIO;
  if (sync && fsync(file.fd()) != 0) return errno;
  return file.Close();
}

TreeResult Read(const std::string& path) {
  TreeResult result;
  Descriptor file(path, O_RDONLY);
  result.error = file.error();
  if (result.error != 0) return result;
  std::string bytes((kSlots + 1) * kSlotBytes, '\0');
  ssize_t size = pread(file.fd(), bytes.data(), bytes.size(), 0);
  if (size < 0) {
    result.error = errno;
    return result;
  }
  size_t slots = static_cast<size_t>(size) / kSlotBytes;
  for (size_t slot = 0; slot < slots; ++slot) {
    result.tokens.push_back(TokenOfSlot(bytes.data() + slot * kSlotBytes, static_cast<int64_t>(slot)));
  }
  if (static_cast<size_t>(size) % kSlotBytes != 0) result.tokens.push_back(-1);
  return result;
}

TreeResult Getxattr(const std::string& path) {
  TreeResult result;
  char value[32] = {};
  ssize_t size = lgetxattr(path.c_str(), kTokenXattr, value, sizeof(value) - 1);
  if (size < 0) {
    result.error = errno;
  } else {
    result.token = std::strtoll(value, nullptr, 10);
  }
  return result;
}

}  // namespace

std::string SlotContent(int64_t token, int64_t slot) {
  std::string bytes(kSlotBytes, '\0');
  for (size_t i = 0; i < kSlotBytes; i += sizeof(uint64_t)) {
    // The first word is the token; the others follow from it, and from where they stand.
    uint64_t word = i == 0 ? static_cast<uint64_t>(token)
                           : MixBits(static_cast<uint64_t>(token) * kSlots + static_cast<uint64_t>(slot) + (i << 40));
    std::memcpy(bytes.data() + i, &word, sizeof(word));
  }
  return bytes;
}

int64_t TokenOfSlot(const char* bytes, int64_t slot) {
  if (std::all_of(bytes, bytes + kSlotBytes, [](char byte) { return byte == '\0'; })) return 0;
  int64_t token = 0;
  std::memcpy(&token, bytes, sizeof(token));
  return std::memcmp(SlotContent(token, slot).data(), bytes, kSlotBytes) == 0 ? token : -1;
}

TreeResult Perform(const std::string& root, const TreeOperation& operation, const PerformOptions& options) {
  std::string path = root + "/" + operation.path, target = root + "/" + operation.target;
  mode_t mode = static_cast<mode_t>(operation.mode);
  TreeResult result;
  switch (operation.act) {
    case TreeAct::kMkdir: result.error = ErrorOf(mkdir(path.c_str(), mode)); break;
    case TreeAct::kCreate: return Create(path, operation.mode);
    case TreeAct::kLink: result.error = ErrorOf(link(path.c_str(), target.c_str())); break;
    case TreeAct::kUnlink: result.error = ErrorOf(unlink(path.c_str())); break;
    case TreeAct::kRmdir: result.error = ErrorOf(rmdir(path.c_str())); break;
    case TreeAct::kRename:
      result.error = ErrorOf(renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, target.c_str(), operation.flags));
      break;
    case TreeAct::kStat: return Stat(path);
    case TreeAct::kReaddir: return Readdir(path);
    case TreeAct::kWrite: result.error = Write(path, operation, options.sync); break;
    case TreeAct::kRead: return Read(path);
    case TreeAct::kTruncate:
      result.error = ErrorOf(truncate(path.c_str(), operation.slots * static_cast<off_t>(kSlotBytes)));
      break;
    case TreeAct::kChmod: result.error = ErrorOf(chmod(path.c_str(), mode)); break;
    case TreeAct::kSetxattr: {
      std::string value = std::to_string(operation.token);
      result.error = ErrorOf(lsetxattr(path.c_str(), kTokenXattr, value.data(), value.size(), 0));
      break;
    }
    case TreeAct::kGetxattr: return Getxattr(path);
  }
  return result;
}

LockFiles::~LockFiles() {
  for (const auto& [name, fd] : descriptors_) close(fd);
}

int LockFiles::Open(const std::string& path, Kind kind) {
  int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  descriptors_[{path, kind}] = fd;
  return 0;
}

int LockFiles::Perform(const std::string& path, Kind kind, const LockOperation& operation) {
  int fd = descriptors_.at({path, kind});
  bool waits = operation.act == LockAct::kWait, unlocks = operation.act == LockAct::kUnlock;
  if (kind == Kind::kFlock) {
    int how = unlocks ? LOCK_UN : (operation.shared ? LOCK_SH : LOCK_EX) | (waits ? 0 : LOCK_NB);
    return ErrorOf(flock(fd, how));
  }
  struct flock range {};
  range.l_type = static_cast<short>(unlocks ? F_UNLCK : operation.shared ? F_RDLCK : F_WRLCK);
  range.l_whence = SEEK_SET;
  range.l_start = operation.start;
  range.l_len = operation.end == kNever ? 0 : operation.end - operation.start;
  bool is_process = kind == Kind::kProcess;
  int command = waits ? (is_process ? F_SETLKW : F_OFD_SETLKW) : (is_process ? F_SETLK : F_OFD_SETLK);
  return ErrorOf(fcntl(fd, command, &range));
}

}  // namespace cairnfs::testing
