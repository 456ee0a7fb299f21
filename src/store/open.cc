// Opening a store: puts in order what a crash left, and checks that the segments which the index names are there.
#include <algorithm>
#include <set>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/aligned_memory.h"
#include "store/segment_scanner.h"
#include "store/store_impl.h"

namespace cairnfs::store {
namespace {

Failpoint open_sealed("store.open_sealed", Failpoint::Kind::kKill);

Error WithAdvice(Error error) {
  error.message +=
      "; put that file back from a copy, or: `cairnfs check --data DATA` tells what was in it, and `cairnfs check "
      "--rebuild-index --data DATA` gives that up";
  return error;
}

}  // namespace

Status LocalChunkStore::Impl::Start() {
  CAIRNFS_RETURN_IF_ERROR(index_.Load());
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<std::string> names, disk_.List());
  uint64_t next_id = std::max<uint64_t>(1, index_.loaded_counters().next_segment_id);
  for (const std::string& name : names) {
    auto parsed = ParseSegmentName(name);
    if (!parsed) continue;
    next_id = std::max(next_id, parsed->id.value + 1);
    switch (parsed->kind) {
      case SegmentName::kNew: CAIRNFS_RETURN_IF_ERROR(disk_.Remove(name)); break;
      case SegmentName::kFree: {
        CAIRNFS_ASSIGN_OR_RETURN(auto file, disk_.Open(name));
        CAIRNFS_ASSIGN_OR_RETURN(uint64_t bytes, file->Size());
        segments_.AddFree(parsed->id, bytes);
        break;
      }
      case SegmentName::kSegment: CAIRNFS_RETURN_IF_ERROR(AddUnlessDamaged(parsed->id)); break;
    }
  }
  if (header_error_ && !any_header_read_) return *header_error_;  // the disk is away, not damaged
  segment_ends_.reset();
  segments_.SetNextId(next_id);
  CAIRNFS_RETURN_IF_ERROR(CheckNamedSegments());
  if (segments_.HasReleased()) segments_.ProcessReleased(options_.free_segments_bytes_max);
  space_.Refresh();
  maintenance_ = std::thread([this] { Maintain(); });
  return {};
}

Status LocalChunkStore::Impl::AddUnlessDamaged(SegmentId id) {
  Status added = AddSegment(id);
  if (added.ok() || added.error().code != ErrorCode::kCorrupt) return added;
  if (!options_.tolerate_damage) return WithAdvice(added.error());
  unusable_.emplace(id.value, added.error().message);
  return {};
}

Status LocalChunkStore::Impl::AddSegment(SegmentId id) {
  std::string name = MakeSegmentName(SegmentName::kSegment, id);
  CAIRNFS_ASSIGN_OR_RETURN(auto file, disk_.Open(name));
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t file_bytes, file->Size());
  auto named = index_.loaded_segments().find(id.value);
  const bool is_named = named != index_.loaded_segments().end();
  if (!is_named && file_bytes < kSegmentHeaderBytes) {  // nothing is in it, and nothing misses it
    file.reset();
    DiscardUnnamed(segments_.Make({id, Generation{}, file_bytes}), file_bytes);
    return {};
  }
  auto made = MakeFromHeader(*file, id, is_named ? std::optional(named->second) : std::nullopt, file_bytes);
  if (!made.ok()) return made.error().WithContext(name);
  SegmentPtr segment = std::move(made).value();
  const SegmentHeader& header = segment->header;
  if (is_named && named->second != header.generation) {
    return MakeError(ErrorCode::kCorrupt, name + ": the file is of another generation than the index says");
  }
  segment->sealed = true;
  uint64_t end = AlignDown(file_bytes, kPageBytes);
  if (file_bytes >= header.size_bytes) {
    // Not cut to its used part yet: it was being written when the store went down, or just before.
    CAIRNFS_ASSIGN_OR_RETURN(end, FindEnd(*file, header, is_named));
    if (end == kSegmentHeaderBytes && !is_named) {
      file.reset();
      DiscardUnnamed(std::move(segment), file_bytes);
      return {};
    }
    if (end < file_bytes) CAIRNFS_RETURN_IF_ERROR(file->Truncate(end));
    open_sealed.Pass();
  }
  segment->used_end = std::max<uint64_t>(end, kSegmentHeaderBytes);
  segment->file_bytes = segment->used_end.load();
  segments_.Publish(segment);
  return {};
}

void LocalChunkStore::Impl::DiscardUnnamed(SegmentPtr segment, uint64_t file_bytes) {
  segment->file_bytes = file_bytes;
  segments_.Discard(std::move(segment));
}

// `generation`: as the index has it. A header that is damaged or cannot be read costs no chunk, for reading one needs
// only the index and the digest; the segment then counts as cut to its end.
Result<SegmentPtr> LocalChunkStore::Impl::MakeFromHeader(io::File& file, SegmentId id,
                                                         std::optional<Generation> generation, uint64_t file_bytes) {
  AlignedMemory block = AllocateAligned(kSegmentHeaderBytes);
  auto read = file.Read(0, MutableByteSpan(block.get(), kSegmentHeaderBytes));
  if (!read.ok()) {
    if (!header_error_) header_error_ = read.error();
    spdlog::error("segment {}: its header cannot be read, {}: {}", id.value,
                  generation ? "the index is believed" : "and the index does not name it", read.error().message);
    SegmentPtr segment = segments_.Make({id, generation.value_or(Generation{}), file_bytes + 1});
    segment->header_damaged = !generation;
    return segment;
  }
  any_header_read_ = true;
  auto header = DecodeSegmentHeader(ByteSpan(block.get(), *read));
  if (header.ok()) {
    if (header->id == id) return segments_.Make(*header);
    return MakeError(ErrorCode::kCorrupt, "the header is that of segment " + std::to_string(header->id.value));
  }
  // A file that short holds nothing.
  if (header.error().code != ErrorCode::kCorrupt || *read < kSegmentHeaderBytes) return header.error();
  spdlog::error(
      "{}: {}; its chunks are read by what the index says and verified by their digests, and the next collection moves "
      "them to another segment (`cairnfs gc`)",
      MakeSegmentName(SegmentName::kSegment, id), header.error().message);
  SegmentPtr segment = segments_.Make({id, generation.value_or(Generation{}), file_bytes + 1});
  segment->header_damaged = true;
  return segment;
}

// The end of the last record, or what the index knows to be synced, whichever is later, to the next block.
Result<uint64_t> LocalChunkStore::Impl::FindEnd(io::File& file, const SegmentHeader& header, bool is_named) {
  const IndexCounters& counters = index_.loaded_counters();
  uint64_t end = kSegmentHeaderBytes;
  if (counters.open_segment == header.id && counters.open_synced_end <= header.size_bytes) {
    end = std::max(end, counters.open_synced_end);
  }
  SegmentScanner scanner(file, header.generation, end, header.size_bytes, SegmentScanner::Want::kHeaders);
  while (auto record = scanner.Next()) end = record->end();
  if (is_named && !scanner.rest_is_zero()) {
    // Either an earlier use of the file left these bytes, or they are chunks whose record headers are damaged. The
    // index tells.
    CAIRNFS_ASSIGN_OR_RETURN(uint64_t named_end, FindNamedEnd(header));
    end = std::max(end, named_end);
  }
  return AlignUp(end, kPageBytes);
}

Result<uint64_t> LocalChunkStore::Impl::FindNamedEnd(const SegmentHeader& header) {
  if (!segment_ends_) CAIRNFS_RETURN_IF_ERROR(index_.FindSegmentEnds(&segment_ends_.emplace()));
  auto found = segment_ends_->find(header.id.value);
  return found == segment_ends_->end() ? 0 : std::min(found->second, header.size_bytes);
}

Status LocalChunkStore::Impl::CheckNamedSegments() {
  for (const auto& [id, generation] : index_.loaded_segments()) {
    if (segments_.Find(SegmentId{id}) || unusable_.contains(id)) continue;
    const std::string what = MakeSegmentName(SegmentName::kSegment, SegmentId{id}) + " is missing";
    if (!options_.tolerate_damage) {
      return WithAdvice(MakeError(ErrorCode::kCorrupt, what + ": the index names chunks in it"));
    }
    unusable_.emplace(id, what);
  }
  return {};
}

}  // namespace cairnfs::store
