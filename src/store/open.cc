// Opening a store: puts in order what a crash left, and checks that the segments which the index names are there.
#include <algorithm>
#include <optional>

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

class SegmentOpener {
 public:
  struct Parts {  // all outlive it
    io::Disk& disk;
    ChunkIndex& index;  // that is loaded
    SegmentSet& segments;
    bool tolerate_damage;
    std::map<uint64_t, std::string>& unusable;  // out, with `tolerate_damage`: segment id, what is wrong
  };
  explicit SegmentOpener(const Parts& parts) : at_(parts) {}
  // Fills in the segments.
  Status Run();

 private:
  Status AddSegment(SegmentId id);
  Result<SegmentPtr> MakeFromHeader(io::File& file, SegmentId id, std::optional<Generation> generation,
                                    uint64_t file_bytes);
  Status AddUnlessDamaged(SegmentId id);
  void DiscardUnnamed(SegmentPtr segment, uint64_t file_bytes);
  Status CheckNamedSegments();
  Result<uint64_t> FindEnd(io::File& file, const SegmentHeader& header, bool is_named);
  Result<uint64_t> FindNamedEnd(const SegmentHeader& header);

  const Parts at_;
  std::optional<ChunkIndex::SegmentEnds> segment_ends_;  // once a segment needs it
  std::optional<Error> header_error_;                    // the first of a header that could not be read
  bool any_header_read_ = false;
};

Status SegmentOpener::Run() {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<std::string> names, at_.disk.List());
  uint64_t next_id = std::max<uint64_t>(1, at_.index.loaded_counters().next_segment_id);
  for (const std::string& name : names) {
    auto parsed = ParseSegmentName(name);
    if (!parsed) continue;
    next_id = std::max(next_id, parsed->id.value + 1);
    switch (parsed->kind) {
      case SegmentName::kNew: CAIRNFS_RETURN_IF_ERROR(at_.disk.Remove(name)); break;
      case SegmentName::kFree: {
        CAIRNFS_ASSIGN_OR_RETURN(auto file, at_.disk.Open(name));
        CAIRNFS_ASSIGN_OR_RETURN(uint64_t bytes, file->Size());
        at_.segments.AddFree(parsed->id, bytes);
        break;
      }
      case SegmentName::kSegment: CAIRNFS_RETURN_IF_ERROR(AddUnlessDamaged(parsed->id)); break;
    }
  }
  if (header_error_ && !any_header_read_) return *header_error_;  // the disk is away, not damaged
  at_.segments.SetNextId(next_id);
  return CheckNamedSegments();
}

Status SegmentOpener::AddUnlessDamaged(SegmentId id) {
  Status added = AddSegment(id);
  if (added.ok() || added.error().code != ErrorCode::kCorrupt) return added;
  if (!at_.tolerate_damage) return WithAdvice(added.error());
  at_.unusable.emplace(id.value, added.error().message);
  return {};
}

Status SegmentOpener::AddSegment(SegmentId id) {
  std::string name = MakeSegmentName(SegmentName::kSegment, id);
  CAIRNFS_ASSIGN_OR_RETURN(auto file, at_.disk.Open(name));
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t file_bytes, file->Size());
  auto named = at_.index.loaded_segments().find(id.value);
  const bool is_named = named != at_.index.loaded_segments().end();
  if (!is_named && file_bytes < kSegmentHeaderBytes) {  // nothing is in it, and nothing misses it
    file.reset();
    DiscardUnnamed(at_.segments.Make({id, Generation{}, file_bytes}), file_bytes);
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
  at_.segments.Publish(segment);
  return {};
}

void SegmentOpener::DiscardUnnamed(SegmentPtr segment, uint64_t file_bytes) {
  segment->file_bytes = file_bytes;
  at_.segments.Discard(std::move(segment));
}

// `generation`: as the index has it. A header that is damaged or cannot be read costs no chunk, for reading one needs
// only the index and the digest; the segment then counts as cut to its end.
Result<SegmentPtr> SegmentOpener::MakeFromHeader(io::File& file, SegmentId id, std::optional<Generation> generation,
                                                 uint64_t file_bytes) {
  AlignedMemory block = AllocateAligned(kSegmentHeaderBytes);
  auto read = file.Read(0, MutableByteSpan(block.get(), kSegmentHeaderBytes));
  if (!read.ok()) {
    if (!header_error_) header_error_ = read.error();
    spdlog::error("segment {}: its header cannot be read, {}: {}", id.value,
                  generation ? "the index is believed" : "and the index does not name it", read.error().message);
    SegmentPtr segment = at_.segments.Make({id, generation.value_or(Generation{}), file_bytes + 1});
    segment->header_damaged = !generation;
    return segment;
  }
  any_header_read_ = true;
  auto header = DecodeSegmentHeader(ByteSpan(block.get(), *read));
  if (header.ok()) {
    if (header->id == id) return at_.segments.Make(*header);
    return MakeError(ErrorCode::kCorrupt, "the header is that of segment " + std::to_string(header->id.value));
  }
  // A file that short holds nothing.
  if (header.error().code != ErrorCode::kCorrupt || *read < kSegmentHeaderBytes) return header.error();
  spdlog::error(
      "{}: {}; its chunks are read by what the index says and verified by their digests, and the next collection moves "
      "them to another segment (`cairnfs gc`)",
      MakeSegmentName(SegmentName::kSegment, id), header.error().message);
  SegmentPtr segment = at_.segments.Make({id, generation.value_or(Generation{}), file_bytes + 1});
  segment->header_damaged = true;
  return segment;
}

// The end of the last record, or what the index knows to be synced, whichever is later, to the next block.
Result<uint64_t> SegmentOpener::FindEnd(io::File& file, const SegmentHeader& header, bool is_named) {
  const IndexCounters& counters = at_.index.loaded_counters();
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

Result<uint64_t> SegmentOpener::FindNamedEnd(const SegmentHeader& header) {
  if (!segment_ends_) CAIRNFS_RETURN_IF_ERROR(at_.index.FindSegmentEnds(&segment_ends_.emplace()));
  auto found = segment_ends_->find(header.id.value);
  return found == segment_ends_->end() ? 0 : std::min(found->second, header.size_bytes);
}

Status SegmentOpener::CheckNamedSegments() {
  for (const auto& [id, generation] : at_.index.loaded_segments()) {
    if (at_.segments.Find(SegmentId{id}) || at_.unusable.contains(id)) continue;
    const std::string what = MakeSegmentName(SegmentName::kSegment, SegmentId{id}) + " is missing";
    if (!at_.tolerate_damage) {
      return WithAdvice(MakeError(ErrorCode::kCorrupt, what + ": the index names chunks in it"));
    }
    at_.unusable.emplace(id, what);
  }
  return {};
}

}  // namespace

Status LocalChunkStore::Impl::Start() {
  CAIRNFS_RETURN_IF_ERROR(index_.Load());
  CAIRNFS_RETURN_IF_ERROR(SegmentOpener({disk_, index_, segments_, options_.tolerate_damage, unusable_}).Run());
  if (segments_.HasReleased()) segments_.ProcessReleased(options_.free_segments_bytes_max);
  space_.Refresh();
  maintenance_ = std::thread([this] { Maintain(); });
  return {};
}

}  // namespace cairnfs::store
