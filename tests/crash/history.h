// What the writers of a crash test did, in which order, and what was promised to them. Kept outside the mount.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace cairnfs::testing {

enum class Step {
  // Names: their survivors are a prefix of what was done.
  kMkdir,
  kCreate,
  kRenameFile,
  kRenameDirectory,
  kLink,
  kSymlink,
  kUnlink,
  kRmdir,
  kChmod,
  kSetxattr,
  // Data.
  kWrite,
  kTruncate,
  kPunch,
  // Neither.
  kClose,
  kFsync,
  kFsyncDirectory,
};

inline bool IsName(Step step) { return step <= Step::kSetxattr; }
inline bool IsData(Step step) { return step == Step::kWrite || step == Step::kTruncate || step == Step::kPunch; }

constexpr int kNoFile = -1;

struct Record {
  Step step;
  std::string a, b;    // paths below the writer's directory; b: new name, target, or xattr value
  int file = kNoFile;  // which content: the n-th file that this writer created
  uint64_t offset = 0, length = 0;
  uint64_t seed = 0;                         // of the bytes written
  std::shared_ptr<const std::string> bytes;  // instead of the seed, when they were copied from elsewhere
  uint32_t mode = 0;
  bool is_sync_point = false;

  // Order of beginnings and ends among all writers; 0: did not happen.
  uint64_t begin = 0, end = 0;
  int64_t end_time_ns = 0;
  // How many events of the device's log (power cut) had happened. The end position is taken after the call returned.
  uint64_t begin_position = 0, end_position = 0;

  std::string Describe() const;
};

// What one writer did, in order.
using Track = std::deque<Record>;

// Where in the history the machine or the daemon stopped.
struct CrashPoint {
  uint64_t position = std::numeric_limits<uint64_t>::max();  // of the device's log
  int64_t time_ns = 0;     // a moment at which it was surely still alive, and not long before it stopped
  int64_t stalled_ns = 0;  // of the time before, in which the machine did not get on: DiskStalls

  bool Began(const Record& record) const { return record.begin != 0 && record.begin_position <= position; }
  bool Returned(const Record& record) const { return record.end != 0 && record.end_position <= position; }
};

// Numbers beginnings and ends.
class Sequence {
 public:
  explicit Sequence(std::function<uint64_t()> position) : position_(std::move(position)) {}
  void Begin(Record& record);
  void End(Record& record);
  int64_t last_end_time_ns() const { return last_end_time_ns_; }

 private:
  std::function<uint64_t()> position_;
  std::atomic<uint64_t> next_{1};
  std::atomic<int64_t> last_end_time_ns_{0};
};

int64_t NowNs();  // monotonic

}  // namespace cairnfs::testing
