#include "linearizability.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cairnfs::testing {
namespace {

using StateSet = uint32_t;  // the number of a set of states
constexpr StateSet kEmpty = 0;

// Numbers states and sets of states, and remembers each step, so that the specification is asked once for each.
class StateSets {
 public:
  explicit StateSets(const Specification& specification) : specification_(specification) {
    NumberOfSet({});
    initial_ = NumberOfSet({NumberOfState(specification.Initial())});
  }

  StateSet initial() const { return initial_; }

  StateSet Step(StateSet from, size_t call) {
    auto [place, is_new] = set_steps_.try_emplace(Key(from, call), kEmpty);
    if (!is_new) return place->second;
    std::vector<uint32_t> next;
    for (uint32_t state : sets_[from]) {
      const std::vector<uint32_t>& more = StepState(state, call);
      next.insert(next.end(), more.begin(), more.end());
    }
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    StateSet result = NumberOfSet(next);
    set_steps_[Key(from, call)] = result;
    return result;
  }

 private:
  static uint64_t Key(uint32_t state, size_t call) { return static_cast<uint64_t>(state) << 32 | call; }

  uint32_t NumberOfState(const std::string& state) {
    auto [place, is_new] = state_numbers_.try_emplace(state, static_cast<uint32_t>(states_.size()));
    if (is_new) states_.push_back(state);
    return place->second;
  }

  StateSet NumberOfSet(const std::vector<uint32_t>& states) {
    std::string name(reinterpret_cast<const char*>(states.data()), states.size() * sizeof(uint32_t));
    auto [place, is_new] = set_numbers_.try_emplace(std::move(name), static_cast<StateSet>(sets_.size()));
    if (is_new) sets_.push_back(states);
    return place->second;
  }

  const std::vector<uint32_t>& StepState(uint32_t state, size_t call) {
    auto known = state_steps_.find(Key(state, call));
    if (known != state_steps_.end()) return known->second;
    std::vector<uint32_t> next;
    for (const std::string& after : specification_.Step(std::string(states_[state]), call)) {
      next.push_back(NumberOfState(after));
    }
    return state_steps_.emplace(Key(state, call), std::move(next)).first->second;
  }

  const Specification& specification_;
  StateSet initial_ = kEmpty;
  std::vector<std::string> states_;
  std::vector<std::vector<uint32_t>> sets_;
  std::unordered_map<std::string, uint32_t> state_numbers_;
  std::unordered_map<std::string, StateSet> set_numbers_;
  std::unordered_map<uint64_t, std::vector<uint32_t>> state_steps_;
  std::unordered_map<uint64_t, StateSet> set_steps_;
};

// Which calls have been carried out, and the states that this may have led to.
struct Configuration {
  std::vector<uint64_t> done;
  StateSet states = kEmpty;
  bool operator==(const Configuration&) const = default;
};

struct ConfigurationHash {
  size_t operator()(const Configuration& configuration) const {
    uint64_t hash = configuration.states;
    for (uint64_t word : configuration.done) hash = (hash ^ word ^ (hash >> 29)) * 0x9e3779b97f4a7c15ULL;
    return hash ^ (hash >> 32);
  }
};

// One event of the history, in a doubly linked list in the order of time. Events of calls that were carried out are
// taken out of the list ("lifted") and put back when the search goes back.
struct Event {
  size_t call = 0;  // position in the part
  bool begins = false;
  Event* partner = nullptr;  // of a beginning: its end, null when the call never ended
  Event *previous = nullptr, *next = nullptr;
};

void Unlink(Event* event) {
  event->previous->next = event->next;
  if (event->next != nullptr) event->next->previous = event->previous;
}

void Relink(Event* event) {
  event->previous->next = event;
  if (event->next != nullptr) event->next->previous = event;
}

void Lift(Event* begin) {
  Unlink(begin);
  if (begin->partner != nullptr) Unlink(begin->partner);
}

void Unlift(Event* begin) {
  if (begin->partner != nullptr) Relink(begin->partner);
  Relink(begin);
}

class Search {
 public:
  Search(const Specification& specification, const std::vector<CallInterval>& calls, std::vector<size_t> part,
         const SearchLimits& limits)
      : calls_(calls), part_(std::move(part)), limits_(limits), sets_(specification) {
    MakeEvents();
    now_.done.resize((part_.size() + 63) / 64);
    now_.states = sets_.initial();
  }

  SearchReport Run() {
    report_.verdict = Decide();
    report_.configurations = seen_.size();
    return std::move(report_);
  }

 private:
  struct Chosen {
    Event* begin;
    StateSet before;
  };

  void MakeEvents() {
    struct Moment {
      int64_t time;
      bool is_end;  // of two events at one time the beginning is first: the calls may have overlapped
      size_t call;
    };
    std::vector<Moment> moments;
    for (size_t i = 0; i < part_.size(); ++i) {
      const CallInterval& call = calls_[part_[i]];
      assert(call.begin <= call.end);
      moments.push_back({call.begin, false, i});
      if (call.end == kNever) continue;
      moments.push_back({call.end, true, i});
      ++must_end_;
    }
    std::stable_sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
      return std::pair(a.time, a.is_end) < std::pair(b.time, b.is_end);
    });
    events_.resize(moments.size());
    std::vector<Event*> begins(part_.size());
    Event* last = &head_;
    for (size_t i = 0; i < moments.size(); ++i) {
      Event* event = &events_[i];
      event->call = moments[i].call;
      event->begins = !moments[i].is_end;
      if (event->begins) {
        begins[event->call] = event;
      } else {
        begins[event->call]->partner = event;
      }
      event->previous = last;
      last->next = event;
      last = event;
    }
  }

  // One turn: carries out the call that begins at `event` if it can follow and leads to something new.
  bool Choose(Event* event) {
    StateSet after = sets_.Step(now_.states, part_[event->call]);
    if (after == kEmpty) return false;
    Configuration next{now_.done, after};
    next.done[event->call / 64] |= 1ULL << event->call % 64;
    if (!seen_.insert(next).second) return false;
    chosen_.push_back({event, now_.states});
    now_ = std::move(next);
    if (event->partner != nullptr) --must_end_;
    Lift(event);
    return true;
  }

  // Takes the last call back, and says where to go on.
  Event* GoBack() {
    Chosen last = chosen_.back();
    chosen_.pop_back();
    Unlift(last.begin);
    if (last.begin->partner != nullptr) ++must_end_;
    now_.states = last.before;
    now_.done[last.begin->call / 64] &= ~(1ULL << last.begin->call % 64);
    return last.begin->next;
  }

  Linearizability Decide() {
    for (Event* event = head_.next; must_end_ > 0;) {
      if (seen_.size() > limits_.configurations_max) return Linearizability::kUnknown;
      // The list cannot run out: the end of a call that must end is still in it.
      if (event->begins) {
        event = Choose(event) ? head_.next : event->next;
        continue;
      }
      // A call ended and was not carried out: what was chosen so far does not explain the history.
      NoteStuck(event);
      if (chosen_.empty()) return Linearizability::kNo;
      event = GoBack();
    }
    report_.stuck.clear();
    NoteOrder();
    return Linearizability::kYes;
  }

  void NoteOrder() {
    report_.order.clear();
    for (const Chosen& chosen : chosen_) report_.order.push_back(part_[chosen.begin->call]);
  }

  void NoteStuck(const Event* end) {
    if (!report_.stuck.empty() && chosen_.size() <= report_.order.size()) return;
    NoteOrder();
    report_.stuck.clear();
    for (const Event* event = head_.next; event != end; event = event->next) {
      report_.stuck.push_back(part_[event->call]);
    }
  }

  const std::vector<CallInterval>& calls_;
  const std::vector<size_t> part_;
  const SearchLimits limits_;
  StateSets sets_;
  Event head_;
  std::vector<Event> events_;
  size_t must_end_ = 0;  // calls that ended and are not carried out yet
  Configuration now_;
  std::vector<Chosen> chosen_;
  std::unordered_set<Configuration, ConfigurationHash> seen_;
  SearchReport report_;
};

}  // namespace

SearchReport CheckLinearizability(const Specification& specification, const std::vector<CallInterval>& calls,
                                  const std::vector<size_t>& part, const SearchLimits& limits) {
  std::vector<size_t> all = part;
  if (all.empty()) {
    all.resize(calls.size());
    std::iota(all.begin(), all.end(), size_t{0});
  }
  return Search(specification, calls, std::move(all), limits).Run();
}

std::string Explain(const Specification& specification, const std::vector<CallInterval>& calls,
                    const SearchReport& report) {
  if (report.verdict == Linearizability::kYes) return "linearizable\n";
  std::string text = report.verdict == Linearizability::kNo
                         ? "NOT linearizable. The longest order that explains its results:\n"
                         : fmt::format("given up after {} configurations\n", report.configurations);
  if (report.verdict == Linearizability::kUnknown) return text;
  int64_t origin = kNever;
  for (const CallInterval& call : calls) origin = std::min(origin, call.begin);
  auto line = [&](size_t call) {
    auto ms = [origin](int64_t time) {
      return time == kNever ? std::string("never") : fmt::format("{:.3f}", static_cast<double>(time - origin) / 1e6);
    };
    text += fmt::format("  [{:>10} .. {:>10} ms] {}\n", ms(calls[call].begin), ms(calls[call].end),
                        specification.Describe(call));
  };
  for (size_t call : report.order) line(call);
  text += "None of these can follow:\n";
  for (size_t call : report.stuck) line(call);
  return text;
}

}  // namespace cairnfs::testing
