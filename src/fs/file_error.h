// FileError: the last error of a file, of which each descriptor is told once. Guarded by the inode's lock.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"

namespace cairnfs::fs {

class FileError {
 public:
  const std::optional<Error>& last() const { return error_; }
  void Set(const Error& error);
  // An error that Heal may take back.
  void SetThatHeals(const Error& error);
  // What found no space has found it, or is no more: an error that nobody was told is none any more.
  void Heal();

  // Which errors a descriptor has seen that is opened now. An error that nobody was told is told to whoever opens the
  // file for writing next. Who only reads it is told by the reads of what is lost.
  uint64_t SeenAtOpen(bool for_writing) const { return total_ - (for_writing && error_ && !is_reported_ ? 1 : 0); }
  // The error that a descriptor has not been told which has seen these.
  Status Take(uint64_t& seen);
  // The error, if nobody was told.
  Status TakeUnreported();

 private:
  std::optional<Error> error_;
  uint64_t number_ = 0;
  uint64_t total_ = 0;        // the highest number given
  bool is_reported_ = false;  // somebody was told: those who open the file later are not
  bool heals_ = false;
  // The one before, which somebody was told and perhaps not everybody: it is back once `error_` has healed.
  std::optional<Error> before_;
  uint64_t before_number_ = 0;
};

}  // namespace cairnfs::fs
