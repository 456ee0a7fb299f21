// Turns: what waits, by user. Users are served in turns, each one's in the order it came, and so many of a user's at a
// time. Beyond a bound of all the newest of who has most gives way: so nobody crowds out who has less.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace cairnfs::fs {

// Not thread-safe.
template <typename Item>
class Turns {
 public:
  Turns(size_t items_max, size_t under_way_max) : items_max_(items_max), under_way_max_(under_way_max) {}

  // Returns what gave way: nullopt where there was room.
  std::optional<Item> Add(uint32_t uid, Item item) {
    waiting_[uid].push_back(std::move(item));
    if (++count_ <= items_max_) return std::nullopt;
    auto most = waiting_.find(uid);
    for (auto user = waiting_.begin(); user != waiting_.end(); ++user) {
      if (user->second.size() > most->second.size()) most = user;
    }
    std::optional<Item> gone = std::move(most->second.back());
    most->second.pop_back();
    if (most->second.empty()) waiting_.erase(most);
    --count_;
    return gone;
  }
  struct Taken {
    uint32_t uid;
    Item item;
  };
  // It is under way until NoteDone, after which more may be taken. nullopt: nothing waits but of users who have as many
  // under way as they may.
  std::optional<Taken> Take() {
    auto user = waiting_.end();
    for (size_t looks = 0; looks < waiting_.size(); ++looks) {
      user = NextAfter(looks == 0 ? last_served_ : user->first);
      if (under_way_.count(user->first) < under_way_max_) break;
    }
    if (user == waiting_.end() || under_way_.count(user->first) >= under_way_max_) return std::nullopt;
    last_served_ = user->first;
    Taken taken{user->first, std::move(user->second.front())};
    user->second.pop_front();
    if (user->second.empty()) waiting_.erase(user);
    --count_;
    under_way_.insert(taken.uid);
    return taken;
  }
  void NoteDone(uint32_t uid) { under_way_.erase(under_way_.find(uid)); }

 private:
  using Waiting = std::map<uint32_t, std::deque<Item>>;
  typename Waiting::iterator NextAfter(uint32_t uid) {
    auto user = waiting_.upper_bound(uid);
    return user == waiting_.end() ? waiting_.begin() : user;
  }

  const size_t items_max_, under_way_max_;
  Waiting waiting_;                    // none is empty
  std::multiset<uint32_t> under_way_;  // whose
  uint32_t last_served_ = 0;
  size_t count_ = 0;
};

}  // namespace cairnfs::fs
