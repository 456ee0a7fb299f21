// RankGate: `cairnfs commit`. Each of N ranks, on any hosts, calls once; when the last has come, one of them renames
// the directory, and all learn how that went. A rank that does not come in time is named to all others.
//
// A gate belongs to the inode of the directory: a directory that was made anew has a gate of its own, and one that was
// renamed already is known by its inode under the new name. Keys in the shared store (docs/formats/gate.md):
//   B ino 0       the state: how many ranks, where to, gathering, renaming, done, failed
//   B ino 1       who renames; under the session of its host, so another rank takes over from one that died
//   B ino 2 rank  a rank that waits; under the session of its host
//
// A rank that sees all N ranks makes itself the one that renames. It does so by one transaction, which compares that
// the state is the same and that no rank came, or gave up waiting, since. Only ranks that came before take over from
// it: one that comes later may be of the next job, after this one was killed. The caller does the rename itself,
// through the mount, with the rights and through the kernel of its process. A second rank may be asked for it when the
// first one died in the middle. Renaming an inode to a name that it has already is no error, so the directory is
// renamed once.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "kv/shared_store.h"

namespace cairnfs::control {

struct GateCall {
  static constexpr unsigned kRanksMax = 65536;
  static constexpr size_t kNameBytesMax = 255;                // of a rank, and the final one
  static constexpr std::chrono::hours kTimeoutMax{365 * 24};  // clocks hold no time that is much further away
  InodeId directory;                                          // the one to rename
  InodeId final_parent;                                       // and where to
  std::string final_name;
  unsigned ranks = 0;
  std::optional<unsigned> rank;  // 0 to ranks - 1; else
  std::string id;                // a name that no other rank has
  std::chrono::milliseconds timeout{0};
};

class RankGate {
 public:
  struct Options {
    kv::KvStore& store;                          // commits compare this host's session
    kv::SharedKvStore& watched;                  // the same keys
    std::function<Result<kv::LeaseId>()> lease;  // of this host's session; 0: none is needed
    std::string host;                            // for messages
    // How long a rank waits for an earlier call as the same rank on this host: that may be a killed process's.
    std::chrono::milliseconds patience{2000};
    // How long a rank waits for one that renames and whose session lives. Longer than any rename takes.
    std::chrono::milliseconds rename_wait_max = std::chrono::hours(1);
  };
  // What the gate asks its caller. Any thread of the call.
  struct Caller {
    // Renames, durably; no error when the inode has its final name already, durably. kInterrupted: the caller is gone.
    // kUnavailable, kStale: nobody knows whether it has run; it is called again.
    std::function<Status()> rename;
    std::function<bool()> cancelled;  // nobody waits for the outcome any more
    // Whether the directory has the final name now, durably, as all hosts see it.
    std::function<Result<bool>()> has_final_name;
  };

  // The objects in `options` outlive it. Throws std::system_error where the system gives no thread.
  explicit RankGate(Options options);
  ~RankGate();  // REQUIRES: no Commit runs
  RankGate(const RankGate&) = delete;

  // Blocks until the directory is renamed (ok), or is known not to be. While the store does not answer it waits past
  // its timeout too, because only the gate knows the outcome. Errors:
  //   kFailed: the message names the ranks that did not come, says why the rename failed, or says that the rank that
  //     renames did not come back within rename_wait_max.
  //   kStale: the host lost its session while ranks gathered, or had none until the timeout.
  //   kInvalidArgument: this rank does not agree with the others, which get kFailed.
  //   kAlreadyExists: this rank waits already.
  //   kInterrupted: `cancelled` said so; the rank counts as not come.
  // A rank that calls again after an error joins the next try, or begins it. Any thread, any number at once.
  Status Commit(const GateCall& call, const Caller& caller);

 private:
  class Visit;
  struct Ended {
    uint64_t call = 0;
    bool is_committed = false;
  };
  bool IsLive(uint64_t call);
  std::optional<Ended> LastEnded(const std::string& rank_key);
  void WithdrawLater(std::shared_ptr<Visit> visit);
  void RunWithdrawals();

  const Options options_;
  const uint64_t incarnation_;
  Mutex mutex_;
  uint64_t next_call_ GUARDED_BY(mutex_) = 1;
  std::set<uint64_t> live_calls_ GUARDED_BY(mutex_);
  std::map<size_t, Ended> last_ended_ GUARDED_BY(mutex_);  // of each rank, by the hash of its key: names may be long
  std::deque<std::shared_ptr<Visit>> withdrawing_ GUARDED_BY(mutex_);  // calls that are over, and may count yet
  CondVar withdrawing_changed_;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::thread withdrawals_;
};

}  // namespace cairnfs::control
