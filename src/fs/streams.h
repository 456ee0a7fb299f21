// Streams: the way of accepted bytes from a file's overlay to the chunk store: cut, hash, put, apply.
//
// Bytes leave for the store as they come. Workers look for cuts without holding the inode's lock, hash and put chunks
// of one file in parallel, and apply the results in the order of the cuts.
#pragma once

#include <functional>

#include "base/task_queue.h"
#include "chunking/chunker.h"
#include "fs/inode.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

class Streams {
 public:
  // Called with the inode's lock held.
  struct Hooks {
    std::function<void(uint64_t)> freed;        // so many stored bytes lost their place in a file
    std::function<void(const InodePtr&)> lost;  // it has bytes that could not be stored
    std::function<void(InodeId)> failed;        // the log has an error of it
    std::function<void()> no_room;  // a chunk, or a page of a recipe, found no space, for the first time or again
  };
  // `local` has the reservations.
  Streams(store::ChunkStore& chunks, store::LocalChunkStore& local, const io::BufferPool& pool,
          const chunking::ChunkParams& params, TaskQueue& workers, Hooks hooks)
      : chunks_(chunks),
        local_(local),
        params_(params),
        workers_(workers),
        hooks_(std::move(hooks)),
        saver_(chunks, local, pool.count() * io::BufferPool::kBufferBytes) {}

  // Lays accepted bytes, for which the caller has reserved room, into the overlay, and has them cut once there are
  // enough: true when the caller has to call BeginCut, after it has let go of the lock and answered whoever waits. The
  // caller updates size and times.
  [[nodiscard]] bool Accept(const InodePtr& inode, uint64_t offset, const io::Slice& data) REQUIRES_LOCK(inode->mutex);

  void BeginCut(const InodePtr& inode);

  // Cuts everything that waits, tails too: tails as provisional chunks, so that a stream that goes on is cut as if
  // nothing had happened. Everything accepted so far is applied once chunk number `next_chunk_id - 1` is.
  void CutAll(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for a file that was closed, but for runs so short that they could not be a chunk of their own, unless they
  // begin the file: the next round stores them, with what others who open the file to append to it bring until then.
  void CutClosed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for a round, which starts again what found no space, and waits for all of it: notes up to which chunk. It
  // stores what is little itself sooner than another thread wakes: up to `here_bytes_max`, which is lowered by that.
  void Drain(const InodePtr& inode, uint64_t& here_bytes_max) EXCLUDES_LOCK(inode->mutex);
  // Rewrites the pieces of ranges that many small writes have cut up as larger chunks, as far as they can be read and
  // stored, so that recipes stay small. Reads and puts chunks.
  void MergeSmallExtents(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for the end of a file that has grown, of which so many bytes are stored (tail_merge.h).
  void MergeTail(const InodePtr& inode, uint64_t size) REQUIRES_LOCK(inode->mutex);
  // Cuts what is worth cutting, if nobody is at it.
  void ScheduleCut(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // Starts again what found no space.
  void RetryFailed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // Drops bytes of the range that are not stored. What is in flight stays so.
  void RemoveRange(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Gives up runs of which every byte is stored. No-op while chunks are in flight.
  void DropStoredRuns(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // Others may have written where bytes are stored already and kept to be cut anew with what follows them: those are
  // given up, and what is in flight is applied without them. Called when the content was based on another record.
  void DropStoredFronts(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The newest bytes of the range are gone and can never be stored: so are those that lie there and are not stored yet.
  void Lose(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Forgets everything that is not stored.
  void DiscardUnstored(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same, and counts what is stored as freed: the file is gone.
  void Discard(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // FileError::Set, and FileError::SetThatHeals below.
  void SetError(const InodePtr& inode, const Error& error) REQUIRES_LOCK(inode->mutex);
  // The file's recipe could not be stored. Noted as an error once, until ForgetRecipeError.
  void NoteRecipeError(const InodePtr& inode, const Error& error) REQUIRES_LOCK(inode->mutex);
  // It is stored, or no more: that it found no space is no error any more if nobody was told.
  static void ForgetRecipeError(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  chunking::ChunkParams params() const { return params_; }

 private:
  void FillSmallHole(const InodePtr& inode, uint64_t end) REQUIRES_LOCK(inode->mutex);
  static bool TakeCutting(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // false: somebody is at it, or must wait
  // Chunks that the caller is to Hash once it has let go of the lock.
  struct Here {
    uint64_t bytes_max = 0;  // of those still to come
    std::vector<std::shared_ptr<FlyingChunk>> chunks;
  };
  // All but appended runs shorter than that. `here` takes some of the chunks, unless it is null.
  void CutRuns(const InodePtr& inode, uint64_t appended_bytes_min, Here* here) REQUIRES_LOCK(inode->mutex);
  void Cut(const InodePtr& inode);
  bool CutOnce(const InodePtr& inode);
  struct FoundCut;
  static std::vector<FoundCut> FindCuts(const std::vector<io::Slice>& slices, chunking::CutFinder& finder,
                                        uint64_t& position);
  // Carves the first chunks of the run at `start`, up to each cut. Returns where the run goes on.
  uint64_t LaunchCuts(const InodePtr& inode, uint64_t start, std::vector<FoundCut> cuts, Here* here = nullptr)
      REQUIRES_LOCK(inode->mutex);
  void Launch(const InodePtr& inode, std::shared_ptr<FlyingChunk> chunk, Here* here = nullptr)
      REQUIRES_LOCK(inode->mutex);
  void Hash(const InodePtr& inode, const std::shared_ptr<FlyingChunk>& chunk);
  void ApplyLanded(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void NoteNoSpace(const InodePtr& inode, uint64_t chunk_id, const Error& error) REQUIRES_LOCK(inode->mutex);
  void SetErrorThatHeals(const InodePtr& inode, const Error& error) REQUIRES_LOCK(inode->mutex);
  // FileError::Heal, once nothing of the file lacks space.
  static void ForgetHealed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void AddLost(const InodePtr& inode, const Content::LostRange& range) REQUIRES_LOCK(inode->mutex);
  void Apply(const InodePtr& inode, const FlyingChunk& chunk, Content::Landed landed, const Status& loaded)
      REQUIRES_LOCK(inode->mutex);

  store::ChunkStore& chunks_;
  store::LocalChunkStore& local_;
  const chunking::ChunkParams params_;
  TaskQueue& workers_;
  const Hooks hooks_;
  ChunkSaver saver_;
};

}  // namespace cairnfs::fs
