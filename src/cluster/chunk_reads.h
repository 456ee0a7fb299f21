// ChunkReads: the read path of a host in a cluster, docs/cluster/reading.md. Where a chunk is read from, reads that
// wait for nodes that may come back, and the repair of what was found damaged here. Any thread; nothing here blocks but
// AwaitHealing and the end.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>

#include "base/task_queue.h"
#include "cluster/healing.h"
#include "cluster/node_changes.h"
#include "cluster/remote_reader.h"
#include "cluster/shared_reads.h"
#include "cluster/waiting_reads.h"

namespace cairnfs::cluster {

class ChunkReads {
 public:
  struct Parts {  // all outlive it
    store::LocalChunkStore& local;
    RemoteReader& remote;
    GroupCommit& commit;
    Reachability& reachability;
    NodeId self;
    TaskQueue& stores;  // what may wait for this node's disk
    TaskQueue& work;
    // The bytes of a chunk that is being put.
    std::function<std::optional<store::ChunkData>(const Digest&)> find_pending;
    // This node's copy is damaged, so the chunk has one copy fewer than was confirmed.
    std::function<void(const Digest&)> on_damaged;
  };
  struct Options {
    std::chrono::milliseconds wait_max;           // of GetForReader
    std::chrono::milliseconds shared_reads_last;  // as ClusterChunkOptions
    uint64_t repair_bytes_per_second_max;
  };
  ChunkReads(Parts parts, const Options& options);

  // As those of ChunkStore.
  void Get(const Digest& digest, store::ChunkCallback done);
  void GetForReader(const Digest& digest, store::ChunkCallback done);
  void GetFromDisk(const Digest& digest, store::ChunkCallback done);
  void Prefetch(std::span<const Digest> digests);
  void EndWaits() { waiting_.Close(); }
  // As Get, of what lies on a disk, here or on another node.
  void GetStored(const Digest& digest, store::ChunkCallback done);
  // What another node asks for: the same, of this node's disk alone or being put.
  void GetForOther(const Digest& digest, store::ChunkCallback done);

  // This node's copy was found damaged, and is replaced in the background.
  void NoteDamaged(const Digest& digest);
  size_t damaged_count() const { return healing_.left(); }
  // As ClusterChunkStore.
  Status AwaitHealing(const Context& context) { return healing_.Await(context); }
  void SetRepairRate(uint64_t bytes_per_second_max) { healing_.SetRate(bytes_per_second_max); }

  void OnNodesChanged(const NodeChanges& changes);
  void Tick();  // many times per second, by one thread
  void Close();
  void AwaitEnd();  // of what is under way. REQUIRES: closed, and so is the client

 private:
  using FetchCallback = RemoteReader::FetchCallback;
  void Read(const Digest& digest, FetchCallback done);
  bool IsReadElsewhere(const Digest& digest) const;
  void ReadHereFirst(const Digest& digest, FetchCallback done);
  // Gets what the own store has answered.
  store::ChunkCallback OrReadElsewhere(const Digest& digest, FetchCallback done);
  bool Replace(const Digest& digest, const store::ChunkData& data);
  void ReplaceDamaged(const Digest& digest, Healing::Ended ended);

  const Parts parts_;
  WaitingReads waiting_;
  SharedReads shared_;
  Healing healing_;
};

}  // namespace cairnfs::cluster
