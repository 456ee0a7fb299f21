// Settings that are the same on every host of a cluster: one record in the shared store, which every host follows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "daemon/config.h"
#include "kv/retry.h"
#include "kv/shared_store.h"

namespace cairnfs::daemon {

// Key `C` of the shared store. Of these only min_replicas is ever changed.
struct ClusterSettings {
  uint32_t copies = 0, min_replicas = 0;  // as set: 0 is as many as copies
  uint64_t lease_ms = 0, out_after_ms = 0;
  std::vector<std::string> trusted_network;
  std::string Encode() const;
  static Result<ClusterSettings> Decode(std::string_view value);

  uint32_t MinReplicas() const { return min_replicas == 0 ? copies : min_replicas; }  // the number in force
  bool IsLowered() const { return MinReplicas() < copies; }
};

ClusterSettings SettingsOf(const Config& config);  // those that it would make a cluster with
// kInvalidArgument: a key that must be the same on every host has another value here. min_replicas is no such key: the
// value that `cluster init` wrote, and `cluster set` after it, counts.
Status CheckAgreement(const ClusterSettings& settings, const Config& config);

struct StoredSettings {
  ClusterSettings settings;
  uint64_t revision = 0;  // of the key: higher with each change
};

std::string SettingsKey();
// How a transaction on the settings that conflicts is tried again. Each wait is random, so that when several hosts set
// at once, a slow one does not lose to the same quick one every time.
kv::RetryOptions SettingsConflicts();
// kNotFound: there is no cluster in the store.
Result<StoredSettings> ReadSettings(const Context& context, kv::KvStore& store);
// Writes the number of copies that suffice while nodes are missing, 0 for all of them, and nothing else. Returns the
// record as it is then. kInvalidArgument: it is more than there are copies. kInterrupted, with nothing written:
// the context expired while the store was away.
Result<StoredSettings> SetMinReplicas(const Context& context, kv::KvStore& store, uint32_t min_replicas);

// Tells the settings, and each change that any host makes.
class SettingsWatch {
 public:
  using Changed = std::function<void(const StoredSettings&)>;
  // `changed` is called with the present settings before this returns, and then after each change: one call at a time,
  // in the order of the changes, also for some that change nothing. It must not call the watch. `store` outlives the
  // watch.
  static Result<std::unique_ptr<SettingsWatch>> Start(kv::SharedKvStore& store, Changed changed);
  ~SettingsWatch();  // after a call that runs
  SettingsWatch(const SettingsWatch&) = delete;
  SettingsWatch& operator=(const SettingsWatch&) = delete;

  // How often the store was found to have gone back to an older state. Revisions from before and after that differ in
  // meaning.
  uint64_t TimesWentBack() const EXCLUDES_LOCK(mutex_);
  // Takes over settings that this host has just written or read, and that the store may tell only later.
  // `times_went_back`: TimesWentBack from before that. Settings of a state that the store has since gone back from do
  // not count.
  void Take(const StoredSettings& stored, uint64_t times_went_back) EXCLUDES_LOCK(mutex_);

 private:
  SettingsWatch(kv::SharedKvStore& store, Changed changed) : store_(store), changed_(std::move(changed)) {}
  Status Begin();
  void TakeLocked(const StoredSettings& stored) REQUIRES_LOCK(mutex_);
  void TakeEvents(const std::vector<kv::KvEvent>& events);
  enum class Revisions { kGoOn, kWentBack };
  void Reread(Revisions revisions) EXCLUDES_LOCK(mutex_);

  kv::SharedKvStore& store_;
  const Changed changed_;
  std::stop_source stop_;
  const Context context_{stop_.get_token()};
  mutable Mutex mutex_;  // held while changed_ runs, so that an older record never comes after a newer one
  uint64_t revision_ GUARDED_BY(mutex_) = 0;  // of what was told last
  uint64_t times_went_back_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<kv::KvWatch> watch_;
};

}  // namespace cairnfs::daemon
