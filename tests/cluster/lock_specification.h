// What flock and record locks of several hosts mean: the sequential specification of the locks of one file, for
// CheckLinearizability. Locks of different files, and flock and record locks of one file, have nothing to do with each
// other: PartsOf takes them apart.
//
// A host's locks are freed when its session is lost. When that is nobody sees: it is an operation of its own
// (kLoseSession), from the moment the host was cut off to the moment by which its lease has surely ended.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "linearizability.h"

namespace cairnfs::testing {

enum class LockAct {
  kTry,     // succeeds, or EAGAIN when another owner's lock is in its way
  kWait,    // succeeds once nothing is in its way; never returns otherwise
  kUnlock,  // always succeeds
  kLoseSession,
};

struct LockOperation {
  LockAct act = LockAct::kTry;
  std::string space;  // the file and the kind of lock
  // Who holds it: a process, or an open file description. An owner belongs to one session, and ends with it.
  std::string owner;
  std::string session;
  bool shared = false;
  int64_t start = 0, end = kNever;  // [start, end) in bytes; all of it for flock
  CallInterval interval;
  std::optional<int> error;  // errno, 0: success; none: nobody knows whether it took effect
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
};

}  // namespace cairnfs::testing
