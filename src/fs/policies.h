// Policies: has the policies of directories applied, by one host of the filesystem (docs/commits.md, "When it is
// applied"). What one says is judged and done by a runner, which is handed in: this says when, and keeps what came of
// it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "meta/namespace.h"
#include "retention/agenda.h"
#include "retention/report.h"

namespace cairnfs::fs {

// The policy of one directory, which is to be applied once, with the rights of its owner and no others.
struct PolicyJob {
  InodeId directory;
  std::string path;    // below the root of the filesystem, without a slash at its begin
  uint32_t owner = 0;  // uid
};
// Applies it. Ends soon after the context has expired; the report then has an error. May be called by several threads
// at once.
using PolicyRunner = std::function<retention::Report(const Context& context, const PolicyJob& job)>;

// All functions: any thread.
class Policies {
 public:
  struct Parts {  // all outlive it
    meta::Namespace& names;
    kv::KvStore& kv;
  };
  struct Self {
    std::function<std::string()> name = [] { return std::string(); };  // of this host; empty: it is alone
    // Whether this host is the one that applies policies. One that may becomes it where there is none; one that may not
    // leaves it to others. May wait for the store.
    std::function<Result<bool>(const Context&, bool may)> applies = [](const Context&, bool may) -> Result<bool> {
      return may;
    };
  };
  Policies(const Parts& parts, Self self);
  ~Policies() { Stop(); }

  // From now on they are applied. Once.
  void Start(PolicyRunner runner);
  // Ends what runs, and waits for it; nothing is applied any more.
  void Stop();
  // The same, but goes on after a while: for who unmounts, and whom a process in the mount would be in the way of.
  // Waits for what runs for `patience` at most.
  void Pause(Clock::duration time, Clock::duration patience);
  // While it is read-only this host applies nothing.
  void SetReadOnly(bool read_only) { is_read_only_ = read_only; }

  // How the policy of the directory was last applied, as JSON (docs/commits.md). kNoData: it never was.
  Result<std::string> Describe(const Context& context, InodeId directory);

 private:
  using Item = retention::Agenda::Item;
  void Work();
  // Finds what is due, when it is time for that. One thread at a time.
  void LookWhenDue() EXCLUDES_LOCK(mutex_);
  Result<std::vector<Item>> FindDue();
  Status AddOwners(std::vector<Item>& due);
  void EndLeftSeals();  // as LookWhenDue
  void Apply(const Item& item, const Context& context);
  Status Note(const Item& item, const retention::Report& report);
  void Rest() EXCLUDES_LOCK(mutex_);  // what came of it cannot be kept: everything waits a while
  void TellFailure(const Item& item, const std::string& path, const std::string& why) EXCLUDES_LOCK(mutex_);
  // Of a directory without a policy, whose report nobody reads.
  void TellRemovals(const Item& item, const std::string& path, const retention::Report& report) EXCLUDES_LOCK(mutex_);
  bool MayTell() EXCLUDES_LOCK(mutex_);  // false: too much was told in this minute

  const Parts at_;
  const Self self_;
  std::atomic<bool> is_read_only_{false};
  std::stop_source stop_;
  const Context until_stop_;
  PolicyRunner runner_;  // constant while there are threads
  Mutex mutex_;
  CondVar changed_;  // the agenda, `running_`, or the pause
  retention::Agenda agenda_ GUARDED_BY(mutex_);
  std::stop_source stop_runs_ GUARDED_BY(mutex_);          // those under way
  std::set<InodeId> running_ GUARDED_BY(mutex_);           // directories
  std::set<InodeId> ended_since_look_ GUARDED_BY(mutex_);  // what a look that has begun may not know yet
  Clock::time_point paused_until_ GUARDED_BY(mutex_){};
  Clock::time_point next_look_ GUARDED_BY(mutex_){};
  Clock::time_point minute_ends_ GUARDED_BY(mutex_){};
  size_t to_tell_ GUARDED_BY(mutex_) = 0;  // of the minute: kTellAtOnce are told, and how many more there were
  Clock::time_point next_seals_look_{};    // of the one thread that looks
  std::vector<std::thread> threads_;
};

}  // namespace cairnfs::fs
