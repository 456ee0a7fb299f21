#include "fs/file_error.h"

#include <utility>

namespace cairnfs::fs {

void FileError::Set(const Error& error) {
  error_ = error;
  number_ = ++total_;
  is_reported_ = heals_ = false;
  before_.reset();
}

// An error that was there before is not forgotten with this one, unless it was of the same kind: where nobody was told,
// somebody is yet to be, and where somebody was, perhaps not everybody.
void FileError::SetThatHeals(const Error& error) {
  const bool heals = !error_ || heals_ || is_reported_;
  std::optional<Error> before = before_;
  if (error_ && is_reported_ && !heals_) {
    before = error_;
    before_number_ = number_;
  }
  Set(error);
  heals_ = heals;
  before_ = std::move(before);
}

void FileError::Heal() {
  if (!heals_ || is_reported_) return;
  error_ = std::exchange(before_, std::nullopt);
  number_ = before_number_;
  is_reported_ = error_.has_value();
  heals_ = false;
}

Status FileError::Take(uint64_t& seen) {
  if (seen >= number_ || !error_) return {};
  seen = number_;
  is_reported_ = true;
  return *error_;
}

Status FileError::TakeUnreported() {
  if (!error_ || is_reported_) return {};
  is_reported_ = true;
  return *error_;
}

}  // namespace cairnfs::fs
