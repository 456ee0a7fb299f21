#include "lock_specification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

namespace cairnfs::testing {
namespace {

struct Held {
  std::string owner;
  int64_t start = 0, end = kNever;
  bool shared = false;
  bool operator<(const Held& other) const {
    return std::tie(owner, start, end, shared) < std::tie(other.owner, other.start, other.end, other.shared);
  }
};

// What is held, sorted and with neighbours joined, so that equal states have equal bytes; and which owners there are.
struct LockState {
  std::vector<Held> locks;
  std::set<std::string> opened;  // by a kOpen, and not ended since
  std::set<std::string> ended;   // of those that were open from the beginning

  static LockState Decode(const std::string& bytes) {
    LockState state;
    std::istringstream stream(bytes);
    for (std::string word, name; stream >> word >> name;) {
      if (word == "opened" || word == "ended") {
        (word == "opened" ? state.opened : state.ended).insert(name);
        continue;
      }
      Held held{name};
      stream >> held.start >> held.end >> held.shared;
      state.locks.push_back(held);
    }
    return state;
  }

  std::string Encode() {
    std::sort(locks.begin(), locks.end());
    std::vector<Held> joined;
    for (const Held& held : locks) {
      if (!joined.empty() && joined.back().owner == held.owner && joined.back().end == held.start &&
          joined.back().shared == held.shared) {
        joined.back().end = held.end;
      } else {
        joined.push_back(held);
      }
    }
    std::string bytes;
    for (const std::string& owner : opened) bytes += fmt::format("opened {}\n", owner);
    for (const std::string& owner : ended) bytes += fmt::format("ended {}\n", owner);
    for (const Held& held : joined) {
      bytes += fmt::format("held {} {} {} {}\n", held.owner, held.start, held.end, int{held.shared});
    }
    return bytes;
  }

  bool IsInTheWay(const LockOperation& wanted) const {
    return std::any_of(locks.begin(), locks.end(), [&](const Held& held) {
      return held.owner != wanted.owner && held.start < wanted.end && wanted.start < held.end &&
             !(held.shared && wanted.shared);
    });
  }

  void Release(const std::string& owner, int64_t start, int64_t end) {
    std::vector<Held> left;
    for (const Held& held : locks) {
      if (held.owner != owner || held.end <= start || end <= held.start) {
        left.push_back(held);
        continue;
      }
      if (held.start < start) left.push_back({owner, held.start, start, held.shared});
      if (end < held.end) left.push_back({owner, end, held.end, held.shared});
    }
    locks = std::move(left);
  }

  void End(const std::set<std::string>& owners) {
    std::erase_if(locks, [&](const Held& held) { return owners.contains(held.owner); });
    for (const std::string& owner : owners) opened.erase(owner);
    ended.insert(owners.begin(), owners.end());
  }
};

}  // namespace

LockSpecification::LockSpecification(std::vector<LockOperation> operations) : operations_(std::move(operations)) {
  for (const LockOperation& operation : operations_) {
    calls_.push_back(operation.interval);
    if (operation.act == LockAct::kLoseSession) continue;
    owners_[operation.session].insert(operation.owner);
    if (operation.act == LockAct::kOpen) opened_by_record_.emplace(operation.space, operation.owner);
  }
}

std::vector<std::vector<size_t>> LockSpecification::PartsOf() const {
  std::map<std::string, std::vector<size_t>> parts;
  for (const LockOperation& operation : operations_) {
    if (operation.act != LockAct::kLoseSession) parts[operation.space];
  }
  for (size_t i = 0; i < operations_.size(); ++i) {
    if (operations_[i].act != LockAct::kLoseSession) {
      parts[operations_[i].space].push_back(i);
      continue;
    }
    for (auto& [space, part] : parts) part.push_back(i);
  }
  std::vector<std::vector<size_t>> result;
  for (auto& [space, part] : parts) result.push_back(std::move(part));
  return result;
}

std::vector<std::string> LockSpecification::Step(const std::string& encoded, size_t call) const {
  const LockOperation& operation = operations_[call];
  LockState state = LockState::Decode(encoded);
  if (operation.act == LockAct::kLoseSession || operation.act == LockAct::kOpen) {
    if (operation.act == LockAct::kOpen) {
      state.opened.insert(operation.owner);
    } else if (auto owners = owners_.find(operation.session); owners != owners_.end()) {
      state.End(owners->second);
    }
    std::vector<std::string> after{state.Encode()};
    if (!operation.error && after[0] != encoded) after.push_back(encoded);
    return after;
  }
  bool is_live = opened_by_record_.contains({operation.space, operation.owner})
                     ? state.opened.contains(operation.owner)
                     : !state.ended.contains(operation.owner);
  if (operation.error && *operation.error != 0) {
    bool explains = (*operation.error == EAGAIN || *operation.error == EACCES) && operation.act == LockAct::kTry &&
                    state.IsInTheWay(operation);
    return explains ? std::vector<std::string>{encoded} : std::vector<std::string>{};
  }
  std::vector<std::string> after;
  if (!operation.error) after.push_back(encoded);
  if (!is_live) {
    // Nothing of a lost session takes effect. To unlock what is not held succeeds.
    if (operation.error && operation.act == LockAct::kUnlock) after.push_back(encoded);
    return after;
  }
  if (operation.act != LockAct::kUnlock && state.IsInTheWay(operation)) return after;
  state.Release(operation.owner, operation.start, operation.end);
  if (operation.act != LockAct::kUnlock) {
    state.locks.push_back({operation.owner, operation.start, operation.end, operation.shared});
  }
  after.push_back(state.Encode());
  return after;
}

std::string LockSpecification::Describe(size_t call) const {
  const LockOperation& operation = operations_[call];
  if (operation.act == LockAct::kLoseSession) {
    return fmt::format("session {} is lost{}", operation.session, operation.error ? "" : ", perhaps");
  }
  if (operation.act == LockAct::kOpen) {
    return fmt::format("{}: open {}{}", operation.owner, operation.space, operation.error ? "" : " = ?");
  }
  const char* act = operation.act == LockAct::kTry ? "try" : operation.act == LockAct::kWait ? "wait for" : "unlock";
  std::string range = operation.end == kNever && operation.start == 0
                          ? std::string("all")
                          : fmt::format("[{}, {})", operation.start, operation.end);
  std::string result = !operation.error             ? "?"
                       : *operation.error == 0      ? "ok"
                       : *operation.error == EAGAIN ? "EAGAIN"
                                                    : fmt::format("errno {}", *operation.error);
  return fmt::format("{}: {} {}{} of {} = {}", operation.owner, act,
                     operation.act == LockAct::kUnlock ? ""
                     : operation.shared                ? "shared "
                                                       : "exclusive ",
                     range, operation.space, result);
}

}  // namespace cairnfs::testing
