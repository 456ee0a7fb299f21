// bench_make_index: makes a data directory that looks like one with a terabyte in it: an index of so many chunks and
// the segments that they lie in, with true headers and no data (sparse files). For the time that a start takes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <random>

#include "daemon/config.h"
#include "daemon/data_directory.h"
#include "daemon/volume.h"
#include "store/aligned_memory.h"
#include "store/chunk_index_format.h"

namespace cairnfs::bench {
namespace {

struct Shape {
  uint64_t chunk_count = 2'000'000;
  uint64_t chunk_bytes = 512 * kKiB;
  uint64_t segment_bytes = 256 * kMiB;
};

constexpr size_t kWritesPerBatch = 20'000;

Digest RandomDigest(std::mt19937_64& random) {
  Digest digest;
  for (size_t i = 0; i < Digest::kBytes; i += sizeof(uint64_t)) {
    uint64_t word = random();
    std::memcpy(digest.bytes.data() + i, &word, sizeof word);
  }
  return digest;
}

// A sealed segment: shorter than its header says, so that opening the store need not look for its end.
Status MakeSegment(io::Disk& disk, const store::SegmentHeader& header, uint64_t used_end) {
  store::AlignedMemory block = store::AllocateAligned(store::kSegmentHeaderBytes);
  store::EncodeSegmentHeader(header, {block.get(), store::kSegmentHeaderBytes});
  CAIRNFS_ASSIGN_OR_RETURN(auto file, disk.Create(MakeSegmentName(store::SegmentName::kSegment, header.id)));
  CAIRNFS_RETURN_IF_ERROR(file->Write(0, ByteSpan(block.get(), store::kSegmentHeaderBytes)));
  return file->Truncate(used_end);
}

class IndexMaker {
 public:
  IndexMaker(kv::KvEngine& engine, io::Disk& disk, const Shape& shape) : engine_(engine), disk_(disk), shape_(shape) {}

  Status Make() {
    for (uint64_t made = 0; made < shape_.chunk_count;) {
      CAIRNFS_ASSIGN_OR_RETURN(uint64_t count, FillSegment(shape_.chunk_count - made));
      made += count;
    }
    counters_.chunk_count = shape_.chunk_count;
    counters_.unique_bytes = shape_.chunk_count * shape_.chunk_bytes;
    counters_.next_segment_id = next_id_;
    writes_.push_back({std::string(store::kCountersKey), EncodeCounters(counters_)});
    CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes_, kv::WriteMode::kSynced));
    return disk_.SyncDirectory();
  }

 private:
  // The number of chunks that went into one more segment.
  Result<uint64_t> FillSegment(uint64_t chunk_count_max) {
    store::SegmentHeader header;
    header.id = SegmentId{next_id_++};
    header.generation = store::RandomGeneration();
    header.size_bytes = shape_.segment_bytes;
    store::Location location;
    location.segment = header.id;
    location.offset = store::kSegmentHeaderBytes;
    location.raw_bytes = location.stored_bytes = static_cast<uint32_t>(shape_.chunk_bytes);
    uint64_t record_bytes = store::RecordBytes(shape_.chunk_bytes);
    uint64_t room = shape_.segment_bytes - store::kSegmentHeaderBytes - kPageBytes;
    uint64_t count = std::min(chunk_count_max, room / record_bytes);
    writes_.push_back({store::SegmentKey(header.id), store::EncodeGeneration(header.generation)});
    for (uint64_t i = 0; i < count; i++, location.offset += record_bytes) {
      writes_.push_back({store::ChunkKey(RandomDigest(random_)), EncodeLocation(location)});
    }
    uint64_t used_end = AlignUp(location.offset, kPageBytes);
    CAIRNFS_RETURN_IF_ERROR(MakeSegment(disk_, header, used_end));
    counters_.open_segment = header.id;
    counters_.open_synced_end = used_end;
    if (writes_.size() >= kWritesPerBatch) {
      CAIRNFS_RETURN_IF_ERROR(engine_.Write(writes_, kv::WriteMode::kUnsynced));
      writes_.clear();
    }
    return count;
  }

  kv::KvEngine& engine_;
  io::Disk& disk_;
  const Shape shape_;
  std::mt19937_64 random_{1};
  store::IndexCounters counters_;
  std::vector<kv::EngineWrite> writes_;
  uint64_t next_id_ = 1;
};

Status MakeDirectory(const std::string& path, const Shape& shape) {
  daemon::DataDirectory::OpenOptions options;
  options.path = path;
  CAIRNFS_ASSIGN_OR_RETURN(auto directory, daemon::DataDirectory::Open(options));
  if (!directory->is_new()) return MakeError(ErrorCode::kAlreadyExists, path + " holds a filesystem already");
  daemon::Config config;
  config.pool_size = 64 * kMiB;
  {
    CAIRNFS_ASSIGN_OR_RETURN(auto volume, daemon::Volume::Open(*directory, config));  // an empty filesystem
  }
  kv::RocksOptions engine_options;
  engine_options.path = directory->metadata_path();
  CAIRNFS_ASSIGN_OR_RETURN(auto engine, kv::OpenRocksEngine(engine_options));
  io::DiskOptions disk_options;
  disk_options.path = directory->segments_path();
  CAIRNFS_ASSIGN_OR_RETURN(auto disk, io::OpenDisk(disk_options));
  CAIRNFS_RETURN_IF_ERROR(IndexMaker(*engine, *disk, shape).Make());
  directory->lock().MarkClean();
  return {};
}

}  // namespace
}  // namespace cairnfs::bench

int main(int argc, char** argv) {
  using namespace cairnfs::bench;
  Shape shape;
  std::string path;
  CLI::App app("Makes a CairnFS data directory with a large index and no data. For tools/bench.");
  app.add_option("data", path)->required();
  app.add_option("--chunks", shape.chunk_count);
  app.add_option("--chunk-bytes", shape.chunk_bytes);
  app.add_option("--segment-bytes", shape.segment_bytes);
  CLI11_PARSE(app, argc, argv);
  if (cairnfs::Status status = MakeDirectory(path, shape); !status.ok()) {
    fmt::print(stderr, "bench_make_index: {}\n", status.error().message);
    return 1;
  }
  return 0;
}
