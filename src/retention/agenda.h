// Agenda: when the policy of a directory is to be applied, and whose turn it is. Functions of what they are told, and
// of the time; they read nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/types.h"
#include "retention/report.h"

namespace cairnfs::retention {

// How a policy was last applied.
struct LastTime {
  uint64_t revision = 0;       // of what may let a checkpoint go; another one now says that something has changed
  Timestamp at;                // when it ended
  Timestamp next;              // when it is due though nothing changes
  uint32_t looks_in_vain = 0;  // one after the other
};

inline constexpr std::chrono::seconds kRest{20};         // between two times, of one directory
inline constexpr std::chrono::seconds kLookAgain{3600};  // at the latest: not all that lets one go is told

// Whether it is time. `last`: nullopt, never yet. Clocks of several hosts, which may differ, have told these times.
bool IsDue(uint64_t revision, const std::optional<LastTime>& last, Timestamp now);
// What is to be kept of one that has ended now, and began at `revision`. What stays only for now, or failed, is looked
// at again soon, and less and less often while that is in vain.
LastTime After(uint64_t revision, const std::optional<LastTime>& last, const Report& report, Timestamp now);

// Whose turn it is among those that are due. No owner has two at once, and the one who was served longest ago is next:
// whoever has many, or large ones, holds up nobody else for longer than one of his. One thread at a time.
class Agenda {
 public:
  struct Item {
    InodeId directory;
    uint32_t owner = 0;
    uint64_t revision = 0;
    std::optional<LastTime> last = {};
  };
  // Takes the place of what was due before.
  void Set(const std::vector<Item>& due);
  bool HasTurn() const;  // whether there is one to take
  // nullopt: nobody's turn. REQUIRES (unchecked): End follows each that was taken.
  std::optional<Item> Take();
  void End(const Item& item) { running_.erase(item.owner); }

 private:
  std::map<uint32_t, std::deque<Item>> due_;  // by owner; none is empty
  std::map<uint32_t, uint64_t> last_turn_;    // of owners who have something due, or run
  std::set<uint32_t> running_;                // owners
  uint64_t turns_ = 0;
};

}  // namespace cairnfs::retention
