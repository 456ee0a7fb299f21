#include "fs/descriptor_looks.h"

#include <linux/close_range.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/thread_annotations.h"
#include "fs/turns.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kWaitingMax = 4096;  // looks without a thread

Error MayBeOpen() { return MakeError(ErrorCode::kBusy, "its process has it open for writing, or may have"); }

// From here on this thread has descriptors of its own, and none yet.
void LeaveDescriptors() { static_cast<void>(syscall(SYS_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE)); }

}  // namespace

struct DescriptorLooks::State {
  struct Item {
    uint32_t thread;
    InodeId inode;
    SyncRounds::Answer answer;
  };
  State(TaskQueue& the_waiters, Look the_look)
      : look(std::move(the_look)),
        waiters(the_waiters),
        waiting(std::make_unique<Turns<Item>>(kWaitingMax, kThreadsOfUser)) {}

  const Look look;
  TaskQueue& waiters;  // not after Stop

  Mutex mutex;
  std::unique_ptr<Turns<Item>> waiting GUARDED_BY(mutex);  // null: after Stop
  unsigned threads GUARDED_BY(mutex) = 0;
};

DescriptorLooks::DescriptorLooks(const Parts& parts, Look look)
    : at_(parts), state_(std::make_shared<State>(parts.waiters, std::move(look))) {}

void DescriptorLooks::Stop() {
  std::unique_ptr<Turns<State::Item>> unanswered;
  MutexLock lock(state_->mutex);
  unanswered.swap(state_->waiting);
  lock.Unlock();
  unanswered.reset();
}

void DescriptorLooks::CheckClosed(const Caller& caller, InodeId inode, Done<void> done) {
  const SyncRounds::Answer answer = at_.waits.Within(caller.context.WithTimeout(kLookMax), MayBeOpen, std::move(done));
  {
    MutexLock lock(state_->mutex);
    if (!state_->waiting) return;
    if (auto gone = state_->waiting->Add(caller.uid, {caller.pid, inode, answer})) {
      at_.waiters.Post([gone = std::move(gone)] { gone->answer(MayBeOpen()); });
    }
    if (state_->threads == kThreads) return;
    ++state_->threads;
  }
  try {
    std::thread(&DescriptorLooks::Run, state_).detach();
  } catch (const std::system_error&) {
    MutexLock lock(state_->mutex);
    --state_->threads;  // another one takes it, or the time passes
  }
}

// Answers are given elsewhere: they use the daemon's descriptors.
void DescriptorLooks::Run(const std::shared_ptr<State>& state) {
  pthread_setname_np(pthread_self(), "cairn-looks");
  LeaveDescriptors();
  MutexLock lock(state->mutex);
  while (state->waiting) {
    const auto next = state->waiting->Take();
    if (!next) break;
    lock.Unlock();
    const bool is_open = state->look(next->item.thread, next->item.inode);
    lock.Lock();
    if (!state->waiting) break;
    state->waiting->NoteDone(next->uid);
    state->waiters.Post([answer = next->item.answer, is_open] { answer(is_open ? Status(MayBeOpen()) : Status()); });
  }
  --state->threads;
}

}  // namespace cairnfs::fs
