// The threads of one save or load, which run tasks in the order they were posted; and counting what is not done yet.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::client {

// How many tasks of a kind are not done. Any thread.
class Pending {
 public:
  void Add();
  void Done();
  void Wait();  // until there is none

 private:
  Mutex mutex_;
  CondVar changed_;
  uint64_t count_ GUARDED_BY(mutex_) = 0;
};

// The first error that any thread met. Any thread.
class FirstError {
 public:
  // True when it is the first.
  bool Set(const Error& error) noexcept;
  bool IsSet() const { return is_set_.load(std::memory_order_acquire); }
  Status Get() const;

 private:
  mutable Mutex mutex_;
  std::atomic<bool> is_set_ = false;
  std::optional<Error> error_ GUARDED_BY(mutex_);
};

class Crew {
 public:
  // `errors`, which outlives the crew, gets what tasks return. kExhausted: the system lets no thread start. Fewer than
  // asked for are enough.
  static Result<std::unique_ptr<Crew>> Start(unsigned threads, FirstError& errors);
  ~Crew();  // runs what is posted, then ends
  Crew(const Crew&) = delete;

  // Never waits. A save posts tasks for pieces that hold memory of the ring, and one for each few MiB of host tensors.
  // `task` gets the number of its thread, in [0, threads()). Once there is an error, tasks do not run. `pending` counts
  // it until it has run or will not, and is destroyed. Throws std::bad_alloc, and then has posted nothing; a task that
  // throws it is an error.
  void Post(Pending& pending, std::function<Status(unsigned)> task);
  unsigned threads() const { return static_cast<unsigned>(threads_.size()); }

 private:
  struct Task {
    Pending* pending;
    std::function<Status(unsigned)> run;
  };
  explicit Crew(FirstError& errors) : errors_(errors) {}
  void Run(unsigned number);
  void RunTask(Task& task, unsigned number);

  FirstError& errors_;
  Mutex mutex_;
  CondVar posted_;
  std::deque<Task> tasks_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

// How many threads to start where the caller asked for `asked`; 0: four, or fewer on a smaller machine.
unsigned ThreadsOf(uint32_t asked);

}  // namespace cairnfs::client
