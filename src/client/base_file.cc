#include "client/base_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace cairnfs::client {
namespace {

std::string Difference(const FileIdentity& saved, const FileIdentity& found) {
  if (found.device != saved.device || found.inode != saved.inode) return "it is another file";
  if (found.bytes != saved.bytes) {
    return "it has " + std::to_string(found.bytes) + " bytes instead of " + std::to_string(saved.bytes);
  }
  if (found.mtime != saved.mtime) return "it was written to";
  return "it was changed";
}

}  // namespace

BaseFile::Opened BaseFile::Open(const std::string& path, const FileIdentity& saved, uint64_t device) {
  std::unique_ptr<BaseFile> file(new BaseFile(path, saved));
  // A FIFO in its place must not hold up the save.
  file->descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file->descriptor_ < 0) {
    const int error = errno;
    return {nullptr,
            {error == ENOENT || error == ENOTDIR ? CAIRNFS_BASE_GONE : CAIRNFS_BASE_UNREADABLE,
             path + ": " + std::strerror(error)}};
  }
  if (saved.device != device) {
    return {nullptr, {CAIRNFS_BASE_OTHER_FILESYSTEM, path + ": on another file system than the file to be written"}};
  }
  if (auto problem = file->Check()) return {nullptr, *problem};
  return {std::move(file), {}};
}

BaseFile::~BaseFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::optional<BaseProblem> BaseFile::Check() const {
  const Result<FileIdentity> found = IdentityOf(descriptor_, path_);
  if (!found.ok()) return BaseProblem{CAIRNFS_BASE_UNREADABLE, found.error().message};
  if (*found != saved_) {
    return BaseProblem{CAIRNFS_BASE_CHANGED, path_ + ": " + Difference(saved_, *found) + " since it was saved"};
  }
  return std::nullopt;
}

std::optional<BaseProblem> BaseFile::Copy(uint64_t from, int descriptor, uint64_t to, uint64_t bytes) const {
  constexpr uint64_t kBytesAtOnce = kGiB;
  auto in = static_cast<off_t>(from);
  auto out = static_cast<off_t>(to);
  while (bytes > 0) {
    const ssize_t copied =
        copy_file_range(descriptor_, &in, descriptor, &out, std::min<uint64_t>(bytes, kBytesAtOnce), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied <= 0) {
      return BaseProblem{CAIRNFS_BASE_REFUSED,
                         path_ + ": copy_file_range: " + (copied == 0 ? "the file ended early" : std::strerror(errno))};
    }
    bytes -= static_cast<uint64_t>(copied);
  }
  return std::nullopt;
}

}  // namespace cairnfs::client
