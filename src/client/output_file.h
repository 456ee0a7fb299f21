// A file that is written under a temporary name beside its own, made durable, and renamed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "client/file_identity.h"

namespace cairnfs::client {

class OutputFile {
 public:
  struct Options {
    std::string path;
    uint32_t mode;   // before the umask; 0: that of the file that is replaced, else 0666
    uint64_t bytes;  // its size; what is not written is zeros
  };
  // kNotFound, kPermission, kNoSpace, ...: the message names the path.
  static Result<std::unique_ptr<OutputFile>> Create(const Options& options);
  // Removes the file, unless Publish renamed it.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;

  // Any thread, but none after Publish began.
  Status Write(const std::byte* data, uint64_t bytes, uint64_t offset);
  int descriptor() const { return descriptor_; }
  uint64_t device() const { return created_.device; }

  // On return the file is durable under its own name. An error of the last step, the sync of the directory, leaves it
  // there, whole.
  Status Publish();
  // After Publish: what the file is, seen late enough that any change from now on shows. None where that cannot be
  // said. Waits for a few ticks of the clock of files.
  std::optional<FileIdentity> Look();

 private:
  explicit OutputFile(std::string path) : path_(std::move(path)) {}
  Status Open(const Options& options);
  Status CheckName() const;
  Status Make(const std::string& prefix, uint32_t mode);
  // Until a write would give the file a later mtime. False: that cannot be said.
  bool WaitPastMtime();

  const std::string path_;
  std::string name_;            // in the directory
  std::string temporary_name_;  // empty: there is none to remove
  int directory_ = -1;
  int descriptor_ = -1;  // for writing
  int look_ = -1;        // for reading: closing the other may be what publishes times
  FileIdentity created_;
  FileIdentity written_;                 // after the last write, before the touch and the rename
  std::optional<FileIdentity> renamed_;  // right after the rename
  Clock::time_point renamed_at_;
  bool is_settled_ = false;  // the rename came later than mtime by the clock of the files
};

}  // namespace cairnfs::client
