#include "fuse/kill_watch.h"

#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

constexpr std::chrono::milliseconds kLookEvery{20};

// libfuse calls it on a receiving thread and holds the request's mutex: it must not reply, and it does not.
void LookAtCaller(fuse_req_t request, void* id) { SessionOf(request).kill_watch().NoteInterrupted(id); }

}  // namespace

struct KillWatch::State {
  struct Entry;
  explicit State(std::function<bool(pid_t thread)> the_test) : is_killed(std::move(the_test)) {}

  const std::function<bool(pid_t thread)> is_killed;
  Mutex mutex;  // nothing is called with it held
  CondVar changed;
  std::unordered_map<const void*, std::weak_ptr<Entry>> entries GUARDED_BY(mutex);  // by their addresses
  std::vector<std::weak_ptr<Entry>> interrupted GUARDED_BY(mutex);
};

// There as long as anybody has a copy of its context.
struct KillWatch::State::Entry {
  Entry(std::shared_ptr<State> the_state, pid_t the_thread) : state(std::move(the_state)), thread(the_thread) {}
  ~Entry() {
    MutexLock lock(state->mutex);
    state->entries.erase(this);
  }
  const std::shared_ptr<State> state;
  const pid_t thread;
  std::stop_source killed;
};

KillWatch::KillWatch(std::function<bool(pid_t thread)> is_killed)
    : state_(std::make_shared<State>(std::move(is_killed))),
      thread_([this](const std::stop_token& stop) { Run(*state_, Context(stop)); }) {}

Context KillWatch::MakeContext(pid_t thread, void** id) {
  auto entry = std::make_shared<State::Entry>(state_, thread);
  *id = entry.get();
  {
    MutexLock lock(state_->mutex);
    state_->entries.emplace(*id, entry);
  }
  std::stop_source* killed = &entry->killed;
  return Context().WithStop(std::shared_ptr<std::stop_source>(std::move(entry), killed));
}

Context KillWatch::ContextOf(fuse_req_t request) {
  void* id = nullptr;
  Context context = MakeContext(fuse_req_ctx(request)->pid, &id);
  fuse_req_interrupt_func(request, &LookAtCaller, id);
  return context;
}

void KillWatch::NoteInterrupted(const void* id) {
  MutexLock lock(state_->mutex);
  auto found = state_->entries.find(id);
  if (found == state_->entries.end()) return;
  state_->interrupted.push_back(found->second);
  state_->changed.NotifyAll();
}

void KillWatch::Run(State& state, const Context& context) {
  MutexLock lock(state.mutex);
  const auto has_any = [&state]() REQUIRES_LOCK(state.mutex) { return !state.interrupted.empty(); };
  while (!context.IsStopped() && context.Wait(state.mutex, state.changed, has_any)) {
    std::vector<std::weak_ptr<State::Entry>> looked_at = std::exchange(state.interrupted, {}), left;
    lock.Unlock();
    for (std::weak_ptr<State::Entry>& each : looked_at) {
      const std::shared_ptr<State::Entry> entry = each.lock();
      if (entry == nullptr) continue;
      if (state.is_killed(entry->thread)) {
        entry->killed.request_stop();
      } else {
        left.push_back(std::move(each));
      }
    }
    looked_at.clear();
    if (!left.empty()) static_cast<void>(context.Sleep(kLookEvery));
    lock.Lock();
    state.interrupted.insert(state.interrupted.end(), left.begin(), left.end());
  }
}

}  // namespace cairnfs::fuse
