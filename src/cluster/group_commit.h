// Makes what this node stored durable, for all who wait at once: the segments, the index and the lists of holders.
//
// One round at a time: LocalChunkStore::Sync, and one synced write of the engine, of the lists of holders, which covers
// the index too. While it runs, the next gathers.
#pragma once

#include <functional>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "base/thread_annotations.h"
#include "cluster/holder_lists.h"
#include "store/local_chunk_store.h"

namespace cairnfs::cluster {

class GroupCommit {
 public:
  GroupCommit(store::LocalChunkStore& local, kv::KvEngine& engine);
  ~GroupCommit();  // runs what is asked for, makes durable what was noted since, then ends
  using Done = std::function<void(Status)>;

  // Puts the chunk into the local store; what that says. `holders`: its list, which was set before. A collection may
  // have deleted that meanwhile, with an earlier copy of the chunk: then it is set again.
  Result<store::PutResult> Put(const Digest& digest, std::span<const io::Slice> slices, const Holders& holders)
      EXCLUDES_LOCK(mutex_);
  // Replaces the list of who holds the chunk; seen by FindHolders at once. To be set before the chunk is put, so that
  // no chunk is durable here without a list: that is what repair goes by.
  void SetHolders(const Digest& digest, Holders holders) EXCLUDES_LOCK(mutex_);
  // As SetHolders, where no list is known: a process that died may have left a chunk without one. Whether the list that
  // there is then, this or another, is yet to become durable (Commit).
  bool SetHoldersIfNone(const Digest& digest, const Holders& holders) EXCLUDES_LOCK(mutex_);
  // Deletes the lists of those of these that are not here, not being stored or told of, and that nobody has asked for
  // since the collection began. Unsynced.
  Status ForgetHolders(const std::vector<Digest>& digests) EXCLUDES_LOCK(mutex_);
  // Nullopt: nothing is known.
  std::optional<Holders> FindHolders(const Digest& digest) EXCLUDES_LOCK(mutex_);
  // kNew: stored, and it or its list of holders is not known to be synced.
  enum class Presence { kAbsent, kNew, kDurable };
  std::vector<Presence> Find(const std::vector<Digest>& digests) EXCLUDES_LOCK(mutex_);
  // Calls `done`, on a thread of its own, once all that was noted before the call is durable. Must not block.
  void Commit(Done done) EXCLUDES_LOCK(mutex_);
  Status CommitAndWait();
  size_t uncommitted_count() const EXCLUDES_LOCK(mutex_);

 private:
  using Lists = std::unordered_map<Digest, Holders, DigestHash>;
  using Digests = std::unordered_set<Digest, DigestHash>;
  void Run();
  Status CommitOnce() EXCLUDES_LOCK(mutex_);
  Lists TakeLists() EXCLUDES_LOCK(mutex_);

  store::LocalChunkStore& local_;
  kv::KvEngine& engine_;
  mutable Mutex mutex_;
  CondVar wake_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Done> waiting_ GUARDED_BY(mutex_);
  std::unordered_multiset<Digest, DigestHash> storing_ GUARDED_BY(mutex_);  // a Put is in progress
  // Since the last round began, and of the round that runs.
  Lists lists_ GUARDED_BY(mutex_), lists_running_ GUARDED_BY(mutex_);
  Digests stored_ GUARDED_BY(mutex_), stored_running_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cairnfs::cluster
