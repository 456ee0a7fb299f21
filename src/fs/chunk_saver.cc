#include "fs/chunk_saver.h"

#include <algorithm>

#include "chunking/digest.h"
#include "fs/anchor_table.h"
#include "fs/known_runs.h"

namespace cairnfs::fs {
namespace {

// Enough for what was saved within the last 64 GiB, where the pool is not below 1 GiB, and for an eighth more, which
// goes at once.
constexpr size_t kTableBytesMax = 18 * kMiB;
constexpr size_t kTableShareOfPool = 56;

Digest NameOf(std::span<const io::Slice> slices, chunking::Owner owner) {
  chunking::Digester digester;
  for (const io::Slice& slice : slices) digester.Update(slice.bytes());
  return chunking::NameOf(digester.Finish(), owner);
}

// REQUIRES: chunk.writer.
Author AuthorOf(const FlyingChunk& chunk) { return {*chunk.writer, chunk.owner}; }

// Those that the cut finder found, and the first and the last that a chunk can have. Too short ones have none.
std::vector<Anchor> AnchorsOf(const SlicedBytes& bytes, std::span<const uint32_t> found) {
  std::vector<Anchor> anchors;
  if (bytes.size() < kRunBytesMin) return anchors;
  anchors.reserve(found.size() + 2);
  anchors.push_back(AnchorAt(bytes, kAnchorWindowBytes));
  for (uint32_t offset : found) {
    if (offset > kAnchorWindowBytes && offset < bytes.size()) anchors.push_back(AnchorAt(bytes, offset));
  }
  anchors.push_back(AnchorAt(bytes, bytes.size()));
  return anchors;
}

}  // namespace

ChunkSaver::ChunkSaver(store::ChunkStore& chunks, store::LocalChunkStore& local, size_t pool_bytes)
    : chunks_(chunks),
      local_(local),
      table_(std::make_unique<AnchorTable>(std::min(kTableBytesMax, pool_bytes / kTableShareOfPool))) {}

ChunkSaver::~ChunkSaver() = default;

Result<ChunkSaver::Saved> ChunkSaver::Save(const FlyingChunk& chunk) {
  const SlicedBytes bytes(chunk.slices);
  const Digest digest = NameOf(chunk.slices, chunk.owner);
  const std::vector<Anchor> anchors = chunk.writer ? AnchorsOf(bytes, chunk.anchors) : std::vector<Anchor>();
  std::vector<KnownRun> runs;
  if (chunk.stored_before == 0 && chunk.writer) runs = FindRuns(bytes, digest, AuthorOf(chunk), anchors);
  Saved saved;
  if (runs.empty()) {
    CAIRNFS_RETURN_IF_ERROR(PutChunk(bytes, digest, chunk, anchors, 0, saved));
    return saved;
  }
  size_t end = 0;
  for (KnownRun& run : runs) {
    CAIRNFS_RETURN_IF_ERROR(PutRest(bytes, end, run.extent.offset, chunk, saved));
    RememberRun(run.extent, AuthorOf(chunk), anchors);
    end = run.extent.end();
    saved.extents.push_back(run.extent);
    saved.pins.push_back(std::move(run.pin));
  }
  CAIRNFS_RETURN_IF_ERROR(PutRest(bytes, end, bytes.size(), chunk, saved));
  return saved;
}

// Empty for a chunk that is there as a whole.
std::vector<KnownRun> ChunkSaver::FindRuns(const SlicedBytes& bytes, const Digest& digest, const Author& author,
                                           std::span<const Anchor> anchors) {
  const auto places = table_->FindAll(author, anchors);
  bool is_any_known = false;
  for (const auto& place : places) {
    if (place && place->digest == digest) return {};
    is_any_known |= place.has_value();
  }
  if (!is_any_known || local_.Has({&digest, 1})[0]) return {};
  return KnownRuns(bytes, author, *table_, chunks_, local_).Find(anchors, places);
}

Status ChunkSaver::PutChunk(const SlicedBytes& bytes, const Digest& digest, const FlyingChunk& chunk,
                            std::span<const Anchor> anchors, size_t offset, Saved& saved) {
  CAIRNFS_ASSIGN_OR_RETURN(store::PutResult put, chunks_.Put(digest, bytes.slices(), chunk.new_bytes));
  const auto size = static_cast<uint32_t>(bytes.size());
  if (chunk.writer) table_->Remember(AuthorOf(chunk), digest, size, anchors);
  saved.extents.push_back({offset, size, digest, 0, size});
  saved.pins.push_back(std::move(put.pin));
  return {};
}

// What lies between runs.
Status ChunkSaver::PutRest(const SlicedBytes& bytes, size_t begin, size_t end, const FlyingChunk& chunk, Saved& saved) {
  if (begin == end) return {};
  const std::vector<io::Slice> slices = bytes.Sub(begin, end);
  std::vector<uint32_t> inside;
  for (uint32_t anchor : chunk.anchors) {
    if (anchor > begin && anchor < end) inside.push_back(static_cast<uint32_t>(anchor - begin));
  }
  const SlicedBytes rest(slices);
  return PutChunk(rest, NameOf(slices, chunk.owner), chunk, AnchorsOf(rest, inside), begin, saved);
}

void ChunkSaver::RememberRun(const Extent& run, const Author& author, std::span<const Anchor> anchors) {
  std::vector<Anchor> inside;
  for (const Anchor& anchor : anchors) {
    if (anchor.offset < run.offset + kAnchorWindowBytes || anchor.offset > run.end()) continue;
    inside.push_back({static_cast<uint32_t>(anchor.offset - run.offset + run.chunk_offset), anchor.fingerprint});
  }
  table_->Remember(author, run.digest, run.chunk_size, inside);
}

}  // namespace cairnfs::fs
