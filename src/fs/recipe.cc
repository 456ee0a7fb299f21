#include "fs/recipe.h"

#include "base/coding.h"

namespace cairnfs::fs {
namespace {

constexpr uint8_t kInline = 1;
constexpr uint8_t kTree = 2;
constexpr uint8_t kLeafPage = 3;
constexpr uint8_t kInnerPage = 4;

Error Corrupt(const char* what) { return MakeError(ErrorCode::kCorrupt, std::string("recipe: ") + what); }

void PutExtents(Encoder& encoder, const std::vector<Extent>& extents, uint64_t base) {
  encoder.Varint(extents.size());
  uint64_t position = base;
  for (const Extent& extent : extents) {
    encoder.Varint(extent.offset - position).Varint(extent.length).Varint(extent.chunk_offset);
    encoder.Varint(extent.chunk_size).Id(extent.digest);
    position = extent.end();
  }
}

Result<std::vector<Extent>> GetExtents(Decoder& decoder, uint64_t base, uint64_t range) {
  uint64_t count = decoder.Varint();
  if (!decoder.ok() || count > decoder.remaining() / (Digest::kBytes + 4)) return Corrupt("extent count too large");
  std::vector<Extent> extents(count);
  uint64_t position = 0;  // relative to base
  for (Extent& extent : extents) {
    uint64_t gap = decoder.Varint();
    extent.length = decoder.Varint();
    uint64_t chunk_offset = decoder.Varint();
    uint64_t chunk_size = decoder.Varint();
    extent.digest = decoder.Id();
    if (!decoder.ok()) return Corrupt("cut short");
    if (gap > range - position || extent.length == 0 || extent.length > range - position - gap) {
      return Corrupt("an extent leaves its range");
    }
    if (chunk_size > kChunkSizeMax || chunk_offset > chunk_size || extent.length > chunk_size - chunk_offset) {
      return Corrupt("an extent leaves its chunk");
    }
    extent.offset = base + position + gap;
    extent.chunk_offset = static_cast<uint32_t>(chunk_offset);
    extent.chunk_size = static_cast<uint32_t>(chunk_size);
    position += gap + extent.length;
  }
  return extents;
}

void PutRefs(Encoder& encoder, const std::vector<PageRef>& refs) {
  encoder.Varint(refs.size());
  for (const PageRef& ref : refs) {
    encoder.Varint(ref.index).Varint(ref.allocated_bytes).Varint(ref.extent_count).Id(ref.digest);
  }
}

Result<std::vector<PageRef>> GetRefs(Decoder& decoder) {
  uint64_t count = decoder.Varint();
  if (!decoder.ok() || count > decoder.remaining() / (Digest::kBytes + 3)) return Corrupt("page count too large");
  std::vector<PageRef> refs(count);
  const uint64_t index_limit = kFileSizeMax / kLeafBytes + 1;
  for (size_t i = 0; i < refs.size(); i++) {
    refs[i].index = decoder.Varint();
    refs[i].allocated_bytes = decoder.Varint();
    refs[i].extent_count = decoder.Varint();
    refs[i].digest = decoder.Id();
    if (!decoder.ok()) return Corrupt("cut short");
    if (refs[i].index > index_limit || (i > 0 && refs[i].index <= refs[i - 1].index)) {
      return Corrupt("pages out of order");
    }
  }
  return refs;
}

}  // namespace

std::string EncodeExtents(const std::vector<Extent>& extents, uint64_t base) {
  Encoder encoder;
  encoder.U8(kLeafPage);
  PutExtents(encoder, extents, base);
  return encoder.Take();
}

Result<std::vector<Extent>> DecodeExtents(std::string_view text, uint64_t base, uint64_t range) {
  Decoder decoder(text);
  if (decoder.U8() != kLeafPage) return Corrupt("not a leaf page");
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<Extent> extents, GetExtents(decoder, base, range));
  if (!decoder.Finished()) return Corrupt("bytes after the end of a leaf page");
  return extents;
}

std::string EncodePageRefs(const std::vector<PageRef>& refs) {
  Encoder encoder;
  encoder.U8(kInnerPage);
  PutRefs(encoder, refs);
  return encoder.Take();
}

Result<std::vector<PageRef>> DecodePageRefs(std::string_view text) {
  Decoder decoder(text);
  if (decoder.U8() != kInnerPage) return Corrupt("not an inner page");
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<PageRef> refs, GetRefs(decoder));
  if (!decoder.Finished()) return Corrupt("bytes after the end of an inner page");
  return refs;
}

std::string Recipe::Encode() const {
  if (!is_tree && extents.empty()) return {};
  Encoder encoder;
  encoder.U8(is_tree ? kTree : kInline);
  if (is_tree) {
    PutRefs(encoder, inner);
  } else {
    PutExtents(encoder, extents, 0);
  }
  return encoder.Take();
}

Result<Recipe> Recipe::Decode(std::string_view text) {
  Recipe recipe;
  if (text.empty()) return recipe;
  Decoder decoder(text);
  switch (decoder.U8()) {
    case kInline: {
      CAIRNFS_ASSIGN_OR_RETURN(recipe.extents, GetExtents(decoder, 0, kFileSizeMax));
      break;
    }
    case kTree: {
      recipe.is_tree = true;
      CAIRNFS_ASSIGN_OR_RETURN(recipe.inner, GetRefs(decoder));
      break;
    }
    default: return Corrupt("unknown kind");
  }
  if (!decoder.Finished()) return Corrupt("bytes after the end");
  return recipe;
}

}  // namespace cairnfs::fs
