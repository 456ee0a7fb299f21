// Runs: what the saves of each run have cost this host since it started, and which checkpoint is its newest, whoever
// has made it. A run is a directory that has a retention policy. In memory alone, for the metrics.
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
#include "kv/store.h"
#include "meta/namespace.h"
#include "retention/policy.h"

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

  // Of a run with more names the newest checkpoint is the last that was committed.
  static constexpr size_t kNamesMax = 10'000;
  // So many policies are looked at by one Refresh, beside those of the runs that are known: the next one goes on there.
  static constexpr size_t kPoliciesPerRefresh = 64;
  // And so many names, or directories that may be the newest, or as many more as one run has: what is left has its turn
  // in a later one.
  static constexpr size_t kNamesPerRefresh = 4 * kNamesMax, kCandidatesPerRefresh = 1024;

  // Both outlive it.
  Runs(meta::Namespace& names, kv::KvStore& kv) : names_(names), kv_(kv) {}

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
  // Forgets those that have no policy any more, finds those that have got a checkpoint without a commit, and looks
  // which checkpoint is the newest where names have changed. Waits for the store. One thread at a time.
  void Refresh(const Context& context);
  // By inode; the sum of the others comes last, where they have cost anything.
  std::vector<RunReport> Tell() const;

 private:
  // As `cairnfs latest` orders them.
  struct Newest {
    std::optional<uint64_t> step;  // nullopt: its name is not known
    Timestamp at;                  // of the commit, or of the last change of one that was made in place

    bool IsNewerThan(const Newest& other) const;
  };
  struct Run {
    uint32_t uid = 0;
    Timestamp committed_at;                      // of the last commit that was noted, or of its newest checkpoint
    std::optional<Newest> newest = {};           // nullopt: no checkpoint is left
    uint64_t notes = 0;                          // how often something was noted
    std::optional<InodeId> in_place = {};        // `newest` as it was looked for, where no rename has published it
    std::optional<Timestamp> names_as_of = {};   // ctime of the directory; nullopt: `newest` is to be looked for
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
  // The runs that are not known and are next to be looked at.
  std::vector<InodeId> NextUnknown(const Context& context);
  // Takes what it has read from `names_left`. At 0 it only forgets.
  void Look(const Context& context, InodeId inode, size_t& names_left);
  // Whether `in_place`, the run's newest, has changed.
  void LookAgain(const Context& context, InodeId run, InodeId in_place);
  struct Found {
    std::optional<Newest> newest = {};
    std::optional<InodeId> in_place = {};  // it, where no rename has published it
  };
  // kTooLarge: there are too many names.
  Result<Found> FindNewest(const Context& context, InodeId run, const retention::Policy& policy, size_t& names_left);
  // The path from the mount's root; "#" and its number where not everybody may list the directories on the way, or it
  // is no label: longer than kLabelBytesMax, no UTF-8, or with control characters.
  std::string Label(const Context& context, InodeId run);
  bool IsNewest(InodeId checkpoint_parent, const Timestamp& at) const;
  bool HasRoomFor(uint32_t uid) const REQUIRES_LOCK(mutex_);
  // Null: it has no place of its own. `label` is what it is called from now on.
  Run* FindOrMake(const Place& place, std::string label) REQUIRES_LOCK(mutex_);
  bool TakeLabel(uint32_t uid) REQUIRES_LOCK(mutex_);  // false: there is none left in this hour
  static void AddTraining(const meta::CommitPart& part, Run& run);

  meta::Namespace& names_;
  kv::KvStore& kv_;
  InodeId last_looked_at_{};  // of the thread that refreshes, as the next
  size_t refreshes_ = 0;
  mutable Mutex mutex_;
  std::map<InodeId, Run> runs_ GUARDED_BY(mutex_);
  std::vector<std::pair<Clock::time_point, uint32_t>> labels_given_ GUARDED_BY(mutex_);  // when, and of whom
  RunReport others_ GUARDED_BY(mutex_) = {.directory = "others"};
};

}  // namespace cairnfs::fs
