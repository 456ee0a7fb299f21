// LeaseTable: the leases of a HostedStore in memory, and which keys they hold. The engine has what must last.
#pragma once

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "kv/store.h"

namespace cairnfs::kv {

class LeaseTable {
 public:
  // All functions may be called from any thread at once.
  // Reads the leases of the engine, and forgets all others. Every lease has its full time from now on.
  Status Load(KvEngine& engine);
  void Add(LeaseId lease, std::chrono::milliseconds ttl);
  void Remove(LeaseId lease);
  // The engine key belongs to `lease` now, 0: to none.
  void Attach(const std::string& engine_key, LeaseId lease);

  // False once the end of the lease has been decided on.
  bool Lives(LeaseId lease) const;
  bool Knows(LeaseId lease) const;  // whether or not it is ending
  LeaseId LeaseOf(const std::string& engine_key) const;
  std::set<std::string> KeysOf(LeaseId lease) const;

  // kNotFound when it has ended.
  Result<std::chrono::milliseconds> KeepAlive(LeaseId lease);
  // Returns the leases whose time was over at `now`, and those that an earlier call returned and that are still there.
  // From now on they do not live, whatever comes.
  std::vector<LeaseId> TakeExpired(Clock::time_point now);
  void ExtendAll();  // gives each lease that lives its full time again

 private:
  struct Lease {
    std::chrono::milliseconds ttl;
    Clock::time_point deadline;
    bool is_ending = false;
    std::set<std::string> keys;
  };
  const Lease* Find(LeaseId lease) const REQUIRES_LOCK(mutex_);

  mutable Mutex mutex_;
  std::map<LeaseId, Lease> leases_ GUARDED_BY(mutex_);
  std::unordered_map<std::string, LeaseId> lease_of_key_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::kv
