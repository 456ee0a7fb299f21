// Makes missing copies of chunks, when a node is out for good, chunks were stored with fewer copies than asked for, or
// a node has not what others were told that it would have. And one more of those that were stored in fewer failure
// domains than there are now.
//
// Each node goes through the lists of holders that it keeps, and asks those that they name whether they have the
// chunks. Of the holders of a chunk that are left, the first in the chunk's order that is up makes the copies. It also
// tells the chunk's home, when that has changed, who holds it.
//
// Once no copies are missing it rebalances (cluster/rebalance.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

#include "base/context.h"
#include "cluster/rebalance.h"
#include "cluster/repair_needs.h"
#include "cluster/replicator.h"

namespace cairnfs::cluster {

class Repair {
 public:
  struct Parts : Rebalance::Parts {  // all outlive it
    kv::KvEngine& engine;
    RepairNeeds& needs;
  };
  Repair(const Parts& parts, uint64_t bytes_per_second_max);
  ~Repair() { Stop(); }
  void Stop();

  // kLists: what the lists say is taken as true. kHolders: who is named is asked.
  enum class Depth { kLists, kHolders };
  void SetRate(uint64_t bytes_per_second_max) { bytes_per_second_max_ = std::max<uint64_t>(1, bytes_per_second_max); }
  // Copies and frees nothing from now on, or does again. Any thread; waits until nothing is being freed.
  void Hold(bool hold);
  // Goes through the lists once more. Any thread; does not block.
  void Kick(Depth depth);
  // Now and then, by one thread: looks whether what ended under-replicated is to be tried again.
  void Tick(Clock::time_point now);
  struct Progress {
    uint64_t chunks_left;
    uint64_t missing_copies;  // those of RepairNeeds are not among them
    uint64_t bytes_total;     // copied, since the start
    std::string phase;
    bool has_looked;
  };
  Progress progress() const;

 private:
  struct Todo {
    Digest digest;
    Holders others;            // that have it, beside this node
    size_t domain_copies = 0;  // so many are wanted, for those that there are lie in too few failure domains
  };
  // Who of a list's nodes have the chunk. Those that are down are expected back with it, and who does not answer is
  // asked again by the next scan.
  struct Finding {
    bool is_here = false;
    bool is_being_put = false;
    Holders denied;  // said that they have it not
  };
  void Run();
  bool IsCalled() EXCLUDES_LOCK(mutex_);  // from rebalancing to other things
  bool RunOnce(Depth depth);              // false: to be done again, for something failed
  bool Scan(Depth depth, std::vector<Todo>* todo, size_t* short_count);
  std::vector<Finding> Look(const std::vector<HolderEntry>& entries);
  // Adds to the findings what the nodes say, and to `silent` those that did not answer; these are asked no more.
  void AskHolders(const std::vector<HolderEntry>& entries, std::vector<Finding>* findings, std::set<NodeId>* silent);
  std::optional<Todo> Examine(Depth depth, const HolderEntry& entry, const Finding& finding, const View& view,
                              size_t* short_count);
  bool Copy(const Todo& todo);
  bool CanSpread(const Todo& todo);
  // Until no more bytes are on their way. False: the context expired.
  bool AwaitInFlight(const Context& context, size_t bytes_max) EXCLUDES_LOCK(mutex_);
  // Whether it had to be waited for that copies may be made. Also returns once the context has expired.
  bool AwaitRelease() EXCLUDES_LOCK(mutex_);
  void SetPhase(const char* phase);

  const Parts parts_;
  const NodeId self_;
  std::atomic<uint64_t> bytes_per_second_max_;
  Rebalance rebalance_;
  std::atomic<uint64_t> chunks_left_{0}, missing_copies_{0}, bytes_total_{0};
  std::stop_source stop_;
  const Context context_{stop_.get_token()};  // of the thread

  // Of the thread that ticks.
  struct Retry {
    uint64_t count = 0;
    Clock::time_point kicked_at{};
    std::chrono::seconds interval{2};
  } retry_;
  Clock::time_point looked_for_surplus_at_{};

  mutable Mutex mutex_;
  CondVar wake_;
  std::optional<Depth> kicked_ GUARDED_BY(mutex_);
  bool has_looked_ GUARDED_BY(mutex_) = false;  // through all lists, since the start
  size_t bytes_in_flight_ GUARDED_BY(mutex_) = 0;
  // Chunks, perhaps of an earlier scan: scans pass over them. Those that lack copies, and those in too few domains.
  size_t replicating_ GUARDED_BY(mutex_) = 0;
  size_t spreading_ GUARDED_BY(mutex_) = 0;
  const char* phase_ GUARDED_BY(mutex_) = "";
  bool is_held_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace cairnfs::cluster
