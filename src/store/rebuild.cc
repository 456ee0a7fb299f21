// Rebuilding the chunk index from the segments alone.
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

  Result<uint64_t> Run() {
    // Until the counters are written again, the store refuses to open.
    writes_.push_back({std::string(kCountersKey), std::string(kRebuildingValue)});
    CAIRNFS_RETURN_IF_ERROR(Flush(/*sync=*/true));
    CAIRNFS_RETURN_IF_ERROR(DeleteOldEntries());
    CAIRNFS_ASSIGN_OR_RETURN(std::vector<std::string> names, disk_.List());
    for (const std::string& name : names) {
      auto parsed = ParseSegmentName(name);
      if (!parsed) continue;
      counters_.next_segment_id = std::max(counters_.next_segment_id, parsed->id.value + 1);
      if (parsed->kind == SegmentName::kSegment) CAIRNFS_RETURN_IF_ERROR(AddSegment(name, parsed->id));
    }
    writes_.push_back({std::string(kCountersKey), EncodeCounters(counters_)});
    CAIRNFS_RETURN_IF_ERROR(Flush(/*sync=*/true));
    return counters_.chunk_count;
  }

 private:
  Status Flush(bool sync) {
    CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes_, sync));
    writes_.clear();
    return {};
  }

  Status DeleteOldEntries() {
    for (;;) {
      CAIRNFS_RETURN_IF_ERROR(
          engine_.Scan(kIndexBegin, kIndexEnd, nullptr, [&](std::string_view key, std::string_view) {
            if (key != kCountersKey) writes_.push_back({std::string(key), std::nullopt});
            return writes_.size() < kWritesPerBatch;
          }));
      if (writes_.empty()) return {};
      CAIRNFS_RETURN_IF_ERROR(Flush(/*sync=*/false));
    }
  }

  Status AddSegment(const std::string& name, SegmentId id) {
    CAIRNFS_ASSIGN_OR_RETURN(auto file, disk_.Open(name));
    FileWindow window(*file, kSegmentHeaderBytes);
    CAIRNFS_ASSIGN_OR_RETURN(ByteSpan block, window.Load(0, kSegmentHeaderBytes, kSegmentHeaderBytes));
    auto header = DecodeSegmentHeader(block);
    if (!header.ok() || header->id != id) {
      // Its records cannot be told from what an earlier life of the file left. It is put aside, not removed.
      std::string why = header.ok() ? "the header is that of another segment" : header.error().message;
      spdlog::error("{}: {}; put aside as damaged-{}", name, why, name);
      file.reset();
      return disk_.Rename(name, "damaged-" + name);
    }
    CAIRNFS_ASSIGN_OR_RETURN(uint64_t file_bytes, file->Size());
    SegmentScanner scanner(*file, header->generation, kSegmentHeaderBytes, std::min(file_bytes, header->size_bytes),
                           SegmentScanner::Want::kData);
    bool named = false;
    for (;;) {
      CAIRNFS_ASSIGN_OR_RETURN(auto record, scanner.Next());
      if (!record) return {};
      if (record->header.codec != kCodecRaw || record->data.size() != record->header.stored_bytes ||
          chunking::ComputeDigest(record->data) != record->header.digest) {
        spdlog::warn("{}: the record at offset {} is not whole; left out", name, record->offset);
        continue;
      }
      if (!seen_.insert(record->header.digest).second) continue;
      if (!named) writes_.push_back({SegmentKey(id), EncodeGeneration(header->generation)});
      named = true;
      Location location{id, record->offset, record->header.stored_bytes, record->header.raw_bytes,
                        record->header.codec};
      writes_.push_back({ChunkKey(record->header.digest), EncodeLocation(location)});
      ++counters_.chunk_count;
      counters_.unique_bytes += location.raw_bytes;
      if (writes_.size() >= kWritesPerBatch) CAIRNFS_RETURN_IF_ERROR(Flush(/*sync=*/false));
    }
  }

  io::Disk& disk_;
  kv::KvEngine& engine_;
  IndexCounters counters_;
  std::vector<kv::EngineWrite> writes_;
  std::unordered_set<Digest, DigestHash> seen_;
};

}  // namespace

Result<uint64_t> LocalChunkStore::RebuildIndex(io::Disk& disk, kv::KvEngine& engine, io::BufferPool&) {
  return IndexBuilder(disk, engine).Run();
}

}  // namespace cairnfs::store
