#include "fs/extent_map.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cairnfs::fs {
namespace {

uint64_t LeafOf(uint64_t offset) { return offset / kLeafBytes; }

// The part of `extent` that lies in [begin, end).
Extent Clip(const Extent& extent, uint64_t begin, uint64_t end) {
  Extent part = extent;
  begin = std::max(begin, extent.offset);
  end = std::min(end, extent.end());
  part.chunk_offset += static_cast<uint32_t>(begin - extent.offset);
  part.offset = begin;
  part.length = end - begin;
  return part;
}

// A leaf with more extents than this is merged, one of a file at a time; with more than the second it is not put off,
// or its page would pass what one chunk may hold.
constexpr size_t kMergeExtentsMin = 4096;
constexpr size_t kMergeExtentsMust = 16384;
constexpr int kLeavesMergedMax = 1;
constexpr uint64_t kMergedBytesMax = 256 * kKiB;

using ExtentIterator = std::vector<Extent>::const_iterator;

// The end of the pieces from `first` on that fit one merged chunk, and may be merged.
ExtentIterator EndOfGroup(ExtentIterator first, ExtentIterator end, const RangeSet& keep) {
  ExtentIterator last = first + 1;
  for (; last != end && last->end() - first->offset <= kMergedBytesMax; ++last) {
    const uint64_t hole = std::prev(last)->end();
    if (HasWholePage(hole, last->offset)) break;
    if (keep.Touches(hole, last->offset)) break;
  }
  return last;
}

// One chunk with the bytes of [first, last), zeros between them.
Result<Extent> PutMerged(ExtentIterator first, ExtentIterator last, ChunkSink& sink) {
  std::vector<Digest> digests;
  for (ExtentIterator extent = first; extent != last; ++extent) digests.push_back(extent->digest);
  sink.chunks.Prefetch(digests);
  std::string bytes(std::prev(last)->end() - first->offset, '\0');
  for (ExtentIterator extent = first; extent != last; ++extent) {
    CAIRNFS_ASSIGN_OR_RETURN(std::string chunk, store::GetText(sink.chunks, extent->digest));
    if (chunk.size() < extent->chunk_offset + extent->length) return MakeError(ErrorCode::kCorrupt, "a short chunk");
    bytes.replace(extent->offset - first->offset, extent->length, chunk, extent->chunk_offset, extent->length);
  }
  CAIRNFS_ASSIGN_OR_RETURN(Digest digest, PutText(bytes, sink));
  return Extent{first->offset, bytes.size(), digest, 0, static_cast<uint32_t>(bytes.size())};
}

Result<std::string> ReadPage(store::ChunkStore& chunks, const Digest& digest) {
  auto text = store::GetText(chunks, digest);
  if (text.ok()) return text;
  return OfNamedChunk(text.error().WithContext("a page of the recipe"));
}

}  // namespace

bool HasWholePage(uint64_t begin, uint64_t end) { return AlignUp(begin, kPageBytes) < AlignDown(end, kPageBytes); }

Result<Digest> PutText(std::string_view text, ChunkSink& sink) {
  const Digest digest = chunking::NameBytes(sink.owner, AsBytes(text));
  const io::Slice slice{{}, reinterpret_cast<const std::byte*>(text.data()), text.size()};
  CAIRNFS_ASSIGN_OR_RETURN(store::PutResult put, sink.chunks.Put(digest, {&slice, 1}));
  sink.pins.push_back(std::move(put.pin));
  return digest;
}

Error OfNamedChunk(Error error) {
  if (error.code == ErrorCode::kNotFound) error.code = ErrorCode::kCorrupt;
  return error;
}

Status ExtentMap::Load(const Recipe& recipe, store::ChunkStore& chunks) {
  for (const Extent& extent : recipe.extents) Replace(extent.offset, extent.length, &extent);
  for (auto& [index, leaf] : leaves_) leaf.dirty = false;
  for (const PageRef& ref : recipe.inner) {
    CAIRNFS_ASSIGN_OR_RETURN(std::string text, ReadPage(chunks, ref.digest));
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<PageRef> pages, DecodePageRefs(text));
    inner_[ref.index] = ref;
    for (const PageRef& page : pages) {
      if (page.index / kLeavesPerInner != ref.index) {
        return MakeError(ErrorCode::kCorrupt, "recipe: a leaf stands in the wrong inner page");
      }
      leaves_[page.index].page = page;
      allocated_bytes_ += page.allocated_bytes;
      extent_count_ += page.extent_count;
    }
  }
  return {};
}

Status ExtentMap::LoadLeaf(uint64_t index, Leaf& leaf, store::ChunkStore& chunks) {
  CAIRNFS_ASSIGN_OR_RETURN(std::string text, ReadPage(chunks, leaf.page.digest));
  CAIRNFS_ASSIGN_OR_RETURN(leaf.extents, DecodeExtents(text, index * kLeafBytes, kLeafBytes));
  leaf.loaded = true;
  return {};
}

bool ExtentMap::IsLoaded(uint64_t offset, uint64_t length) const {
  if (length == 0) return true;
  uint64_t last = LeafOf(offset + length - 1);
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end() && it->first <= last; ++it) {
    if (!it->second.loaded) return false;
  }
  return true;
}

Status ExtentMap::EnsureLoaded(uint64_t offset, uint64_t length, store::ChunkStore& chunks, size_t pages_max) {
  if (length == 0) return {};
  uint64_t last = LeafOf(offset + length - 1);
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end() && it->first <= last; ++it) {
    if (it->second.loaded) continue;
    if (pages_max-- == 0) break;
    CAIRNFS_RETURN_IF_ERROR(LoadLeaf(it->first, it->second, chunks));
  }
  return {};
}

std::vector<Digest> ExtentMap::MissingPages(uint64_t offset, uint64_t length, size_t pages_max) const {
  std::vector<Digest> missing;
  if (length == 0) return missing;
  uint64_t last = LeafOf(offset + length - 1);
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end() && it->first <= last; ++it) {
    if (missing.size() == pages_max) break;
    if (!it->second.loaded) missing.push_back(it->second.page.digest);
  }
  return missing;
}

std::vector<Digest> ExtentMap::Pages() const {
  std::vector<Digest> pages;
  for (const auto& [index, page] : inner_) pages.push_back(page.digest);
  for (const auto& [index, leaf] : leaves_) {
    if (leaf.page.extent_count > 0) pages.push_back(leaf.page.digest);
  }
  return pages;
}

void ExtentMap::ForEach(uint64_t offset, uint64_t length, const std::function<void(const Extent&)>& visit) const {
  if (length == 0) return;
  uint64_t end = offset + length;
  uint64_t last = LeafOf(end - 1);
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end() && it->first <= last; ++it) {
    const auto& extents = it->second.extents;
    auto at = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) { return e.end() <= offset; });
    for (; at != extents.end() && at->offset < end; ++at) visit(Clip(*at, offset, end));
  }
}

void ExtentMap::Replace(uint64_t offset, uint64_t length, const Extent* replacement) {
  if (length == 0) return;
  uint64_t end = offset + length;
  uint64_t first = LeafOf(offset), last = LeafOf(end - 1);
  if (replacement == nullptr) {
    // Only leaves that exist can lose anything: a hole punched in a huge sparse file must not visit every leaf number.
    for (auto it = leaves_.lower_bound(first); it != leaves_.end() && it->first <= last;) {
      ReplaceInLeaf((it++)->first, offset, end, nullptr);
    }
    return;
  }
  for (uint64_t index = first; index <= last; index++) ReplaceInLeaf(index, offset, end, replacement);
}

void ExtentMap::ReplaceInLeaf(uint64_t index, uint64_t offset, uint64_t end, const Extent* replacement) {
  uint64_t begin = std::max(offset, index * kLeafBytes);
  end = std::min(end, (index + 1) * kLeafBytes);
  auto found = leaves_.try_emplace(index).first;
  Leaf& leaf = found->second;
  const bool was_loaded = std::exchange(leaf.loaded, true);
  if (!was_loaded) {
    // Either a fresh leaf, or one that lies wholly in the range and loses everything.
    allocated_bytes_ -= leaf.page.allocated_bytes;
    extent_count_ -= leaf.page.extent_count;
  }

  auto& extents = leaf.extents;
  auto low = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) { return e.end() <= begin; });
  auto high = std::partition_point(low, extents.end(), [&](const Extent& e) { return e.offset < end; });
  if (was_loaded && low == high && replacement == nullptr) return;  // its pages stay as they are
  leaf.dirty = true;
  inner_.erase(index / kLeavesPerInner);
  Extent parts[3];
  size_t part_count = 0;
  if (low != high && low->offset < begin) parts[part_count++] = Clip(*low, low->offset, begin);
  if (replacement != nullptr) parts[part_count++] = Clip(*replacement, begin, end);
  if (low != high && std::prev(high)->end() > end) {
    parts[part_count++] = Clip(*std::prev(high), end, std::prev(high)->end());
  }
  for (auto it = low; it != high; ++it) allocated_bytes_ -= it->length;
  for (size_t i = 0; i < part_count; i++) allocated_bytes_ += parts[i].length;
  extent_count_ = extent_count_ + part_count - static_cast<size_t>(high - low);

  const size_t overlap = std::min(part_count, static_cast<size_t>(high - low));
  low = std::copy(parts, parts + overlap, low);
  extents.insert(extents.erase(low, high), parts + overlap, parts + part_count);
  if (extents.empty()) leaves_.erase(found);
}

Result<std::optional<uint64_t>> ExtentMap::FindData(uint64_t offset, uint64_t limit, store::ChunkStore& chunks) {
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end(); ++it) {
    if (it->first * kLeafBytes >= limit) break;
    if (!it->second.loaded) CAIRNFS_RETURN_IF_ERROR(LoadLeaf(it->first, it->second, chunks));
    const auto& extents = it->second.extents;
    auto at = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) { return e.end() <= offset; });
    if (at == extents.end()) continue;
    uint64_t found = std::max(offset, at->offset);
    if (found >= limit) break;
    return std::optional<uint64_t>(found);
  }
  return std::optional<uint64_t>();
}

Result<uint64_t> ExtentMap::FindHole(uint64_t offset, uint64_t limit, store::ChunkStore& chunks) {
  for (auto it = leaves_.lower_bound(LeafOf(offset)); it != leaves_.end() && offset < limit; ++it) {
    if (!it->second.loaded) CAIRNFS_RETURN_IF_ERROR(LoadLeaf(it->first, it->second, chunks));
    const auto& extents = it->second.extents;
    auto at = std::partition_point(extents.begin(), extents.end(), [&](const Extent& e) { return e.end() <= offset; });
    for (; at != extents.end(); ++at) {
      if (at->offset > offset) return offset;
      offset = at->end();
    }
    if (offset < (it->first + 1) * kLeafBytes) break;
  }
  return std::min(offset, limit);
}

uint64_t ExtentMap::MergeSmall(const RangeSet& keep, ChunkSink& sink) {
  uint64_t replaced = 0;
  int merged = 0;
  for (auto& [index, leaf] : leaves_) {
    if (!leaf.dirty || leaf.extents.size() < kMergeExtentsMin) continue;
    if (leaf.extents.size() < kMergeExtentsMust && merged >= kLeavesMergedMax) continue;
    const uint64_t of_leaf = MergeInLeaf(leaf, keep, sink);
    replaced += of_leaf;
    if (of_leaf > 0) merged++;
  }
  return replaced;
}

uint64_t ExtentMap::MergeInLeaf(Leaf& leaf, const RangeSet& keep, ChunkSink& sink) {
  uint64_t replaced = 0;
  std::vector<Extent> extents;
  bool failed = false;
  for (auto first = leaf.extents.cbegin(); first != leaf.extents.cend();) {
    const auto last = failed ? first + 1 : EndOfGroup(first, leaf.extents.cend(), keep);
    if (last - first == 1) {
      extents.push_back(*first++);
      continue;
    }
    auto merged = PutMerged(first, last, sink);
    if (merged.ok()) {
      for (; first != last; ++first) {
        replaced += first->length;
        allocated_bytes_ -= first->length;
      }
      allocated_bytes_ += merged->length;
      extents.push_back(*merged);
    } else {
      failed = true;  // the next round tries again
      extents.insert(extents.end(), first, last);
      first = last;
    }
  }
  extent_count_ -= leaf.extents.size() - extents.size();
  leaf.extents = std::move(extents);
  return replaced;
}

Result<Recipe> ExtentMap::Store(ChunkSink& sink, uint64_t& replaced_bytes) {
  Recipe recipe;
  bool all_loaded = std::all_of(leaves_.begin(), leaves_.end(), [](const auto& item) { return item.second.loaded; });
  if (all_loaded && extent_count_ <= kInlineExtentsMax) {
    for (auto& [index, leaf] : leaves_) {
      recipe.extents.insert(recipe.extents.end(), leaf.extents.begin(), leaf.extents.end());
      leaf.page = PageRef{};  // its page is named no longer and may be collected: should the file grow, store it anew
    }
    inner_.clear();
    return recipe;
  }
  recipe.is_tree = true;
  for (auto& [index, leaf] : leaves_) {
    // Inline recipes load as clean leaves that have no page yet.
    if (leaf.loaded && (leaf.dirty || leaf.page.extent_count == 0)) {
      const std::string text = EncodeExtents(leaf.extents, index * kLeafBytes);
      CAIRNFS_ASSIGN_OR_RETURN(const Digest page, PutText(text, sink));
      if (leaf.page.extent_count > 0) replaced_bytes += text.size();
      leaf.page = PageRef{index, page, 0, leaf.extents.size()};
      for (const Extent& extent : leaf.extents) leaf.page.allocated_bytes += extent.length;
      leaf.dirty = false;
      inner_.erase(index / kLeavesPerInner);
    }
  }
  for (auto it = leaves_.begin(); it != leaves_.end();) {
    uint64_t inner_index = it->first / kLeavesPerInner;
    auto end = leaves_.lower_bound((inner_index + 1) * kLeavesPerInner);
    auto stored = inner_.find(inner_index);
    if (stored == inner_.end()) {
      std::vector<PageRef> pages;
      PageRef inner{inner_index, {}};
      for (auto leaf = it; leaf != end; ++leaf) {
        pages.push_back(leaf->second.page);
        inner.allocated_bytes += leaf->second.page.allocated_bytes;
        inner.extent_count += leaf->second.page.extent_count;
      }
      CAIRNFS_ASSIGN_OR_RETURN(inner.digest, PutText(EncodePageRefs(pages), sink));
      stored = inner_.emplace(inner_index, inner).first;
    }
    recipe.inner.push_back(stored->second);
    it = end;
  }
  return recipe;
}

}  // namespace cairnfs::fs
