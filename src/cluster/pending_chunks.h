// PendingChunks: the chunks that are not known to have their copies, and what of them a Sync waits for. Not
// thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "cluster/chunk_copies.h"
#include "cluster/cluster_chunk_store.h"

namespace cairnfs::cluster {

using ChunksBySequence = std::map<uint64_t, ChunkPtr>;  // in the order in which they were put

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
  // Those that a Sync waits for: all, or those of these digests.
  const ChunksBySequence& awaited() const { return awaited_; }
  ChunksBySequence AwaitedOf(std::span<const Digest> digests) const;
  uint64_t awaited_bytes() const { return awaited_bytes_; }
  uint64_t last_sequence() const { return last_sequence_; }

 private:
  std::unordered_map<Digest, ChunkPtr, DigestHash> chunks_;
  ChunksBySequence awaited_;
  std::set<uint64_t> in_memory_;  // sequences of those with bytes
  std::set<ChunkPtr> under_replicated_;
  uint64_t last_sequence_ = 0;
  uint64_t awaited_bytes_ = 0;
};

// What one Sync waits for. Not thread-safe.
class SyncPoint {
 public:
  using Scope = ClusterChunkStore::SyncScope;
  using IsPinned = std::function<bool(const Digest&)>;

  // All that was put until now, or what of it has one of the digests `only`.
  SyncPoint(const PendingChunks& pending, Scope scope, IsPinned is_pinned,
            std::optional<std::span<const Digest>> only = std::nullopt)
      : pending_(pending), scope_(scope), last_(pending.last_sequence()), is_pinned_(std::move(is_pinned)) {
    if (only) only_ = pending.AwaitedOf(*only);
  }

  Scope scope() const { return scope_; }
  // Those that it waits for, and perhaps what was put since, or is done.
  const ChunksBySequence& Chunks();
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

  const PendingChunks& pending_;
  const Scope scope_;
  const uint64_t last_;
  const IsPinned is_pinned_;
  std::optional<ChunksBySequence> only_;
  uint64_t placed_ = 0;  // up to this one
  ClusterChunkStore::Unreadable left_out_;
};

}  // namespace cairnfs::cluster
