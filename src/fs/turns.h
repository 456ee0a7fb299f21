// Turns: what waits, by user. Users are served in turns, and each one's in the order it came. Beyond a bound the newest
// of who has most gives way: so nobody crowds out who has less.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>

namespace cairnfs::fs {

// Not thread-safe.
template <typename Item>
class Turns {
 public:
  explicit Turns(size_t items_max) : items_max_(items_max) {}

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
  // REQUIRES: something waits.
  Item Take() {
    assert(count_ > 0);
    auto user = waiting_.upper_bound(last_served_);
    if (user == waiting_.end()) user = waiting_.begin();
    last_served_ = user->first;
    Item item = std::move(user->second.front());
    user->second.pop_front();
    if (user->second.empty()) waiting_.erase(user);
    --count_;
    return item;
  }

 private:
  const size_t items_max_;
  std::map<uint32_t, std::deque<Item>> waiting_;  // none is empty
  uint32_t last_served_ = 0;
  size_t count_ = 0;
};

}  // namespace cairnfs::fs
