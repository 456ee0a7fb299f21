// What a round joins in a file's recipe before it stores that, so that recipes stay small.
#pragma once

#include "chunking/chunker.h"
#include "fs/inode.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

class ExtentMerges {
 public:
  // `local` outlives it.
  ExtentMerges(store::LocalChunkStore& local, const chunking::ChunkParams& params) : local_(local), params_(params) {}

  // Joins the small chunks of ranges that many small writes have cut up, and those at the end of a file that grows
  // (tail_merge.h). `size`: how many of its bytes are stored. Leaves what cannot be read or stored. Returns how many
  // stored bytes lost their place in the file. Reads and puts chunks, and waits for that. REQUIRES (unchecked): the
  // lock of the file is held.
  uint64_t Merge(Content& content, uint64_t size, ChunkSink& sink) const;

 private:
  uint64_t MergeTail(Content& content, uint64_t size, ChunkSink& sink) const;
  Result<std::string> Read(const Content& content, const Extent& piece) const;
  Result<Digest> Put(std::string_view text, ChunkSink& sink) const;

  store::LocalChunkStore& local_;
  const chunking::ChunkParams params_;
};

}  // namespace cairnfs::fs
