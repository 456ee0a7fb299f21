#include "fs/orphans.h"

#include <pthread.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::milliseconds kTryAgain{1000};
// Many cost little more than one: three round trips.
constexpr auto kGatherFor = std::chrono::milliseconds(100);
// An inode that is removed is found missing; until then, and longer than any host asks again, its number is kept.
constexpr auto kRefuseFor = std::chrono::minutes(30);
constexpr std::chrono::seconds kAwaitRemovedMax{10};
constexpr auto kTidyEvery = std::chrono::minutes(1);

}  // namespace

Orphans::Orphans(ClusterHost& host, meta::Namespace& names, InodeTable& table, std::chrono::milliseconds sweep_every)
    : host_(host), names_(names), table_(table), sweep_every_(sweep_every) {
  host_.peers().SetHandler([this](const std::vector<InodeId>& inodes) { return Hold(inodes); });
  thread_ = std::thread([this] { Run(); });
}

void Orphans::Stop() {
  if (stop_.stop_requested()) return;
  host_.peers().SetHandler({});
  stop_.request_stop();
  if (thread_.joinable()) thread_.join();
}

void Orphans::Add(InodeId inode) {
  MutexLock lock(mutex_);
  waiting_.push_back(inode);
  if (waiting_.size() == 1 || waiting_.size() == ClusterHost::kAskedAtOnce) wake_.NotifyAll();
}

void Orphans::Refuse(InodeId inode) {
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  if (now >= next_tidy_) {
    next_tidy_ = now + kTidyEvery;
    std::erase_if(refused_, [&](const auto& item) { return now - item.second > kRefuseFor; });
  }
  refused_[inode] = now;
}

void Orphans::Allow(InodeId inode) {
  MutexLock lock(mutex_);
  refused_.erase(inode);
}

void Orphans::AwaitRemoved(const Context& context) {
  MutexLock lock(mutex_);
  // What waits is taken by the next pass. A pass that runs may have what was added before it.
  const uint64_t enough = passes_begun_ + (waiting_.empty() ? 0 : 1);
  const auto is_tried = [this, enough]() REQUIRES_LOCK(mutex_) { return passes_ended_ >= enough; };
  static_cast<void>(context.WithTimeout(kAwaitRemovedMax).Wait(mutex_, pass_ended_, is_tried));
}

std::vector<bool> Orphans::Hold(const std::vector<InodeId>& inodes) {
  std::vector<bool> held;
  for (InodeId id : inodes) {
    // Refused first: whoever opens it counts itself in first, and then asks whether that is refused.
    Refuse(id);
    InodePtr inode = table_.Find(id);
    bool is_open = false;
    if (inode) {
      MutexLock lock(inode->mutex);
      is_open = inode->open_count > 0;
    }
    if (is_open) {
      Allow(id);
      // Asks again once it is closed. One that is to get a name yet, or has it by now, is left to the sweep.
      if (!inode->made_without_name) table_.MarkUnlinked(id, 0);
    }
    held.push_back(is_open);
  }
  return held;
}

bool Orphans::Refuses(InodeId inode) {
  MutexLock lock(mutex_);
  return refused_.contains(inode);
}

std::vector<InodeId> Orphans::RemoveUnheld(const Context& context, const std::vector<InodeId>& inodes) {
  std::vector<InodeId> left;
  for (size_t first = 0; first < inodes.size(); first += ClusterHost::kAskedAtOnce) {
    const size_t end = std::min(inodes.size(), first + ClusterHost::kAskedAtOnce);
    std::vector<InodeId> asked;
    const std::vector<InodeId> some(inodes.begin() + static_cast<ptrdiff_t>(first),
                                    inodes.begin() + static_cast<ptrdiff_t>(end));
    // Who has it open here asks again when it is closed.
    const std::vector<bool> here = Hold(some);
    for (size_t i = 0; i < some.size(); i++) {
      if (!here[i]) asked.push_back(some[i]);
    }
    if (asked.empty()) continue;
    auto held = host_.HeldElsewhere(context, asked);
    std::vector<InodeId> gone;
    for (size_t i = 0; held.ok() && i < asked.size(); i++) {
      if (!(*held)[i]) gone.push_back(asked[i]);
    }
    Status removed = held.ok() ? names_.RemoveOrphans(context, gone) : Status(held.error());
    if (removed.ok()) continue;
    spdlog::debug("{} deleted files are not removed yet: {}", asked.size(), removed.error().message);
    left.insert(left.end(), asked.begin(), asked.end());
  }
  return left;
}

void Orphans::Run() {
  pthread_setname_np(pthread_self(), "cairn-orphans");
  const Context context(stop_.get_token());
  auto next_sweep = Clock::Now() + sweep_every_;
  while (!context.IsStopped()) {
    std::vector<InodeId> inodes;
    {
      MutexLock lock(mutex_);
      const auto has_any = [this]() REQUIRES_LOCK(mutex_) { return !waiting_.empty(); };
      const auto has_many = [this]() REQUIRES_LOCK(mutex_) { return waiting_.size() >= ClusterHost::kAskedAtOnce; };
      if (context.WithTimeout(std::min(kTryAgain, sweep_every_)).Wait(mutex_, wake_, has_any)) {
        static_cast<void>(context.WithTimeout(kGatherFor).Wait(mutex_, wake_, has_many));
      }
      inodes.swap(waiting_);
      passes_begun_++;
    }
    if (Clock::Now() >= next_sweep) {
      next_sweep = Clock::Now() + sweep_every_;
      auto all = host_.IsFirstUp() ? names_.ListOrphans(context) : Result<std::vector<InodeId>>(std::vector<InodeId>());
      if (all.ok()) inodes.insert(inodes.end(), all->begin(), all->end());
    }
    const auto note_removed = [this](const std::vector<InodeId>& left) {
      MutexLock lock(mutex_);
      waiting_.insert(waiting_.end(), left.begin(), left.end());
      passes_ended_++;
      pass_ended_.NotifyAll();
    };
    if (inodes.empty()) {
      note_removed({});
      continue;
    }
    // The sweep lists those too about which hosts gave no answer before.
    std::sort(inodes.begin(), inodes.end());
    inodes.erase(std::unique(inodes.begin(), inodes.end()), inodes.end());
    const std::vector<InodeId> left = RemoveUnheld(context, inodes);
    note_removed(left);
    if (left.empty()) continue;
    static_cast<void>(context.Sleep(kTryAgain));
  }
}

}  // namespace cairnfs::fs
