// PendingChunks: the chunks that are not known to have their copies, and what of them a Sync waits for. Not
// thread-safe.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "cluster/chunk_copies.h"
#include "cluster/cluster_chunk_store.h"

namespace cairnfs::cluster {

class PendingChunks {
 public:
  ChunkPtr Find(const Digest& digest) const;  // null: there is none
  // REQUIRES: none of this digest is there.
  void Add(const ChunkPtr& chunk);
  // To be called after each event of a chunk that is there: takes out one that is done.
  void Update(const ChunkPtr& chunk);
  // Syncs that begin later wait for it. Without effect where they do already.
  void AwaitBySync(const ChunkPtr& chunk);
  // Those that can be read again give up their bytes, `kept_for` after they were put at the earliest.
  void DropBytes(Clock::time_point now, Clock::duration kept_for);

  const std::unordered_map<Digest, ChunkPtr, DigestHash>& all() const { return chunks_; }
  // In an order that lasts; null: from the beginning, or there is none behind it.
  ChunkPtr NextUnderReplicated(const ChunkPtr& after) const;
  const std::set<ChunkPtr>& under_replicated() const { return under_replicated_; }
  // Those that a Sync waits for, by sequence.
  const std::map<uint64_t, ChunkPtr>& awaited() const { return awaited_; }
  // In the order in which they were put: all, or those of these digests.
  std::vector<ChunkPtr> AllAwaited() const;
  std::vector<ChunkPtr> AwaitedOf(std::span<const Digest> digests) const;
  uint64_t awaited_bytes() const { return awaited_bytes_; }

 private:
  std::unordered_map<Digest, ChunkPtr, DigestHash> chunks_;
  std::map<uint64_t, ChunkPtr> awaited_;
  std::set<uint64_t> in_memory_;  // sequences of those with bytes
  std::set<ChunkPtr> under_replicated_;
  uint64_t last_sequence_ = 0;
  uint64_t awaited_bytes_ = 0;
};

// The chunks that one Sync waits for. Not thread-safe.
class SyncPoint {
 public:
  using Scope = ClusterChunkStore::SyncScope;
  using IsPinned = std::function<bool(const Digest&)>;

  SyncPoint(std::vector<ChunkPtr> chunks, Scope scope, IsPinned is_pinned)
      : chunks_(std::move(chunks)), scope_(scope), is_pinned_(std::move(is_pinned)) {}

  Scope scope() const { return scope_; }
  // What is to lie on this node's disk lies there; a commit makes it durable. Asked again and again until it is true.
  bool IsPlaced();
  // Every chunk has its copies.
  bool HasCopies();
  // Whether a chunk that somebody needs could be placed nowhere for `time`.
  bool IsShort(Clock::time_point now, Clock::duration time) const;
  // Those that somebody has pinned and that cannot be read were left out, each with why.
  ClusterChunkStore::Unreadable TakeLeftOut() { return std::move(left_out_); }

 private:
  bool LeavesOut(const ChunkCopies& chunk);

  const std::vector<ChunkPtr> chunks_;
  const Scope scope_;
  const IsPinned is_pinned_;
  size_t placed_count_ = 0, done_count_ = 0;  // of the first chunks
  ClusterChunkStore::Unreadable left_out_;
};

}  // namespace cairnfs::cluster
