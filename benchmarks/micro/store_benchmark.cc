// The segment append and the chunk index, on a real disk and RocksDB.
#include <benchmark/benchmark.h>
#include <sys/stat.h>

#include "store/chunk_index.h"
#include "store/local_chunk_store.h"
#include "support.h"

namespace cairnfs::bench {
namespace {

constexpr size_t kChunkBytes = 768 * kKiB;  // about the mean
constexpr uint64_t kIndexedChunks = 200'000;

// A store in a directory of its own.
struct Store {
  ScratchDirectory directory;
  std::unique_ptr<kv::KvEngine> engine;
  std::unique_ptr<io::BufferPool> pool;
  std::unique_ptr<io::Disk> disk;
  std::unique_ptr<store::LocalChunkStore> chunks;

  Store() {
    kv::RocksOptions rocks;
    rocks.path = directory.path() + "/index";
    engine = kv::OpenRocksEngine(rocks).value();
    io::BufferPool::Options pool_options;
    pool_options.size_bytes_max = 64 * kMiB;
    pool = io::BufferPool::Create(pool_options).value();
    io::DiskOptions disk_options;
    disk_options.path = directory.path() + "/segments";
    mkdir(disk_options.path.c_str(), 0700);
    disk = io::OpenDisk(disk_options).value();
    chunks = store::LocalChunkStore::Open(*disk, *engine, *pool, {}).value();
  }
};

// New chunks, given out to the disk as they come; the sync at the end is timed too.
void SegmentAppend(benchmark::State& state) {
  Store store;
  io::BufferRef buffer = store.pool->Acquire();
  std::memset(buffer.payload(), 1, kChunkBytes);
  io::Slice slices[] = {{buffer, buffer.payload(), kChunkBytes}};
  uint64_t number = 0;
  uint64_t last = static_cast<uint64_t>(state.max_iterations);
  for (auto _ : state) {
    if (!store.chunks->Put(DigestOf(number++), slices).ok()) state.SkipWithError("put");
    if (number == last && !store.chunks->Sync().ok()) state.SkipWithError("sync");
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * kChunkBytes));
}

void SegmentPutOfKnownChunk(benchmark::State& state) {
  Store store;
  io::BufferRef buffer = store.pool->Acquire();
  io::Slice slices[] = {{buffer, buffer.payload(), kChunkBytes}};
  if (!store.chunks->Put(DigestOf(0), slices).ok() || !store.chunks->Sync().ok()) state.SkipWithError("put");
  for (auto _ : state) benchmark::DoNotOptimize(store.chunks->Put(DigestOf(0), slices));
}

// A RocksDB with so many chunks in it.
struct Index {
  ScratchDirectory directory;
  std::unique_ptr<kv::KvEngine> engine;
  std::unique_ptr<store::ChunkIndex> chunks;
  std::vector<Digest> digests;

  Index() {
    kv::RocksOptions rocks;
    rocks.path = directory.path();
    engine = kv::OpenRocksEngine(rocks).value();
    std::vector<kv::EngineWrite> writes;
    for (uint64_t i = 0; i < kIndexedChunks; i++) {
      digests.push_back(DigestOf(i));
      store::Location location{SegmentId{1 + i / 300}, 4096 + i % 300 * kMiB, kChunkBytes, kChunkBytes};
      writes.push_back({store::ChunkKey(digests.back()), EncodeLocation(location)});
    }
    if (!engine->Write(writes, kv::WriteMode::kSynced).ok()) std::abort();
    chunks = std::make_unique<store::ChunkIndex>(*engine);
    if (!chunks->Load().ok()) std::abort();
  }
};

Index& SharedIndex() {
  static Index index;
  return index;
}

void IndexLookup(benchmark::State& state, bool known) {
  Index& index = SharedIndex();
  uint64_t next = 0;
  for (auto _ : state) {
    next = (next + 7919) % kIndexedChunks;
    Digest digest = index.digests[next];
    if (!known) digest.bytes[0] ^= std::byte{1};
    auto found = index.chunks->Find(digest);
    if (!found.ok() || found->has_value() != known) state.SkipWithError("wrong answer");
  }
}

BENCHMARK(SegmentAppend)->Iterations(512)->Unit(benchmark::kMicrosecond)->UseRealTime();
BENCHMARK(SegmentPutOfKnownChunk);
BENCHMARK_CAPTURE(IndexLookup, known, true);
BENCHMARK_CAPTURE(IndexLookup, unknown, false);

}  // namespace
}  // namespace cairnfs::bench
