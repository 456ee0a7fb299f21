#include "fs/extent_merges.h"

#include "fs/tail_merge.h"
#include "store/chunk_cache.h"

namespace cairnfs::fs {

uint64_t ExtentMerges::Merge(Content& content, uint64_t size, ChunkSink& sink) const {
  uint64_t replaced = 0;
  if (content.extents.extent_count() > kInlineExtentsMax) {
    // What is not stored, or lost, must not come to look like zeros that are.
    RangeSet keep(SIZE_MAX);
    content.overlay.ForEachUnstored([&](uint64_t begin, uint64_t end) { keep.Add(begin, end); });
    for (const auto& [id, chunk] : content.flying) keep.Add(chunk->offset, chunk->offset + chunk->size);
    for (const auto& range : content.lost) keep.Add(range.begin, range.end);
    replaced = content.extents.MergeSmall(keep, sink);
  }
  return replaced + MergeTail(content, size, sink);
}

uint64_t ExtentMerges::MergeTail(Content& content, uint64_t size, ChunkSink& sink) const {
  const uint64_t grown_from = content.published_size;
  if (grown_from == 0 || size <= grown_from || !content.lost.empty()) return 0;
  const TailMerge merge{
      .size = size,
      .params = params_,
      .read = [&](const Extent& piece) { return Read(content, piece); },
      .put = [&](std::string_view text) { return Put(text, sink); },
  };
  // Where it goes on, and is in memory from its last cut on, each sync merges what it stores (TailStart).
  const auto run = content.overlay.StartOfRunTo(size);
  if (run && !EndsInShortPieces(content.extents, *run, merge)) return 0;
  return fs::MergeTail(content.extents, merge);
}

// From this host alone: a round waits for no other to read what it could leave as it is.
Result<std::string> ExtentMerges::Read(const Content& content, const Extent& piece) const {
  std::string text;
  if (piece.chunk_size == piece.length) {
    content.overlay.Visit(
        piece.offset, piece.length, [&](uint64_t, const io::Slice& slice) { text += AsText(slice.bytes()); },
        [](uint64_t, uint64_t) {});
    if (text.size() == piece.length) return text;
  }
  return store::GetText(local_, piece.digest);
}

// The next merge reads it, and it may be kept on other hosts only: so it is cached here.
Result<Digest> ExtentMerges::Put(std::string_view text, ChunkSink& sink) const {
  CAIRNFS_ASSIGN_OR_RETURN(const Digest digest, PutText(text, sink));
  store::ChunkData data;
  data.slices.push_back(io::Slice{{}, AsBytes(text).data(), text.size()});
  data.size = text.size();
  local_.cache().InsertRead(digest, std::move(data), store::Reader::kThisHost, store::Reader::kNone);
  return digest;
}

}  // namespace cairnfs::fs
