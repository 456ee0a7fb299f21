// Checker: reads a whole filesystem, beside everything else: every name leads to an inode, link counts are right,
// every recipe can be read, every chunk that one names is there, every stored byte is what its digest says, and every
// table of metadata on the disk is what was written. In a cluster it reads the chunks and tables of this node alone,
// and waits until the chunks that are damaged are replaced by other nodes'. One check at a time, in a thread of its
// own, so that it takes none from those that wait for chunks.
#pragma once

#include <atomic>
#include <stop_token>
#include <thread>

#include "fs/collector.h"
#include "fs/copies.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

class Findings;

class Checker {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    SyncRounds& rounds;
    Collector& collection;
    Copies& copies;
  };
  explicit Checker(const Parts& parts) : at_(parts) {}
  ~Checker() { Stop(); }

  // kBusy while another check runs; kInterrupted once the context has expired, or Stop was called; kUnavailable when
  // the system gives no thread for it.
  void Request(const Context& context, Done<CheckReport> done);
  CheckProgress progress() const { return {phase_.load(), bytes_done_.load(), bytes_total_.load()}; }  // any thread
  // Gives up the check that runs and waits for its thread. Later requests are refused.
  void Stop();

 private:
  void Run(const Context& asker, const Done<CheckReport>& done);
  Result<CheckReport> Check(const Context& context);
  Status AwaitRound(const Context& context);
  Status CheckTables(const Context& context, Findings& findings);

  const Parts at_;

  std::atomic<const char*> phase_{""};
  std::atomic<uint64_t> bytes_done_{0}, bytes_total_{0};

  Mutex mutex_;
  bool running_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_ GUARDED_BY(mutex_);  // never takes mutex_ once running_ is false
  std::stop_source stop_;                  // set by Stop
};

}  // namespace cairnfs::fs
