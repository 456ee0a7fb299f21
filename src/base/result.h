// Result<T>: a value or an Error. Every operation that can fail returns one.
//
// Few codes on purpose: a code exists only where some caller reacts to it. errno values are made from
// codes in src/fuse alone.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace cairnfs {

enum class ErrorCode {
  kNotFound,
  kAlreadyExists,
  kInvalidArgument,
  kConflict,  // an optimistic transaction lost; the caller may retry
  kCorrupt,   // stored bytes fail their checksum or do not decode
  kNoSpace,
  kExhausted,    // no descriptor or memory to open or allocate a file now; nothing was written
  kIo,           // the disk below failed
  kFailed,       // an earlier failure closed this component until it is reopened
  kUnavailable,  // not now: shutting down, or a peer is away
  kPermission,
  kNotSupported,
  kTooLarge,  // file offset or size past what the format holds
  kNameTooLong,
  kNotDirectory,
  kIsDirectory,
  kNotEmpty,
  kTooManyLinks,
  kNoData,  // SEEK_DATA or SEEK_HOLE found nothing, or no such xattr
  kRange,   // the caller's buffer is too small
  kInterrupted,
  kBusy,
  kStale,          // the object was there and is gone
  kValueTooLarge,  // xattr past the limit
  kSealed,         // nothing can be changed below a sealed directory
  kQuotaExceeded,  // of a directory
  kOtherQuota,     // a name would lie in another quota than what it leads to
};

std::string_view ErrorCodeName(ErrorCode code);
std::optional<ErrorCode> ErrorCodeOfName(std::string_view name);

struct Error {
  ErrorCode code;
  std::string message;  // what is wrong, where, and what would be right

  // The same error with "context: " in front of its message.
  [[nodiscard]] Error WithContext(std::string_view context) const {
    return Error{code, std::string(context) + ": " + message};
  }
};

inline Error MakeError(ErrorCode code, std::string message) { return Error{code, std::move(message)}; }
inline Error InvalidArgument(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

// An Error "what: strerror". ENOSPC, EDQUOT -> kNoSpace; ENOENT -> kNotFound; EEXIST -> kAlreadyExists; EACCES, EPERM,
// EROFS -> kPermission; EINVAL -> kInvalidArgument; EBUSY, EAGAIN -> kBusy; ENOTDIR -> kNotDirectory; ENAMETOOLONG ->
// kNameTooLong; EOPNOTSUPP, ENOSYS -> kNotSupported; ENOTCONN, ECONNABORTED -> kUnavailable; all else kIo.
Error ErrnoError(int errno_value, std::string_view what);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit on purpose
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  // REQUIRES: ok().
  T& value() & { return *Checked(); }
  const T& value() const& { return *const_cast<Result*>(this)->Checked(); }
  T&& value() && { return std::move(*Checked()); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return Checked(); }
  const T* operator->() const { return const_cast<Result*>(this)->Checked(); }

  // REQUIRES: !ok().
  const Error& error() const {
    assert(!ok());
    return std::get<1>(state_);
  }

 private:
  T* Checked() {
    assert(ok());
    return &std::get<0>(state_);
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT: implicit on purpose

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  // REQUIRES: !ok().
  const Error& error() const {
    assert(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

using Status = Result<void>;

}  // namespace cairnfs

#define CAIRNFS_CONCAT_INNER(a, b) a##b
#define CAIRNFS_CONCAT(a, b) CAIRNFS_CONCAT_INNER(a, b)

// Returns the error of `expression` (a Result of any type) to the caller, if it has one.
#define CAIRNFS_RETURN_IF_ERROR(expression)                                \
  do {                                                                     \
    if (const auto& cairnfs_status = (expression); !cairnfs_status.ok()) { \
      return cairnfs_status.error();                                       \
    }                                                                      \
  } while (false)

// Assigns the value of `expression` to `target` (which may be a declaration), or returns its error.
#define CAIRNFS_ASSIGN_OR_RETURN(target, expression)             \
  auto CAIRNFS_CONCAT(cairnfs_result_, __LINE__) = (expression); \
  if (!CAIRNFS_CONCAT(cairnfs_result_, __LINE__).ok()) {         \
    return CAIRNFS_CONCAT(cairnfs_result_, __LINE__).error();    \
  }                                                              \
  target = std::move(CAIRNFS_CONCAT(cairnfs_result_, __LINE__)).value()  // NOLINT(bugprone-macro-parentheses)
