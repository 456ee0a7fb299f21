#include "kv/history.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <stop_token>
#include <thread>

#include "base/context.h"
#include "base/start_thread.h"

namespace cairnfs::kv {
namespace {

// Memory of an event and a change beside the bytes of key and value, roughly.
constexpr size_t kEventOverheadBytes = 96;
// The most bytes that a watch is told in one call. A revision is never cut.
constexpr size_t kCallBytes = 1 << 20;

}  // namespace

// A watch and its thread. Its fields but the constant ones are guarded by the history's mutex.
class History::Watcher final : public KvWatch {
 public:
  Watcher(History& history, std::string_view begin, std::string_view end, WatchCallbacks callbacks)
      : history(history), begin(begin), end(end), callbacks(std::move(callbacks)) {}

  ~Watcher() override {
    if (!thread.joinable()) return;  // it never ran, and is in no list
    stop.request_stop();
    thread.join();
    MutexLock lock(history.mutex_);
    history.watchers_.remove(this);
  }

  bool Matches(const KvEvent& event) const { return event.key >= begin && (end.empty() || event.key < end); }
  bool Matches(const Change& change) const {
    return std::any_of(change.events.begin(), change.events.end(),
                       [this](const KvEvent& event) { return Matches(event); });
  }

  History& history;
  const std::string begin, end;
  const WatchCallbacks callbacks;
  CondVar changed;
  uint64_t told = 0;  // everything up to this revision
  bool is_lost = false;
  std::stop_source stop;
  std::thread thread;
};

History::~History() {
  MutexLock lock(mutex_);
  assert(watchers_.empty());
}

void History::Append(uint64_t revision, std::vector<KvEvent> events) {
  auto change = std::make_shared<Change>(Change{revision, kEventOverheadBytes, std::move(events)});
  for (const KvEvent& event : change->events) {
    change->bytes += kEventOverheadBytes + event.key.size() + (event.value ? event.value->size() : 0);
  }
  MutexLock lock(mutex_);
  assert(revision == revision_ + 1);
  for (Watcher* watcher : watchers_) {
    // A watch that the change does not concern moves on without waking up.
    if (watcher->told == revision_ && !watcher->is_lost && !watcher->Matches(*change)) {
      watcher->told = revision;
    } else {
      watcher->changed.NotifyOne();
    }
  }
  revision_ = revision;
  bytes_ += change->bytes;
  changes_.push_back(std::move(change));
  DropOldest();
}

void History::DropOldest() {
  while (bytes_ > bytes_max_ && !changes_.empty()) {
    bytes_ -= changes_.front()->bytes;
    forgotten_ = changes_.front()->revision;
    changes_.pop_front();
  }
}

void History::Restart(uint64_t revision) {
  MutexLock lock(mutex_);
  changes_.clear();
  bytes_ = 0;
  revision_ = forgotten_ = revision;
  for (Watcher* watcher : watchers_) {
    watcher->is_lost = true;
    watcher->changed.NotifyOne();
  }
}

Result<std::unique_ptr<KvWatch>> History::WatchFromNowOn(std::string_view begin, std::string_view end,
                                                         WatchCallbacks callbacks) {
  MutexLock lock(mutex_);
  const uint64_t now = revision_;
  lock.Unlock();
  return Watch(begin, end, {.after_revision = now, .is_lost = false}, std::move(callbacks));
}

Result<std::unique_ptr<KvWatch>> History::Watch(std::string_view begin, std::string_view end, Start start,
                                                WatchCallbacks callbacks) {
  auto watcher = std::make_unique<Watcher>(*this, begin, end, std::move(callbacks));
  watcher->told = start.after_revision;
  watcher->is_lost = start.is_lost;
  MutexLock lock(mutex_);
  CAIRNFS_ASSIGN_OR_RETURN(watcher->thread, StartThread("a watch", [this, watcher = watcher.get()] { Run(*watcher); }));
  watchers_.push_back(watcher.get());
  return std::unique_ptr<KvWatch>(std::move(watcher));
}

void History::Run(Watcher& watcher) {
  const Context context(watcher.stop.get_token());
  MutexLock lock(mutex_);
  const auto has_news = [&]() REQUIRES_LOCK(mutex_) { return watcher.is_lost || watcher.told < revision_; };
  while (context.Wait(mutex_, watcher.changed, has_news) && !context.IsStopped()) {
    if (watcher.is_lost || watcher.told < forgotten_) {
      watcher.is_lost = false;
      const uint64_t revision = watcher.told = revision_;
      lock.Unlock();
      watcher.callbacks.lost(revision);
      lock.Lock();
      continue;
    }
    auto next = std::upper_bound(changes_.begin(), changes_.end(), watcher.told,
                                 [](uint64_t told, const auto& change) { return told < change->revision; });
    std::vector<std::shared_ptr<const Change>> changes;
    for (size_t bytes = 0; next != changes_.end() && bytes < kCallBytes; ++next) {
      bytes += (*next)->bytes;
      changes.push_back(*next);
    }
    const uint64_t revision = changes.back()->revision;
    lock.Unlock();
    std::vector<KvEvent> events;
    for (const auto& change : changes) {
      std::copy_if(change->events.begin(), change->events.end(), std::back_inserter(events),
                   [&](const KvEvent& event) { return watcher.Matches(event); });
    }
    if (!events.empty()) watcher.callbacks.changed(std::move(events), revision);
    lock.Lock();
    // Nobody else changes `told`, unless the history was restarted meanwhile.
    watcher.told = std::max(watcher.told, revision);
  }
}

}  // namespace cairnfs::kv
