// Refusals: commits that were refused. The last one of each directory and host is kept, and of all hosts so many, over
// restarts. docs/commits.md, "Refused commits".
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/turns.h"
#include "kv/store.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// All functions: any thread.
class Refusals {
 public:
  struct Parts {  // all outlive it, but for the queue
    meta::Namespace& names;
    kv::KvStore& kv;
    TaskQueue& queue;  // runs what is written, until Stop
  };
  // `node`: this host's id. What waits for the store ends with `until_stop`.
  Refusals(const Parts& parts, std::string node, const Context& until_stop)
      : at_(parts), node_(std::move(node)), until_stop_(until_stop) {}
  // Nothing is posted to the queue after it.
  void Stop();

  // Tells the log, and writes it in the background. Does not wait.
  void Note(meta::RefusedCommit refused);
  // Among the last few of this host since this process began.
  std::optional<meta::RefusedCommit> Last(InodeId directory) const;
  // By all hosts, the latest first. Where the store does not answer: the last few of this host since this process
  // began. May wait for the store.
  std::vector<meta::RefusedCommit> List(const Context& context);
  // The last one of the directory, by any host, as JSON. Causes are told to root and to the owner of the directory, who
  // is told of no file that he could not find by listing. kNoData: none was refused. May wait for the store.
  Result<std::string> Describe(const Caller& caller, InodeId directory);

  // Beyond it the oldest one goes of the user who has most.
  static constexpr size_t kKeptMax = 1000;

 private:
  void WriteNext();
  void Write(const meta::RefusedCommit& refused);
  // Whether the caller is told of the cause; its file becomes a path below the directory.
  bool IsFor(const Caller& caller, const meta::RefusedCommit& refused, meta::RefusalCause& cause);

  static constexpr size_t kWaitingMax = 64;  // to be written; beyond, what gives way is in the log alone
  static constexpr size_t kUnderWayMax = 1;  // of one user
  static constexpr size_t kRecentMax = 16;

  const Parts at_;
  const std::string node_;
  const Context until_stop_;
  mutable Mutex mutex_;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
  Turns<meta::RefusedCommit> waiting_ GUARDED_BY(mutex_){kWaitingMax, kUnderWayMax};
  std::deque<meta::RefusedCommit> recent_ GUARDED_BY(mutex_);  // the latest first, one of a directory
};

}  // namespace cairnfs::fs
