// A disk that passes everything on to another one and puts faults in the way, for tests. A seed replays them, as far as
// the order of the operations is the same.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "io/file.h"

namespace cairnfs::io {

// A place on the disk that cannot be read.
struct BadSectors {
  std::string name;  // of the file when it was opened
  uint64_t begin = 0;
  uint64_t end = 0;
};

// Shares are probabilities between 0 and 1.
struct Faults {
  uint64_t seed = 1;
  // From now on the files may grow by this much altogether (writes past the end, Allocate, Truncate); then kNoSpace.
  // What is removed or truncated gives room again.
  std::optional<uint64_t> growth_bytes_max = std::nullopt;
  // A failing write leaves whole pages from its start behind, none or some, and gives kIo.
  double write_error_share = 0;
  std::optional<uint64_t> failing_write = std::nullopt;  // the N-th write from now on fails, 1 is the next
  double read_error_share = 0;                           // kIo
  std::vector<BadSectors> bad_sectors = {};              // kIo for each read that touches them
  double short_read_share = 0;                           // ends early, at a page, as if the file ended there
  double bit_flip_share = 0;                             // one bit of what was read is wrong
  std::optional<uint64_t> opens_max = std::nullopt;      // files made or opened from now on; then kExhausted
  double sync_error_share = 0;                           // DataSync and SyncDirectory sync nothing and give kIo
  std::optional<uint64_t> failing_sync = std::nullopt;   // the N-th sync from now on fails, 1 is the next
  std::chrono::microseconds delay_max{0};                // completions come late, by up to this much
};

class FaultyDisk final : public Disk {
 public:
  struct Counts {
    uint64_t reads = 0;
    uint64_t writes = 0;
    uint64_t syncs = 0;   // of files and of the directory
    uint64_t faults = 0;  // those that a caller noticed or could have noticed; delays are not counted
  };

  // `base` outlives this.
  explicit FaultyDisk(Disk& base);
  ~FaultyDisk() override;

  // Replaces all faults, from now on. `Faults()` means none.
  void SetFaults(const Faults& faults);
  Counts GetCounts() const;

  Result<std::unique_ptr<File>> Create(const std::string& name) override;
  Result<std::unique_ptr<File>> Open(const std::string& name) override;
  Status Remove(const std::string& name) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<std::vector<std::string>> List() override;
  Status SyncDirectory() override;
  Result<Space> GetSpace() override;

 private:
  class Plan;
  friend class FaultyFile;
  Result<uint64_t> SizeOf(const std::string& name);

  Disk& base_;
  const std::shared_ptr<Plan> plan_;
};

}  // namespace cairnfs::io
