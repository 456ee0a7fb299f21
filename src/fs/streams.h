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
    std::function<void(uint64_t)> freed;             // so many stored bytes lost their place in a file
    std::function<void(const InodePtr&)> lost;       // it has bytes that could not be stored
    std::function<void(InodeId)> failed;             // the log has an error of it
    std::function<void(InodeId, uint64_t)> dropped;  // so many of its bytes, unpublished
    // A chunk, or a page of a recipe, found no space. True: room is made for it.
    std::function<bool()> no_room;
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

  // The session was lost, and with it what was not published.
  void NoteDropped(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) {
    if (!inode->unlinked && hooks_.dropped) hooks_.dropped(inode->id, inode->content->UnsavedBytes());
  }
  // Puts accepted bytes into the overlay. The caller has reserved room for them, and updates size and times. True:
  // there are enough to cut, and the caller must call BeginCut after it has released the lock and answered the writer.
  [[nodiscard]] bool Accept(const InodePtr& inode, uint64_t offset, const io::Slice& data) REQUIRES_LOCK(inode->mutex);
  // Where the zeros begin that Accept at this offset would lay before the bytes: `offset` itself if it lays none.
  static uint64_t BeginOfSmallHole(const InodePtr& inode, uint64_t offset) REQUIRES_LOCK(inode->mutex);

  void BeginCut(const InodePtr& inode);

  // Cuts everything that waits. The end of a run becomes a provisional chunk, so that later bytes are cut as if this
  // call had not been. All bytes accepted so far are applied when chunk `next_chunk_id - 1` is.
  void CutAll(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for a file that was closed. Leaves runs that are shorter than a chunk and do not begin the file: the next
  // round stores them, together with what is appended until then.
  void CutClosed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for a round. Tries again what found no space, and notes the last chunk for which the round has to wait.
  // Stores up to `here_bytes_max` on this thread, which is quicker than to wake another, and lowers that by what it
  // took.
  enum class Turn { kInOrder, kFirst };  // kFirst: ahead of chunks that came before, but for those under way
  void Drain(const InodePtr& inode, uint64_t& here_bytes_max, Turn turn) EXCLUDES_LOCK(inode->mutex);
  // So many stored bytes, or bytes of recipes, have lost their place. REQUIRES (unchecked): the lock of the file is
  // held.
  void NoteReplaced(uint64_t recipe_bytes) { hooks_.freed(recipe_bytes); }
  // Has another thread cut, if there is enough and none does.
  void ScheduleCut(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // Tries again to store chunks that found no space.
  void RetryFailed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // Drops bytes of the range that are not stored, but for chunks in flight.
  void RemoveRange(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Drops runs of the overlay that are stored completely. Does nothing while chunks are in flight.
  void DropStoredRuns(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // Call this when the content was based on another record. Drops stored bytes that the overlay keeps to cut them again
  // with what follows, and the zeros of filled holes: other hosts may have written there. Chunks in flight are applied
  // without those bytes.
  void DropStoredFronts(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The newest bytes of the range are lost. Drops the older bytes there that are not stored, which must not take their
  // place.
  void Lose(const InodePtr& inode, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // Forgets everything that is not stored.
  void DiscardUnstored(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The same for a file that is gone: what it has stored counts as freed.
  void Discard(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // FileError::Set, or SetThatHeals.
  void SetError(const InodePtr& inode, const Error& error, bool heals = false) REQUIRES_LOCK(inode->mutex);
  // The file's recipe could not be stored. Noted as an error once, until ForgetRecipeError.
  void NoteRecipeError(const InodePtr& inode, const Error& error) REQUIRES_LOCK(inode->mutex);
  // The recipe is stored, or is not needed any more. An error for lack of space is cleared if nobody was told of it.
  static void ForgetRecipeError(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  chunking::ChunkParams params() const { return params_; }

 private:
  void FillSmallHole(const InodePtr& inode, uint64_t end) REQUIRES_LOCK(inode->mutex);
  static bool TakeCutting(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // false: another thread cuts, or waits
  // Chunks that the caller must Hash after it has released the lock.
  struct Here {
    uint64_t bytes_max = 0;  // of those still to come
    std::vector<std::shared_ptr<FlyingChunk>> chunks;
  };
  // All but appended runs shorter than that. `here` takes some of the chunks, unless it is null.
  void CutRuns(const InodePtr& inode, uint64_t appended_bytes_min, Here* here) REQUIRES_LOCK(inode->mutex);
  void Cut(const InodePtr& inode);
  bool CutOnce(const InodePtr& inode);
  struct Scan;
  // Carves the first chunks of the run at `start`, up to each cut. Returns what is left of the run, if anything is.
  std::map<uint64_t, Run>::iterator LaunchCuts(const InodePtr& inode, uint64_t start, Scan scan, Here* here = nullptr)
      REQUIRES_LOCK(inode->mutex);
  void Launch(const InodePtr& inode, std::shared_ptr<FlyingChunk> chunk, Here* here = nullptr)
      REQUIRES_LOCK(inode->mutex);
  void PostHash(const InodePtr& inode, const std::shared_ptr<FlyingChunk>& chunk, Turn turn = Turn::kInOrder);
  void Hash(const InodePtr& inode, const std::shared_ptr<FlyingChunk>& chunk);
  void ApplyLanded(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void NoteNoSpace(const InodePtr& inode, uint64_t chunk_id, const Error& error) REQUIRES_LOCK(inode->mutex);
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
