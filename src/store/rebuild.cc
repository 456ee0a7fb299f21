// Rebuilding the chunk index from the segments.
//
// First every sound record gets its entry, in place of an old one or beside it. An entry that is written is right,
// whatever comes after. Old entries that no record bears out go only when all segments were read. So a rebuilding that
// ends early, for want of space too, can be begun again; and until then the store opens an index that it opened before.
// An index that it did not open, or that is not there, is marked first: otherwise a collection would free what the
// half-made one does not name. What a newer program wrote is refused, not given up.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/log.h"
#include "chunking/digest.h"
#include "store/chunk_index_format.h"
#include "store/local_chunk_store.h"
#include "store/segment_scanner.h"

namespace cairnfs::store {
namespace {

constexpr size_t kWritesPerBatch = 4096;

class IndexBuilder {
 public:
  IndexBuilder(io::Disk& disk, kv::KvEngine& engine) : disk_(disk), engine_(engine) {}

  Result<RebuildResult> Run() {
    CAIRNFS_RETURN_IF_ERROR(MarkUnlessUsable());
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<std::string> names, disk_.List());
    for (const std::string& name : names) {
      auto parsed = ParseSegmentName(name);
      if (!parsed) continue;
      counters_.next_segment_id = std::max(counters_.next_segment_id, parsed->id.value + 1);
      if (parsed->kind == SegmentName::kSegment) CAIRNFS_RETURN_IF_ERROR(AddSegment(name, parsed->id));
    }
    if (nothing_readable_ && read_error_) return *read_error_;  // the disk is away, not damaged
    CAIRNFS_RETURN_IF_ERROR(PutAside());
    CAIRNFS_RETURN_IF_ERROR(SettleOldEntries());
    writes_.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
    CAIRNFS_RETURN_IF_ERROR(Flush(kv::WriteMode::kSynced));
    result_.chunk_count = counters_.chunk_count;
    return std::move(result_);
  }

 private:
  Status MarkUnlessUsable() {
    CAIRNFS_ASSIGN_OR_RETURN(auto value, engine_.Get(kCountersKey));
    auto old = value ? DecodeCounters(*value) : Result<IndexCounters>(MakeError(ErrorCode::kNotFound, "no counters"));
    if (old.ok()) {
      counters_.next_segment_id = old->next_segment_id;
      return {};
    }
    if (old.error().code == ErrorCode::kNotSupported) return old.error();
    writes_.push_back({std::string(kCountersKey), std::string(kRebuildingValue)});
    return Flush(kv::WriteMode::kSynced);
  }

  Status Flush(kv::WriteMode mode) {
    CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes_, mode));
    writes_.clear();
    return {};
  }
  Status FlushIfMany() { return writes_.size() < kWritesPerBatch ? Status() : Flush(kv::WriteMode::kUnsynced); }

  Status AddSegment(const std::string& name, SegmentId id) {
    CAIRNFS_ASSIGN_OR_RETURN(std::shared_ptr<io::File> file, disk_.Open(name));
    FileWindow window(*file, kSegmentHeaderBytes);
    auto block = window.Load(0, kSegmentHeaderBytes, kSegmentHeaderBytes);
    if (block.ok()) {
      nothing_readable_ = false;
    } else if (!read_error_) {
      read_error_ = block.error();
    }
    CAIRNFS_ASSIGN_OR_RETURN(uint64_t file_bytes, file->Size());
    auto header = block.ok() ? DecodeSegmentHeader(*block) : Result<SegmentHeader>(block.error());
    if (!header.ok() && header.error().code == ErrorCode::kNotSupported) return header.error().WithContext(name);
    const bool is_cut = block.ok() && block->size() < kSegmentHeaderBytes;
    if (!header.ok() && !is_cut && (!block.ok() || header.error().code == ErrorCode::kCorrupt)) {
      CAIRNFS_ASSIGN_OR_RETURN(auto generation, FindGeneration(*file, id, block, file_bytes));
      if (generation) {
        result_.problems.push_back(name + ": " + header.error().message);
        header = SegmentHeader{id, *generation, file_bytes};
      }
    }
    if (!header.ok() || header->id != id) {
      aside_.emplace_back(name, header.ok() ? "the header is that of another segment" : header.error().message);
      return {};
    }
    SegmentScanner scanner(*file, header->generation, kSegmentHeaderBytes, std::min(file_bytes, header->size_bytes),
                           SegmentScanner::Want::kData);
    sound_.emplace(id.value, header->generation);
    while (auto record = scanner.Next()) CAIRNFS_RETURN_IF_ERROR(AddRecord(name, id, *record));
    if (scanner.read_error()) {
      result_.problems.push_back(name + ": " + std::to_string(scanner.unreadable_bytes()) +
                                 " bytes cannot be read: " + scanner.read_error()->message);
      spdlog::error("{}", result_.problems.back());
    }
    return {};
  }

  // For a header that is damaged or cannot be read. The old index, if there is one, has the generation too. What a
  // damaged header says is believed when the checksum of a record bears it out.
  Result<std::optional<Generation>> FindGeneration(io::File& file, SegmentId id, const Result<ByteSpan>& block,
                                                   uint64_t file_bytes) {
    CAIRNFS_ASSIGN_OR_RETURN(auto value, engine_.Get(SegmentKey(id)));
    auto generation = value ? DecodeGeneration(*value) : Result<Generation>(Generation{});
    if (value && generation.ok()) return std::optional(*generation);
    if (!block.ok()) return std::optional<Generation>();
    const Generation field = GenerationField(*block);
    SegmentScanner scanner(file, field, kSegmentHeaderBytes, file_bytes, SegmentScanner::Want::kHeaders);
    return scanner.Next() ? std::optional(field) : std::nullopt;
  }

  Status AddRecord(const std::string& name, SegmentId id, const SegmentScanner::Record& record) {
    const RecordHeader& header = record.header;
    if (header.codec != kCodecRaw || record.data.size() != header.stored_bytes ||
        !chunking::Names(header.digest, chunking::ComputeDigest(record.data))) {
      spdlog::warn("{}: the record at offset {} is not whole; left out", name, record.offset);
      return {};
    }
    Location location{id, record.offset, header.stored_bytes, header.raw_bytes, header.codec};
    if (!Count(header.digest, location)) return {};
    writes_.push_back({ChunkKey(header.digest), EncodeLocation(location)});
    return FlushIfMany();
  }

  // False when another copy of the chunk has the entry. A segment's own entry is written before the first that names
  // it.
  bool Count(const Digest& digest, const Location& location) {
    if (!seen_.insert(digest).second) return false;
    if (named_.insert(location.segment.value).second) {
      writes_.push_back({SegmentKey(location.segment), EncodeGeneration(sound_.at(location.segment.value))});
    }
    ++counters_.chunk_count;
    counters_.unique_bytes += location.raw_bytes;
    return true;
  }

  // Puts aside segments whose records cannot be told from what an earlier use of the file left. Removes none.
  Status PutAside() {
    for (const auto& [name, why] : aside_) {
      spdlog::error("{}: {}; put aside as damaged-{}", name, why, name);
      CAIRNFS_RETURN_IF_ERROR(disk_.Rename(name, "damaged-" + name));
    }
    return {};
  }

  // Deletes the old entries that nothing bears out.
  Status SettleOldEntries() {
    std::string begin(kIndexBegin);
    for (;;) {
      std::vector<kv::EngineWrite> entries;
      CAIRNFS_RETURN_IF_ERROR(Flush(kv::WriteMode::kUnsynced));
      CAIRNFS_RETURN_IF_ERROR(
          engine_.Scan(begin, kIndexEnd, nullptr, [&](std::string_view key, std::string_view value) {
            entries.push_back({std::string(key), std::string(value)});
            return entries.size() < kWritesPerBatch;
          }));
      if (entries.empty()) break;
      begin = entries.back().key + '\0';
      for (kv::EngineWrite& entry : entries) SettleOldEntry(std::move(entry.key), *entry.value);
    }
    for (SegmentId id : old_segments_) {
      if (!named_.contains(id.value)) writes_.push_back({SegmentKey(id), std::nullopt});
    }
    return {};
  }

  void SettleOldEntry(std::string key, const std::string& value) {
    if (auto id = ParseSegmentKey(key)) return old_segments_.push_back(*id);
    auto digest = ParseChunkKey(key);
    if (!digest || seen_.contains(*digest)) return;
    auto location = DecodeLocation(value);
    if (location.ok() && sound_.contains(location->segment.value) && IsThere(*digest, *location)) {
      Count(*digest, *location);
    } else {
      writes_.push_back({std::move(key), std::nullopt});
    }
  }

  // Whether the chunk's bytes are there, though its record's header is not. True when they cannot be read now: a read
  // of the chunk will tell.
  bool IsThere(const Digest& digest, const Location& location) {
    auto file = disk_.Open(MakeSegmentName(SegmentName::kSegment, location.segment));
    if (!file.ok()) return true;
    const uint64_t end = location.data_offset() + location.stored_bytes;
    FileWindow window(**file, AlignUp(location.stored_bytes, kPageBytes) + 2 * kPageBytes);
    auto data = window.Load(location.data_offset(), location.stored_bytes, end);
    if (!data.ok()) return true;
    return data->size() == location.stored_bytes && chunking::Names(digest, chunking::ComputeDigest(*data));
  }

  io::Disk& disk_;
  kv::KvEngine& engine_;
  RebuildResult result_;
  IndexCounters counters_;
  std::vector<kv::EngineWrite> writes_;
  std::unordered_set<Digest, DigestHash> seen_;             // have their entry
  std::map<uint64_t, Generation> sound_;                    // segments whose headers are
  std::unordered_set<uint64_t> named_;                      // segments that have their entry
  std::vector<SegmentId> old_segments_;                     // that had one
  std::vector<std::pair<std::string, std::string>> aside_;  // file, why
  bool nothing_readable_ = true;
  std::optional<Error> read_error_;
};

}  // namespace

Result<RebuildResult> LocalChunkStore::RebuildIndex(io::Disk& disk, kv::KvEngine& engine, io::BufferPool&) {
  return IndexBuilder(disk, engine).Run();
}

}  // namespace cairnfs::store
