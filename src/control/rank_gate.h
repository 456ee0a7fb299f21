// RankGate: `cairnfs commit`. Each of N ranks, on any hosts, calls once; when the last has come, one of them renames
// the directory, and all learn how that went. A rank that does not come in time is named to all others.
//
// A gate belongs to the inode of the directory: a directory that was made anew has a gate of its own, and one that was
// renamed already is known by its inode under the new name. Ranks meet in a *try*, which has a random number. Keys in
// the shared store (docs/formats/gate.md):
//   B ino 3           the state: which try it is, how many ranks, where to; gathering, renaming, done, failed
//   B ino 4 try rank  a rank that has come to that try; under the session of its host
//
// A gate at which no rank has a record is the same as no gate.
//
// Ranks may agree that fewer do (GateCall::at_least): then those that have come when the first timeout ends commit, if
// they are enough, and if what they require is there.
//
// A rank comes only while the try gathers, by a transaction that compares the state. So a rank that reads N records
// under one state has seen all ranks alive at once; it makes itself the one that renames, under a compare of that
// state. From then on nobody comes, and the ranks of the try are those that were counted: only they take over from one
// that died. A rank that comes later may be of the next job, after this one was killed. The caller does the rename
// itself, through the mount, with the rights and through the kernel of its process. Renaming an inode to a name that
// it has already is no error, so the directory is renamed once, whoever is asked for it again.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/context.h"
#include "base/result.h"
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
  unsigned at_least = 0;              // 1 to ranks: so many do once the time is up; 0: all must come
  std::vector<std::string> required;  // control/required_files.h: what must be there, however many come
  std::optional<unsigned> rank;       // 0 to ranks - 1; else
  std::string id;                     // a name that no other rank has
  std::chrono::milliseconds timeout{0};
};

// Any thread, any number of calls at once.
class RankGate {
 public:
  struct Options {
    kv::KvStore& store;          // commits compare this host's session
    kv::SharedKvStore& watched;  // the same keys
    // Of this host's session; 0: none is needed. Waits for no longer than `context` allows.
    std::function<Result<kv::LeaseId>(const Context& context)> lease;
    std::string host;  // for messages
    // How long a rank waits for one that renames and whose session lives. Longer than any rename takes.
    std::chrono::milliseconds rename_wait_max = std::chrono::hours(1);
  };
  // What the gate asks its caller, on the thread of the call.
  struct Caller {
    // Renames, durably; no error when the inode has its final name already, durably. kInterrupted: the caller is gone.
    // kUnavailable, kStale: nobody knows whether it has run; it is called again.
    std::function<Status()> rename;
    // Whether the directory has the final name now, durably, as all hosts see it.
    std::function<Result<bool>()> has_final_name;
    Context wanted;   // over once nobody waits for the outcome any more
    Context serving;  // over once the daemon stops: what its ranks have written goes with its session
    // Whether what the call requires lies below the directory, as all hosts see it. kFailed: says what is
    // missing. Asked where it requires something.
    std::function<Status()> check_required = {};
  };

  // The objects in `options` outlive it.
  explicit RankGate(Options options) : options_(std::move(options)) {}
  RankGate(const RankGate&) = delete;

  // Blocks until the directory is renamed (ok), or is known not to be; and until this rank counts no more. So while the
  // store is away it waits past its timeout, and after `wanted` is over. Errors:
  //   kFailed: the message names the ranks that did not come, or what is required and not there, or the one whose call
  //   ended, says why the rename failed,
  //     or that the rank that renames did not come back within rename_wait_max.
  //   kStale: the host lost its session while ranks gathered, or had none until the timeout.
  //   kInvalidArgument: this rank does not agree with the others, which get kFailed.
  //   kAlreadyExists: a later call as this rank took its place.
  //   kInterrupted: `wanted` was over; where ranks gather, the others get kFailed, unless fewer than all do.
  // A rank that calls again after an error joins the next try, or begins it.
  Status Commit(const GateCall& call, const Caller& caller);

 private:
  const Options options_;
};

}  // namespace cairnfs::control
