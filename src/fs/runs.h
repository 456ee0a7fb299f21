// Runs: what the saves of each run have cost this host since it started, and when its last checkpoint was committed, by
// whichever host. A run is a directory that has a retention policy. In memory alone, for the metrics.
#pragma once

#include <array>
#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// How often something took how long.
struct Durations {
  // Of the buckets, in seconds. What took longer than the last is in none of them.
  static constexpr std::array<double, 14> kBounds = {0.01, 0.03, 0.1, 0.3,   1,     3,      10,
                                                     30,   100,  300, 1'000, 3'000, 10'000, 30'000};
  std::array<uint64_t, kBounds.size()> counts{};
  uint64_t count = 0;  // of all
  double sum_seconds = 0;

  void Add(double seconds);
};

// Of one run; the costs are those of this host.
struct RunReport {
  std::string directory;    // Runs::Label
  Durations write = {};     // in write calls of a save, added up over its threads
  Durations wait = {};      // the same in fsync, close and the rename
  Durations commit = {};    // of a rename that was made here
  Durations training = {};  // from the start of one save to that of the next, less what the first one's threads took
  uint64_t written_bytes = 0;
  uint64_t new_bytes = 0;  // of chunks that were stored nowhere before
  std::optional<uint64_t> checkpoint_age_seconds = {};
  std::optional<uint64_t> checkpoint_step = {};
};

// All functions: any thread.
class Runs {
 public:
  // So many are told apart, and the costs of the others are added up. One user has at most twice as many as are left to
  // others. A run without a commit for a day gives its place to another one.
  static constexpr size_t kRunsMax = 48;
  // So many get a label within an hour, by a new run or a renamed one, and of one user as above: whoever reads the
  // metrics keeps each for ever. A new run beyond that counts among the others, a renamed one has its number.
  static constexpr size_t kLabelsPerHourMax = 96;
  static constexpr int64_t kIdleSecondsMax = 24 * 3600;
  static constexpr size_t kLabelBytesMax = 256;

  // Outlives it.
  explicit Runs(meta::Namespace& names) : names_(names) {}

  // What is heard of a commit.
  struct News {
    Timestamp at;                              // of the commit
    std::optional<meta::CommitPart> own = {};  // all that this host knows of the save; nullopt: nothing, or not yet
    std::optional<uint64_t> renamed_ns = {};   // how long the rename took; nullopt: another host has made it
  };
  // Nothing is noted where the directory is no checkpoint of a run. The same commit may be noted twice, and its own
  // part once. Waits for the store. What cannot be read is left out.
  void Note(const Context& context, InodeId checkpoint, const News& news);
  // New bytes of a save that was noted. As Note.
  void NoteNewBytes(const Context& context, InodeId checkpoint, uint64_t bytes);
  // Forgets those that have no policy any more. Waits for the store.
  void Refresh(const Context& context);
  // By inode; the sum of the others comes last, where they have cost anything.
  std::vector<RunReport> Tell() const;

 private:
  struct Run {
    uint32_t uid = 0;
    Timestamp committed_at;
    std::optional<Timestamp> saving_since = {};  // the start of the last save of this host
    uint64_t calls_ns = 0;                       // of that save
    RunReport report;
  };
  struct Place {
    InodeId run;
    uint32_t uid = 0;
    std::optional<uint64_t> step = {};  // nullopt: its name is not known
  };
  std::optional<Place> Find(const Context& context, InodeId checkpoint);
  // The path from the mount's root; "#" and its number where not everybody may list the directories on the way, or it
  // is no label: longer than kLabelBytesMax, no UTF-8, or with control characters.
  std::string Label(const Context& context, InodeId run);
  bool IsNewest(InodeId checkpoint_parent, const Timestamp& at) const;
  bool HasRoomFor(uint32_t uid) const REQUIRES_LOCK(mutex_);
  Run* FindOrMake(const Place& place) REQUIRES_LOCK(mutex_);  // null: it has no place of its own
  bool TakeLabel(uint32_t uid) REQUIRES_LOCK(mutex_);         // false: there is none left in this hour
  static void AddTraining(const meta::CommitPart& part, Run& run);

  meta::Namespace& names_;
  mutable Mutex mutex_;
  std::map<InodeId, Run> runs_ GUARDED_BY(mutex_);
  std::vector<std::pair<Clock::time_point, uint32_t>> labels_given_ GUARDED_BY(mutex_);  // when, and of whom
  RunReport others_ GUARDED_BY(mutex_) = {.directory = "others"};
};

}  // namespace cairnfs::fs
