// Seals: below a sealed directory nothing can be changed (docs/decisions/seal.md). Transactions of names and attributes
// compare that by themselves (meta/seals.h). This is about files that are written: who opens one asks first, and
// whoever seals finds out that nobody on any host has one open.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/thread_annotations.h"
#include "cluster/peers.h"
#include "fs/change_gate.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

struct Services;

// All functions: any thread; those with a context may wait for the shared store.
class Seals {
 public:
  // kWritten: what is written now. kWrittenForSeal: the same, once no change is under way that has not seen what seals
  // there are by now; one that does not end counts as written.
  using What = cluster::OpenWhat;
  struct Writer {
    std::string host;  // its name; empty: there is one alone
    InodeId inode;     // of a file that a process there has open for writing
  };
  using AskOthers = std::function<Result<std::vector<Writer>>(const Context&, What what)>;
  // Both outlive it.
  Seals(meta::Namespace& names, InodeTable& table) : names_(names), table_(table) {}
  // Before any call, as the next. `name`: of this host.
  void SetAskOthers(AskOthers ask, std::function<std::string()> name) {
    ask_others_ = std::move(ask);
    name_ = std::move(name);
  }
  // The path of a file for messages.
  void SetPathOf(std::function<std::string(const Context&, InodeId)> path_of) { path_of_ = std::move(path_of); }
  // Under which session of the host it is asked; another one may have missed a seal.
  void SetSession(std::function<uint64_t()> session) { session_ = std::move(session); }

  // Has what was closed here published: another host that seals waits for that. `ended`: once the round is over.
  void SetPublish(std::function<void(std::function<void()> ended)> publish) { publish_ = std::move(publish); }

  // A change that is no transaction of its own, of an inode that was below no seal when it began. It lasts as long as
  // `gate`: who seals waits for that, or takes the inode for one that is written.
  struct Change {
    std::shared_ptr<void> gate;
    uint64_t session = 0;  // of the host, under which it was begun; 0: it is alone
  };
  // `made_in`: of an inode that was just made, in that directory. kSealed.
  Result<Change> BeginChange(const Context& context, InodeId inode, std::optional<InodeId> made_in = {});
  // Whether the host still has the session. If not, it may have missed a seal.
  bool IsCurrent(const Change& change) const { return Session() == change.session; }

  // The files that processes of this host have open for writing; for another host also those of which this one is yet
  // to publish bytes.
  enum class For { kThisHost, kOtherHost };
  std::vector<InodeId> WrittenHere(const Context& context, What what, For whom);
  // A sentence for each file below the directory that a process has open for writing, on whichever host; a few of many.
  // kUnavailable: a host does not say.
  Result<std::vector<std::string>> DescribeWriters(const Context& context, InodeId directory, What what);

  // A user looks for writers below a few directories at a time.
  bool TakePlace(uint32_t uid) EXCLUDES_LOCK(mutex_);
  void LeavePlace(uint32_t uid) EXCLUDES_LOCK(mutex_);
  // One at a time looks at all names. False: somebody does.
  bool BeginLook() { return !is_looking_.exchange(true); }
  void EndLook() { is_looking_ = false; }

 private:
  uint64_t Session() const { return session_ ? session_() : 0; }

  meta::Namespace& names_;
  InodeTable& table_;
  AskOthers ask_others_;
  std::function<std::string()> name_;
  std::function<std::string(const Context&, InodeId)> path_of_;
  std::function<uint64_t()> session_;
  std::function<void(std::function<void()> ended)> publish_;
  std::atomic<uint64_t> session_seen_{0};
  std::atomic<bool> is_publishing_{false}, is_looking_{false};
  ChangeGate gate_;
  Mutex mutex_;
  std::map<uint32_t, unsigned> places_ GUARDED_BY(mutex_);  // taken, by uid
};

// Calls `then` after the pause, on a thread of the waits; with kInterrupted at once when the caller is killed.
void AfterPause(const Services& at, const Caller& caller, std::chrono::milliseconds pause, Done<void> then);

// Calls `then` once it is known whether the inode lies below a seal: at once, or, where that takes a look at all names,
// on a thread that may wait. With kSealed it may be told already; else the change itself finds out. `at` outlives that.
void OnceSealsAreKnown(const Services& at, InodeId id, const Caller& caller, Done<void> then);

}  // namespace cairnfs::fs
