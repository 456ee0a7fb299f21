#include "client/crew.h"

#include <algorithm>
#include <cassert>
#include <exception>

#include "base/start_thread.h"
#include "client/errors.h"

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

bool FirstError::Set(const Error& error) noexcept {
  MutexLock lock(mutex_);
  if (error_.has_value()) return false;
  error_ = CopyOf(error);
  is_set_.store(true, std::memory_order_release);
  return true;
}

Status FirstError::Get() const {
  MutexLock lock(mutex_);
  if (error_.has_value()) return *error_;
  return {};
}

Result<std::unique_ptr<Crew>> Crew::Start(unsigned threads, FirstError& errors) {
  std::unique_ptr<Crew> crew(new Crew(errors));
  crew->threads_.reserve(threads);
  for (unsigned i = 0; i < threads; i++) {
    auto started = StartThread(
        "bytes that are moved", [crew = crew.get(), i] { crew->Run(i); }, ErrorCode::kExhausted);
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

void Crew::Post(Pending& pending, std::function<Status(unsigned)> task) {
  MutexLock lock(mutex_);
  tasks_.push_back({&pending, std::move(task)});
  pending.Add();  // before a thread can take it
  posted_.NotifyOne();
}

void Crew::RunTask(Task& task, unsigned number) {
  if (errors_.IsSet()) return;
  try {
    const Status status = task.run(number);
    if (!status.ok()) errors_.Set(status.error());
  } catch (const std::exception&) {  // std::bad_alloc, or a size that no memory can have
    errors_.Set(NoMemory("a thread that moves bytes"));
  }
}

void Crew::Run(unsigned number) {
  MutexLock lock(mutex_);
  for (;;) {
    while (tasks_.empty() && !stopping_) posted_.Wait(mutex_);
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.Unlock();
    RunTask(task, number);
    task.run = nullptr;
    task.pending->Done();
    lock.Lock();
  }
}

unsigned ThreadsOf(uint32_t asked) {
  if (asked != 0) return asked;
  return std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
}

}  // namespace cairnfs::client
