// Orphans: removes inodes that have no link left, once no process on any host has them open. docs/cluster/namespace.md.
//
// The host that takes the last name away asks, or the one that closes the inode last. Each host that says that nobody
// has it open refuses to open it from then on, so nobody can come in between. What is left over (of a host that died
// before it had asked all) is swept by the first node in the order of ids.
#pragma once

#include <chrono>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/cluster_host.h"
#include "fs/inode.h"

namespace cairnfs::fs {

class Orphans {
 public:
  // Answers other hosts, too. All outlive it.
  Orphans(ClusterHost& host, meta::Namespace& names, InodeTable& table, std::chrono::milliseconds sweep_every);
  ~Orphans() { Stop(); }
  void Add(InodeId inode);  // any thread, any lock held
  void Stop();              // nobody is answered, and what is not removed yet is left to the sweep
  // Inodes that this host said it does not hold.
  void Allow(InodeId inode);
  bool Refuses(InodeId inode);
  // Until those that were added before are removed, or were found open or not answered for, for some seconds at most.
  void AwaitRemoved(const Context& context);

 private:
  void Run();
  std::vector<bool> Hold(const std::vector<InodeId>& inodes);  // cluster::OrphanHandler
  void Refuse(InodeId inode);
  // Returns those about which a host gave no answer.
  std::vector<InodeId> RemoveUnheld(const Context& context, const std::vector<InodeId>& inodes);

  ClusterHost& host_;
  meta::Namespace& names_;
  InodeTable& table_;
  const std::chrono::milliseconds sweep_every_;

  std::stop_source stop_;
  Mutex mutex_;
  CondVar wake_;
  std::vector<InodeId> waiting_ GUARDED_BY(mutex_);
  uint64_t passes_begun_ GUARDED_BY(mutex_) = 0, passes_ended_ GUARDED_BY(mutex_) = 0;  // each takes all that wait
  CondVar pass_ended_;
  std::unordered_map<InodeId, Clock::time_point> refused_ GUARDED_BY(mutex_);
  Clock::time_point next_tidy_ GUARDED_BY(mutex_){};
  std::thread thread_;
};

}  // namespace cairnfs::fs
