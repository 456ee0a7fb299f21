// DirectoryLock: LOCK of a data directory, flock'ed by the process that uses the directory. It names that process, "PID
// running|stopping", or tells how the last one ended: "failed: why". A clean stop empties it, so text found at start
// tells of an unclean one. A process that only looks, or starts, writes "PID checking|starting|preparing", and below it
// "before: " and the text that was there.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/result.h"

namespace cairnfs::daemon {

class DirectoryLock {
 public:
  enum class File { kMayBeMade, kMustBeThere };
  // Takes the lock of the open directory, waiting while its holder is stopping or dying (half a minute at most). kBusy
  // names the holder. kInvalidArgument: there is no LOCK. kPermission, kNoSpace.
  static Result<std::unique_ptr<DirectoryLock>> Take(int directory, const std::string& path, File file);
  // As Restore, and unlocks.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;

  // What the last process that served from the directory left, fit to be printed; empty after a clean stop.
  const std::string& previous() const { return previous_; }
  // The directory is made anew: what its last process left counts no more.
  void ForgetPrevious() {
    left_before_.clear();
    previous_.clear();
  }

  // This process starts, or only looks. Until something is served, the text that the last process left stays: so it is
  // still there if this one is killed.
  void NoteUse(const std::string& purpose);
  void SetState(const std::string& state);  // "PID state", durably
  void MarkFailed(const std::string& why);
  void MarkClean();
  // Where nothing was served, what the last process left is back. Also for a process that ends without a destructor.
  // Any thread, while none of the above is called.
  void Restore();

 private:
  DirectoryLock(int lock, std::string path) : lock_(lock), path_(std::move(path)) {}
  void Write(const std::string& text);
  void WriteLast(const std::string& text);

  const int lock_;
  const std::string path_;   // of the directory
  std::string left_before_;  // by the last process, as it stood there
  std::string previous_;
  bool restores_ = false;  // it holds the purpose of NoteUse
};

// The text in LOCK, which names the process that uses the directory, or did last; fit to be printed. Does not take the
// lock. Empty when there is no text, or none that this user may read. An error: the disk does not give it.
Result<std::string> ReadLockText(const std::string& data_path);
// The value that DirectoryLock::previous would have.
Result<std::string> ReadLastEnd(const std::string& data_path);
// Whether anybody holds the directory's lock. True too when that cannot be found out.
bool IsInUse(const std::string& data_path);

// The text of a small file, without line ends at its end. nullopt: errno says why.
std::optional<std::string> ReadText(int fd);

}  // namespace cairnfs::daemon
