// ExtentMap: the stored extents of one file in memory, loaded leaf by leaf as they are needed.
//
// Not thread-safe: the inode's lock guards it. Loading blocks on the chunk store.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "chunking/digest.h"
#include "fs/range_set.h"
#include "fs/recipe.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// What a failure to get a chunk means whose file is there: one that is nowhere is damage, for kNotFound would say that
// the file is not there.
Error OfNamedChunk(Error error);

// Whether [begin, end) is a hole to keep. Others are filled where bytes are stored, and so the file takes no more than
// with a file system whose blocks are pages.
bool HasWholePage(uint64_t begin, uint64_t end);

// Where an extent map puts chunks.
struct ChunkSink {
  store::ChunkStore& chunks;
  chunking::Owner owner;               // of the file
  std::vector<store::ChunkPin>& pins;  // get one for each chunk
};
// Puts a small chunk (a recipe page) there.
Result<Digest> PutText(std::string_view text, ChunkSink& sink);

class ExtentMap {
 public:
  ExtentMap() = default;

  // Takes over a decoded recipe. Loads the inner pages of a tree; leaves follow on demand.
  Status Load(const Recipe& recipe, store::ChunkStore& chunks);

  // True when every leaf that touches [offset, offset + length) is in memory, so that the functions below succeed
  // without the chunk store.
  bool IsLoaded(uint64_t offset, uint64_t length) const;
  // The first `pages_max` of them that are not.
  Status EnsureLoaded(uint64_t offset, uint64_t length, store::ChunkStore& chunks, size_t pages_max = SIZE_MAX);
  // The chunks that EnsureLoaded would read.
  std::vector<Digest> MissingPages(uint64_t offset, uint64_t length, size_t pages_max = SIZE_MAX) const;

  // Calls visit with each extent that touches the range, clipped to it, in file order. REQUIRES (unchecked):
  // IsLoaded(range).
  void ForEach(uint64_t offset, uint64_t length, const std::function<void(const Extent&)>& visit) const;

  // Removes what lies in the range; `replacement`, if given, takes its place (its offset and length are the range).
  // REQUIRES (unchecked): IsLoaded(range) - but leaves that lie wholly in the range need not be loaded.
  void Replace(uint64_t offset, uint64_t length, const Extent* replacement);

  // First byte >= offset that an extent covers (or not), nullopt if none below `limit`. Skips unloaded leaves by their
  // page's summary where it can, else loads them.
  Result<std::optional<uint64_t>> FindData(uint64_t offset, uint64_t limit, store::ChunkStore& chunks);
  Result<uint64_t> FindHole(uint64_t offset, uint64_t limit, store::ChunkStore& chunks);

  // The chunks of the pages that are stored.
  std::vector<Digest> Pages() const;

  uint64_t allocated_bytes() const { return allocated_bytes_; }
  uint64_t extent_count() const { return extent_count_; }

  // In changed leaves that many small writes have cut into pieces, puts neighbouring pieces, with the holes between
  // them that do not touch `keep`, as one chunk each. Returns the sum of the lengths
  // replaced. What can not be read or put stays as it is.
  uint64_t MergeSmall(const RangeSet& keep, ChunkSink& sink);

  // Writes changed pages to the store and returns the recipe as it is now. After it, no page is dirty. Adds the bytes
  // of the pages that they replace, about, to `replaced_bytes`.
  Result<Recipe> Store(ChunkSink& sink, uint64_t& replaced_bytes);

 private:
  struct Leaf {
    bool loaded = false;
    bool dirty = false;
    PageRef page;                 // as stored; meaningless for a leaf that was never stored
    std::vector<Extent> extents;  // loaded only
  };
  uint64_t MergeInLeaf(Leaf& leaf, const RangeSet& keep, ChunkSink& sink);
  Status LoadLeaf(uint64_t index, Leaf& leaf, store::ChunkStore& chunks);
  void ReplaceInLeaf(uint64_t index, uint64_t offset, uint64_t end, const Extent* replacement);

  std::map<uint64_t, Leaf> leaves_;    // by leaf number; absent: a hole
  std::map<uint64_t, PageRef> inner_;  // stored inner pages that are not stale
  uint64_t allocated_bytes_ = 0;
  uint64_t extent_count_ = 0;
};

}  // namespace cairnfs::fs
