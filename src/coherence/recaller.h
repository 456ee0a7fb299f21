// Recaller: has other hosts give back delegations.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/thread_annotations.h"
#include "base/types.h"
#include "cluster/membership.h"
#include "kv/shared_store.h"

namespace cairnfs::coherence {

// Any thread.
class Recaller {
 public:
  struct Options {
    std::chrono::milliseconds recall_wait_max, ask_again_after;
  };
  // All outlive it.
  Recaller(kv::SharedKvStore& store, kv::KvStore& fenced, cluster::Membership& membership, const Options& options)
      : store_(store), fenced_(fenced), membership_(membership), options_(options) {}

  // Has every other host give back what it holds of these now. True when there was something to wait for.
  // kUnavailable: a host with a live lease did not within `recall_wait_max`.
  Result<bool> Recall(const Context& context, const std::set<InodeId>& directories);
  uint64_t recalled_total() const { return recalled_total_; }

 private:
  struct Holding {
    InodeId directory;
    cluster::NodeId holder;
    uint64_t revision;             // one that is taken again after it was given back has another
    uint64_t recall_revision = 0;  // of the recall key, as this host put it last
  };
  struct Changes;
  std::vector<Holding> HeldByOthers(const kv::KvSnapshot& snapshot) const;
  std::vector<std::unique_ptr<kv::KvWatch>> WatchChanges(const Context& context, const std::vector<kv::KvSpan>& spans,
                                                         uint64_t revision, const std::shared_ptr<Changes>& changes);
  // Puts the recalls. While it is not known whether this host's session lives it waits, as commits do.
  Status AskFor(const Context& context, std::span<Holding> asked);
  void TakeRecallsBack(const Context& context, const std::vector<Holding>& asked);
  Status WaitUntilGivenBack(const Context& context, const std::vector<kv::KvSpan>& spans, std::vector<Holding>& asked,
                            Changes& changes);

  kv::SharedKvStore& store_;
  kv::KvStore& fenced_;
  cluster::Membership& membership_;
  const Options options_;
  std::atomic<uint64_t> recalled_total_{0};
};

}  // namespace cairnfs::coherence
