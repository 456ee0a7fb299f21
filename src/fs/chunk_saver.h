// ChunkSaver: stores a chunk that was cut, as a chunk of its own or as extents of chunks that are stored already.
//
// Equal data that lies in another order is cut into the same chunks, but for those at the edges. Of such a chunk the
// runs that lie in chunks saved lately become extents of these, and only the rest is put, as chunks of its own.
// docs/decisions/anchors.md.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fs/overlay.h"
#include "fs/recipe.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

struct Anchor;
class AnchorTable;
struct Author;
struct KnownRun;
class SlicedBytes;

class ChunkSaver {
 public:
  // `local` has what `chunks` keeps on this host. `pool_bytes` bounds the memory for what was saved lately.
  ChunkSaver(store::ChunkStore& chunks, store::LocalChunkStore& local, size_t pool_bytes);
  ~ChunkSaver();

  struct Saved {
    std::vector<Extent> extents;  // of the whole chunk, in order; offsets are counted from its beginning
    std::vector<store::ChunkPin> pins;
  };
  // A chunk of which an earlier provisional one holds a part is put as a whole: so a stream that is synced as it grows
  // is stored in the same chunks as others that hold the same. Errors as of ChunkStore::Put. Any thread; may read
  // stored chunks, and waits.
  Result<Saved> Save(const FlyingChunk& chunk);

 private:
  // All or a part of `chunk`, from `offset` on.
  Status PutChunk(const SlicedBytes& bytes, const Digest& digest, const FlyingChunk& chunk,
                  std::span<const Anchor> anchors, size_t offset, Saved& saved);
  // Of `chunk`, whose bytes they are.
  Status PutRest(const SlicedBytes& bytes, size_t begin, size_t end, const FlyingChunk& chunk, Saved& saved);
  void RememberRun(const Extent& run, const Author& author, std::span<const Anchor> anchors);
  std::vector<KnownRun> FindRuns(const SlicedBytes& bytes, const Digest& digest, const Author& author,
                                 std::span<const Anchor> anchors);

  store::ChunkStore& chunks_;
  store::LocalChunkStore& local_;
  const std::unique_ptr<AnchorTable> table_;
};

}  // namespace cairnfs::fs
