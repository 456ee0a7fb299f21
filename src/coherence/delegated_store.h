// DelegatedStore: the shared store as the namespace sees it, with what this host may remember
// (docs/cluster/delegations.md).
//
// A delegation on a directory is a key under the host's session lease. It covers the directory's entries, times and own
// records, and the records of the inodes whose I record names it as their parent. While a host holds one, and its lease
// certainly lives, it answers reads of what is covered from memory. Every commit compares that no other host holds a
// delegation on what it changes; if one does, it is recalled, and the commit waits until it is given back or its
// host's lease has ended. So a cached answer is never older than the last change that any host was told of.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <stop_token>
#include <string>
#include <tuple>
#include <unordered_map>

#include "base/clock.h"
#include "base/context.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "cluster/membership.h"
#include "coherence/delegation_keys.h"
#include "coherence/recaller.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

struct DelegationOptions {
  unsigned reads_to_take = 16;  // of a directory from the store within `read_window`, to take a delegation on it
  std::chrono::milliseconds read_window{2000};
  std::chrono::milliseconds rest_after_recall{1000};  // doubled with each recall that follows soon, up to 32 times
  std::chrono::milliseconds recall_wait_max{120'000};
  std::chrono::milliseconds ask_again_after{5000};  // while a recall is not answered
  size_t directories_max = 4096;                    // delegations held
  size_t answers_max = 1 << 20;                     // remembered reads
};

struct DelegationStats {
  uint64_t held = 0;
  uint64_t answered_total = 0, read_total = 0;  // reads from memory, and from the store
  uint64_t commits_total = 0;                   // sent to the store, failed ones included: a round trip each
  uint64_t recalled_total = 0;                  // from other hosts, by this one
};

class DelegatedStore final : public kv::KvStore {
 public:
  // `store` is watched for recalls; `fenced` is the same store with this host's session in each commit. All outlive it.
  DelegatedStore(kv::SharedKvStore& store, kv::KvStore& fenced, cluster::Membership& membership,
                 const DelegationOptions& options = {});
  ~DelegatedStore() override;  // what it holds ends with the session

  // Reads whose context is over are answered from memory, or with kUnavailable at once.
  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override;
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override;
  // As KvStore says; also kUnavailable when a delegation is not given back within recall_wait_max, or the context
  // expires while it waits for that.
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override;
  Status Sync(const Context& context) override { return fenced_.Sync(context); }
  kv::KvLimits limits() const override;

  DelegationStats Stats() const;

 private:
  // The directory whose delegation covers an inode's own records.
  struct Home {
    InodeId directory;      // 0: none
    uint64_t revision = 0;  // of the I record that says so
    uint64_t known_at = 0;  // the tick at which the last read or commit began that confirmed it
    bool doubted = false;   // a commit that compared this record failed: to be read again before the next
  };
  using SpanName = std::tuple<std::string, std::string, size_t>;  // begin, end, limit
  using Ranges = std::map<SpanName, kv::KvRange>;                 // each over one kind of record of one inode
  struct Directory {
    bool held = false, taking = false;
    unsigned giving_back = 0;     // its key is being deleted: not to be taken meanwhile
    uint64_t held_from = 0;       // the tick; inodes that were known to lie here before may have moved
    uint64_t valid_since = 0;     // answers of reads that began before this tick are not kept
    uint64_t generation = 0;      // the tick since which all that changed what it covers went through this object
    uint64_t recalls = 0;         // counted, so that a take notices one
    uint64_t recalls_before = 0;  // when it was marked as `taking`
    unsigned rests = 0;           // recalls that followed each other soon
    Clock::time_point rest_until, window_begin, held_since;
    unsigned reads = 0;                                      // in the window
    std::map<std::string, kv::KvRange, std::less<>> points;  // by key
    Ranges ranges;
    // Not 0: a name that is neither in `points` nor among the unsure ones is absent, as it was at this revision.
    uint64_t all_names_at = 0;
    bool reading_names = false;  // for that
    std::set<std::string, std::less<>> unsure_names;
  };
  // A commit without an answer may still run for so long.
  static constexpr std::chrono::minutes kUnknownOutcomeLasts{10};

  // What a commit has to respect.
  struct Guards {
    std::set<InodeId> directories;
    std::vector<std::pair<std::string, uint64_t>> inode_records;  // keys of I records that told where, and revisions
    std::map<InodeId, uint64_t> generations;                      // of those held when the commit began
    struct Written {
      InodeId inode, home;
      bool is_new;  // the commit compares that it was not there
    };
    std::vector<Written> written;  // inodes whose I record the transaction puts
    uint64_t began = 0;            // the tick
    bool may_be_old = false;       // it may have run when it was committed before: others may have written since
  };

  // Commits on their way that write a key. Until they are back nothing that is read of it is remembered.
  struct Flight {
    unsigned commits = 0;
    bool is_shared = false;  // there were several at once: which came last is not known
  };

  // The directory that covers the key as far as is known, and for certain if this host holds it; 0: none, or not known.
  InodeId CoverOf(std::string_view key) const REQUIRES_LOCK(mutex_);
  InodeId CoverOf(const kv::KvSpan& span) const REQUIRES_LOCK(mutex_);
  Directory* FindHeld(InodeId directory) REQUIRES_LOCK(mutex_);
  static std::optional<kv::KvRange> FindAnswer(const Directory& directory, const kv::KvSpan& span);
  std::optional<kv::KvSnapshot> AnswerFromMemory(std::span<const kv::KvSpan> spans) REQUIRES_LOCK(mutex_);
  void LearnHomes(const kv::KvRange& range, uint64_t began) REQUIRES_LOCK(mutex_);
  // What is remembered of one inode's own records.
  struct Answers {
    std::map<std::string, kv::KvRange, std::less<>> points;
    Ranges ranges;
  };
  Answers TakeAnswers(Directory& directory, InodeId inode) REQUIRES_LOCK(mutex_);  // they are not remembered any more
  // Returns what was remembered with the directory that was the home before.
  Answers SetHome(InodeId inode, const Home& home) REQUIRES_LOCK(mutex_);
  void Remember(Directory& directory, const kv::KvSpan& span, kv::KvRange answer) REQUIRES_LOCK(mutex_);
  bool IsInFlight(const kv::KvSpan& span) const REQUIRES_LOCK(mutex_);
  void Keep(std::span<const kv::KvSpan> spans, const kv::KvSnapshot& snapshot, uint64_t began) REQUIRES_LOCK(mutex_);
  void Drop(Directory& directory) REQUIRES_LOCK(mutex_);  // it is no longer held
  void ForgetAnswers(Directory& directory) REQUIRES_LOCK(mutex_);
  void ForgetOldSession(const cluster::Membership::Session& session) REQUIRES_LOCK(mutex_);
  void DropKey(std::string_view key) REQUIRES_LOCK(mutex_);
  // Those of the kind of record and the inode of the key: only these can contain it.
  static std::pair<Ranges::iterator, Ranges::iterator> RangesNear(Ranges& ranges, std::string_view key);
  void EraseRangesWith(Directory& directory, std::string_view key) REQUIRES_LOCK(mutex_);
  void Apply(Directory& directory, const kv::KvWrite& write, uint64_t revision) REQUIRES_LOCK(mutex_);
  void RememberNew(Directory& directory, InodeId inode, uint64_t revision) REQUIRES_LOCK(mutex_);
  std::vector<InodeId> CountReads(std::span<const kv::KvSpan> spans) REQUIRES_LOCK(mutex_);  // those worth taking
  void MakeRoom() REQUIRES_LOCK(mutex_);

  // REQUIRES: marked as `taking`. Takes none where a recall came since.
  void Take(const Context& context, InodeId id, const cluster::Membership::Session& session);
  void ReadNames(const Context& context, InodeId id);
  void GiveBack(InodeId id);
  void StartRecallWatch();
  Result<Guards> FindGuards(const Context& context, const kv::Transaction& transaction);
  void BeforeCommit(const kv::Transaction& transaction, Guards& guards);
  void AfterCommit(const kv::Transaction& transaction, const Guards& guards, const Result<uint64_t>& committed);
  void Forget(const kv::Transaction& transaction, const Guards& guards) REQUIRES_LOCK(mutex_);
  void AfterFailure(const kv::Transaction& transaction, const Guards& guards, const Error& error) REQUIRES_LOCK(mutex_);

  kv::SharedKvStore& store_;
  kv::KvStore& fenced_;
  cluster::Membership& membership_;
  const DelegationOptions options_;
  Recaller recaller_;
  std::stop_source stop_;
  const Context context_{stop_.get_token()};  // of what the watch of recalls calls for

  mutable Mutex mutex_;
  uint64_t session_ GUARDED_BY(mutex_) = 0;  // number of that under which all below was learned
  uint64_t tick_ GUARDED_BY(mutex_) = 1;
  std::unordered_map<uint64_t, Directory> directories_ GUARDED_BY(mutex_);
  // Of inodes: a hint for commits; exact under a delegation that was held when they were learned (CoverOf).
  std::unordered_map<uint64_t, Home> homes_ GUARDED_BY(mutex_);
  size_t answers_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, Flight, std::less<>> flights_ GUARDED_BY(mutex_);  // by key
  size_t held_ GUARDED_BY(mutex_) = 0, taking_ GUARDED_BY(mutex_) = 0;     // of directories_
  std::set<std::string> unknown_operations_ GUARDED_BY(mutex_);            // ids of commits that may have run
  DelegationStats stats_ GUARDED_BY(mutex_);
  std::unique_ptr<kv::KvWatch> watch_;
};

}  // namespace cairnfs::coherence
