#include "daemon/signal_waiter.h"

#include <pthread.h>

#include <utility>

#include "base/log.h"

namespace cairnfs::daemon {

SignalWaiter::SignalWaiter() {
  sigemptyset(&signals_);
  for (int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) sigaddset(&signals_, signal);
  pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

void SignalWaiter::Start() {
  thread_ = std::thread([this] {
    while (!ending_.load()) {
      int signal = 0;
      if (sigwait(&signals_, &signal) == 0 && (signal == SIGTERM || signal == SIGINT)) OnSignal(signal);
    }
  });
}

void SignalWaiter::WhileStarting(std::function<void()> before_end) {
  MutexLock lock(mutex_);
  before_end_ = std::move(before_end);
}

void SignalWaiter::Hold() {
  MutexLock lock(mutex_);
  is_held_ = true;
}

void SignalWaiter::OnStop(std::function<void()> on_stop) {
  MutexLock lock(mutex_);
  on_stop_ = std::move(on_stop);
  if (std::exchange(was_asked_, false)) on_stop_();
}

void SignalWaiter::End() {
  if (!thread_.joinable()) return;
  ending_.store(true);
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void SignalWaiter::OnSignal(int signal) {
  const char* name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
  MutexLock lock(mutex_);
  if (on_stop_) {
    spdlog::info("{} received: unmounting", name);
    return on_stop_();
  }
  if (is_held_) {
    was_asked_ = true;
    return;
  }
  spdlog::info("{} received while starting: ending", name);
  if (before_end_) before_end_();
  ::signal(signal, SIG_DFL);
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, signal);
  raise(signal);
  pthread_sigmask(SIG_UNBLOCK, &only, nullptr);  // it ends the process here
}

}  // namespace cairnfs::daemon
