#include "cluster/reachability.h"

#include <algorithm>

#include "base/clock.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::milliseconds kFailedFor{1000};
constexpr std::chrono::milliseconds kFullFor{1000};

}  // namespace

ViewPtr Reachability::view() {
  ViewPtr base = membership_.view();
  MutexLock lock(mutex_);
  if (noticed_.empty()) return base;
  const auto now = Clock::Now();
  if (adjusted_ && base == base_ && now < valid_until_) return adjusted_;
  valid_until_ = Clock::time_point::max();
  std::vector<NodeInfo> nodes = base->nodes;
  std::erase_if(noticed_,
                [&](const auto& item) { return item.second.failed_until <= now && item.second.full_until <= now; });
  for (const auto& item : noticed_) {
    const Noticed& noticed = item.second;
    auto node = std::find_if(nodes.begin(), nodes.end(), [&](const NodeInfo& info) { return info.id == item.first; });
    if (node == nodes.end()) continue;
    if (noticed.failed_until > now) {
      if (node->state == NodeState::kUp) node->state = NodeState::kDown;
      valid_until_ = std::min(valid_until_, noticed.failed_until);
    }
    if (noticed.full_until > now) {
      node->full = true;
      valid_until_ = std::min(valid_until_, noticed.full_until);
    }
  }
  base_ = base;
  adjusted_ = noticed_.empty() ? base : std::make_shared<const View>(std::move(nodes), base->revision);
  return adjusted_;
}

void Reachability::NoteFailed(const NodeId& node) {
  MutexLock lock(mutex_);
  noticed_[node].failed_until = Clock::Now() + kFailedFor;
  adjusted_ = nullptr;
}

void Reachability::NoteFull(const NodeId& node) {
  MutexLock lock(mutex_);
  noticed_[node].full_until = Clock::Now() + kFullFor;
  adjusted_ = nullptr;
}

void Reachability::Reset() {
  MutexLock lock(mutex_);
  const auto now = Clock::Now();
  std::erase_if(noticed_, [&](const auto& item) { return item.second.full_until <= now; });
  for (auto& [node, noticed] : noticed_) noticed.failed_until = {};
  adjusted_ = nullptr;
}

}  // namespace cairnfs::cluster
