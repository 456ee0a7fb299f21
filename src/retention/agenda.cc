#include "retention/agenda.h"

#include <algorithm>

namespace cairnfs::retention {
namespace {

constexpr std::chrono::seconds kClocksDiffer{300};
constexpr std::chrono::seconds kSoonMax{600};  // the longest pause for what stays only for now
constexpr unsigned kDoublingsMax = 10;

int64_t Seconds(std::chrono::seconds time) { return time.count(); }

}  // namespace

bool IsDue(uint64_t revision, const std::optional<LastTime>& last, Timestamp now) {
  if (!last) return true;
  // A clock that was set back, or another host's.
  const bool is_ahead = last->at.seconds > now.seconds + Seconds(kClocksDiffer);
  if (is_ahead || last->next.seconds > now.seconds + Seconds(kLookAgain + kClocksDiffer)) return true;
  if (now.seconds < last->at.seconds + Seconds(kRest)) return false;
  return last->revision != revision || now >= last->next;
}

LastTime After(uint64_t revision, const std::optional<LastTime>& last, const Report& report, Timestamp now) {
  const bool again = report.stays_for_now || !report.error.empty() || report.failed_count > 0;
  const bool is_same = last && last->revision == revision && report.removed_count == 0;
  LastTime time{.revision = revision, .at = now, .next = now, .looks_in_vain = 0};
  int64_t pause = Seconds(kLookAgain);
  if (again) {
    time.looks_in_vain = is_same ? last->looks_in_vain + 1 : 0;
    const unsigned doublings = std::min(time.looks_in_vain, kDoublingsMax);
    const auto pause_max = report.stays_for_now ? kSoonMax : kLookAgain;
    pause = std::min(Seconds(kRest) << doublings, Seconds(pause_max));
  }
  time.next.seconds += pause;
  // At its end or a moment later, by clocks that round.
  if (report.next && *report.next < time.next.seconds) time.next.seconds = std::max(*report.next, now.seconds) + 1;
  return time;
}

void Agenda::Set(const std::vector<Item>& due) {
  due_.clear();
  for (const Item& item : due) due_[item.owner].push_back(item);
  std::erase_if(last_turn_,
                [this](const auto& turn) { return !due_.contains(turn.first) && !running_.contains(turn.first); });
}

bool Agenda::HasTurn() const {
  return std::any_of(due_.begin(), due_.end(), [this](const auto& owner) { return !running_.contains(owner.first); });
}

std::optional<Agenda::Item> Agenda::Take() {
  auto next = due_.end();
  for (auto owner = due_.begin(); owner != due_.end(); ++owner) {
    if (running_.contains(owner->first)) continue;
    if (next == due_.end() || last_turn_[owner->first] < last_turn_[next->first]) next = owner;
  }
  if (next == due_.end()) return std::nullopt;
  const Item item = next->second.front();
  next->second.pop_front();
  if (next->second.empty()) due_.erase(next);
  last_turn_[item.owner] = ++turns_;
  running_.insert(item.owner);
  return item;
}

}  // namespace cairnfs::retention
