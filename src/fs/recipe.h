// Recipes: which extents make up a file, and how they are written down. docs/formats/recipe.md has the byte tables.
//
// A recipe is either inline (the extents themselves) or a tree of content-addressed pages, each for a range of the
// file: leaf pages of kLeafBytes of file, inner pages of kLeavesPerInner leaves, and a list of inner pages in the
// file's record. Bytes that no extent covers are zero.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::fs {

struct Extent {
  uint64_t offset = 0;        // in the file
  uint64_t length = 0;        // > 0
  Digest digest;              // of the whole chunk
  uint32_t chunk_offset = 0;  // where the extent begins in the chunk
  uint32_t chunk_size = 0;    // chunk_offset + length <= chunk_size

  uint64_t end() const { return offset + length; }
  bool operator==(const Extent&) const = default;
};

inline constexpr uint64_t kLeafBytes = 64 * kMiB;
inline constexpr uint64_t kLeavesPerInner = 256;
inline constexpr size_t kInlineExtentsMax = 32;
inline constexpr uint32_t kChunkSizeMax = 64 * kMiB;  // what a decoder accepts; cuts are far smaller

// One child of an inner page or of the record's list.
struct PageRef {
  uint64_t index = 0;  // leaf number of the file, or inner number of the file
  Digest digest;
  uint64_t allocated_bytes = 0;  // sum of extent lengths below
  uint64_t extent_count = 0;
  bool operator==(const PageRef&) const = default;
};

// Extents in file order, not overlapping, all within [base, base + range). The encoding holds offsets relative to base.
std::string EncodeExtents(const std::vector<Extent>& extents, uint64_t base);
Result<std::vector<Extent>> DecodeExtents(std::string_view text, uint64_t base, uint64_t range);
std::string EncodePageRefs(const std::vector<PageRef>& refs);
Result<std::vector<PageRef>> DecodePageRefs(std::string_view text);

// The recipe field of a FileRecord: empty (no extents), inline extents, or the list of inner pages.
struct Recipe {
  bool is_tree = false;
  std::vector<Extent> extents;  // !is_tree
  std::vector<PageRef> inner;   // is_tree

  std::string Encode() const;
  static Result<Recipe> Decode(std::string_view text);
};

}  // namespace cairnfs::fs
