// What flock and record locks of several hosts mean: the sequential specification of the locks of one file, for
// CheckLinearizability. Locks of different files, and flock and record locks of one file, have nothing to do with each
// other: PartsOf takes them apart.
//
// A host's locks are freed when its session is lost. When that is nobody sees: it is an operation of its own
// (kLoseSession), from the moment the host was cut off to the moment by which its lease has surely ended. A host may
// lose several sessions one after the other. Files that are opened afterwards (kOpen) belong to its next session.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "linearizability.h"

namespace cairnfs::testing {

enum class LockAct {
  kTry,     // succeeds, or EAGAIN when another owner's lock is in its way
  kWait,    // succeeds once nothing is in its way; never returns otherwise
  kUnlock,  // always succeeds
  kOpen,    // the owner's file is opened: what is locked through it belongs to the session of that moment
  kLoseSession,
};

struct LockOperation {
  LockAct act = LockAct::kTry;
  std::string space;  // the file and the kind of lock
  // Who holds it: a process, or an open file description. It belongs to the session in which its file was opened, and
  // ends with it. One that no kOpen of this space tells of is open from the beginning.
  std::string owner;
  std::string session;
  bool shared = false;
  int64_t start = 0, end = kNever;  // [start, end) in bytes; all of it for flock
  CallInterval interval;
  // errno, 0: success; none: nobody knows whether it took effect, or, kLoseSession, whether it came to that.
  std::optional<int> error;
};

class LockSpecification final : public Specification {
 public:
  explicit LockSpecification(std::vector<LockOperation> operations);

  const std::vector<CallInterval>& calls() const { return calls_; }
  // Independent parts; what happens to a session belongs to every part.
  std::vector<std::vector<size_t>> PartsOf() const;

  std::string Initial() const override { return {}; }
  std::vector<std::string> Step(const std::string& state, size_t call) const override;
  std::string Describe(size_t call) const override;

 private:
  std::vector<LockOperation> operations_;
  std::vector<CallInterval> calls_;
  std::map<std::string, std::set<std::string>> owners_;             // by session
  std::set<std::pair<std::string, std::string>> opened_by_record_;  // (space, owner) that a kOpen tells of
};

}  // namespace cairnfs::testing
