// Reads chunks: from the cache, else from the staging windows, else by one disk read that all callers at that time
// share; then verifies them. Chunks that are fetched ahead are read together where they lie side by side, as those of
// one save do.
//
// A read never waits for pool buffers: a writer that waits for the chunk may hold them. When none is free after the
// cache gave some up, and for small chunks, it takes memory of its own, and waits in line when all of that is taken
// (read_memory.h). The threads of the I/O engine only count down and post.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>

#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "store/chunk_cache.h"
#include "store/chunk_index.h"
#include "store/read_lane.h"
#include "store/segment_read.h"
#include "store/segment_writer.h"

namespace cairnfs::store {

struct ReadCounters {
  std::atomic<uint64_t> disk_read_bytes{0}, cache_hits{0}, cache_misses{0}, corrupt_chunks{0};
};

class ChunkReader {
 public:
  ChunkReader(io::BufferPool& pool, ChunkIndex& index, SegmentSet& segments, SegmentWriter& writer, ChunkCache& cache,
              unsigned verify_threads, std::function<void(const Error&)> report);
  ~ChunkReader();  // waits for the reads in flight

  std::optional<ChunkData> FindCached(const Digest& digest, Reader reader);
  void Get(const Digest& digest, Reader reader, ChunkCallback done);
  void GetFromDisk(const Digest& digest, Reader reader, ChunkCallback done);  // also where it is cached
  // Reads the chunks into the cache, unless there are many such reads already or the pool is short.
  void Prefetch(std::span<const Digest> digests, Reader reader);
  const ReadCounters& counters() const { return counters_; }

 private:
  struct Operation;
  using OperationPtr = std::shared_ptr<Operation>;
  struct Located {
    OperationPtr operation;
    OpenSegment place;
  };

  void Locate(const OperationPtr& operation);
  std::optional<OpenSegment> FindPlace(const OperationPtr& operation);  // nullopt: it has ended
  void StartAlone(const OperationPtr& operation, OpenSegment place);
  void StartTogether(std::span<const Located> run);
  bool TakeBuffers(SegmentRead& read);
  void StartWithMemory(const OperationPtr& operation);
  void CopyOrRead(const OperationPtr& operation);
  void ReadFromDisk(const OperationPtr& operation);
  void HurryIfAwaited(ReadLane::Ticket ticket, std::span<const OperationPtr> operations);
  void Verify(const OperationPtr& operation);  // on verify_
  void Retry(const OperationPtr& operation, Error error);
  ChunkData Keep(const Operation& operation, ChunkData data);  // in the cache
  void Finish(const OperationPtr& operation, Result<ChunkData> result);

  io::BufferPool& pool_;
  ChunkIndex& index_;
  SegmentSet& segments_;
  SegmentWriter& writer_;
  ChunkCache& cache_;
  const std::function<void(const Error&)> report_;
  const size_t prefetch_bytes_max_;
  ReadLane lane_;                             // of reads that nobody waits for
  const std::shared_ptr<ReadMemory> memory_;  // shared with the memory taken, which may outlive this
  ReadCounters counters_;
  std::atomic<size_t> prefetch_bytes_{0};

  Mutex mutex_;
  CondVar changed_;
  std::unordered_map<Digest, OperationPtr, DigestHash> in_flight_ GUARDED_BY(mutex_);
  size_t running_ GUARDED_BY(mutex_) = 0;

  // A task for each operation of in_flight_: those have callers, or buffers of the pool.
  TaskQueue verify_;
  TaskQueue slow_;
};

}  // namespace cairnfs::store
