// Decides whether a recorded history of concurrent calls is linearizable: whether each call can be given one moment
// between its beginning and its end such that the calls, carried out one after the other in the order of these moments,
// give the results that were recorded.
//
// The algorithm is Wing and Gong's search ("Testing and verifying concurrent objects", 1993) with Lowe's memory of
// configurations seen ("Testing for linearizability", 2017), as Horn and Kroening give it in "Faster linearizability
// checking via P-compositionality" (2015). Instead of one state it carries the set of states that are possible, so a
// specification may be nondeterministic: a call whose outcome is unknown leads to several states at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace cairnfs::testing {

// The end of a call of which nobody knows whether it took effect: it may do so at any later time, or never.
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

// When a call ran, in nanoseconds of one clock. What it did and what it answered only the specification knows.
struct CallInterval {
  int64_t begin = 0;
  int64_t end = kNever;
};

// What the calls mean when they are carried out one after the other. States are strings: equal states are equal
// strings.
class Specification {
 public:
  virtual ~Specification() = default;
  virtual std::string Initial() const = 0;
  // The states in which call number `call` may leave `state`. None: it cannot have had its result there.
  virtual std::vector<std::string> Step(const std::string& state, size_t call) const = 0;
  // For the report.
  virtual std::string Describe(size_t call) const = 0;
};

enum class Linearizability {
  kYes,
  kNo,
  kUnknown,  // the search had to be given up
};

struct SearchLimits {
  size_t configurations_max = 2'000'000;  // bounds both memory (some hundred bytes each) and time
};

struct SearchReport {
  Linearizability verdict = Linearizability::kUnknown;
  size_t configurations = 0;
  // kYes: an order that explains the history. Else: the longest order found.
  std::vector<size_t> order;
  // kNo: calls that cannot follow the longest order, the first that had to among them.
  std::vector<size_t> stuck;
};

// The calls of `part` (all of them when it is empty) against `specification`. Where an object is made of independent
// ones, give each of their parts alone: the whole is linearizable if and only if each part is.
SearchReport CheckLinearizability(const Specification& specification, const std::vector<CallInterval>& calls,
                                  const std::vector<size_t>& part = {}, const SearchLimits& limits = {});

// Several lines for people: the verdict, and for kNo the order and where it ends.
std::string Explain(const Specification& specification, const std::vector<CallInterval>& calls,
                    const SearchReport& report);

}  // namespace cairnfs::testing
