#include "client/crew.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cassert>
#include <system_error>

namespace cairnfs::client {

void Pending::Add() {
  MutexLock lock(mutex_);
  count_++;
}

void Pending::Done() {
  MutexLock lock(mutex_);
  assert(count_ > 0);
  if (--count_ == 0) changed_.NotifyAll();
}

void Pending::Wait() {
  MutexLock lock(mutex_);
  while (count_ > 0) changed_.Wait(mutex_);
}

bool FirstError::Set(const Error& error) {
  MutexLock lock(mutex_);
  if (error_.has_value()) return false;
  error_ = error;
  is_set_.store(true, std::memory_order_release);
  return true;
}

Status FirstError::Get() const {
  MutexLock lock(mutex_);
  if (error_.has_value()) return *error_;
  return {};
}

Result<std::unique_ptr<Crew>> Crew::Start(unsigned threads) {
  std::unique_ptr<Crew> crew(new Crew);
  for (unsigned i = 0; i < threads; i++) {
    auto started = StartThread([crew = crew.get(), i] { crew->Run(i); });
    if (!started.ok()) {
      if (crew->threads_.empty()) return started.error();
      break;
    }
    crew->threads_.push_back(std::move(*started));
  }
  return crew;
}

Crew::~Crew() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    posted_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Crew::Post(Pending& pending, std::function<void(unsigned)> task) {
  pending.Add();
  MutexLock lock(mutex_);
  tasks_.push_back({&pending, std::move(task)});
  posted_.NotifyOne();
}

void Crew::Run(unsigned number) {
  MutexLock lock(mutex_);
  for (;;) {
    while (tasks_.empty() && !stopping_) posted_.Wait(mutex_);
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    task.run(number);
    task.run = nullptr;
    task.pending->Done();
    lock.Lock();
  }
}

Result<std::thread> StartThread(std::function<void()> run) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Result<std::thread> result = MakeError(ErrorCode::kExhausted, "the system lets no more threads start");
  try {
    result = std::thread(std::move(run));
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

unsigned ThreadsOf(uint32_t asked) {
  if (asked != 0) return asked;
  return std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
}

}  // namespace cairnfs::client
