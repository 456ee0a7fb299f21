// Cut points and the digest, one core, beside memcpy.
#include <benchmark/benchmark.h>

#include "chunking/chunker.h"
#include "chunking/digest.h"
#include "support.h"

namespace cairnfs::bench {
namespace {

using chunking::Implementation;

constexpr size_t kBytes = 64 * kMiB;  // more than the caches hold

const std::vector<std::byte>& Source() {
  static const std::vector<std::byte> bytes = RandomBytes(kBytes);
  return bytes;
}

void CountBytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

void Memcpy(benchmark::State& state) {
  std::vector<std::byte> target(kBytes);
  for (auto _ : state) {
    std::memcpy(target.data(), Source().data(), kBytes);
    benchmark::ClobberMemory();
  }
  CountBytes(state, kBytes);
}

// Every position is looked at: what the search costs where no minimum size lets it skip.
void CutPoints(benchmark::State& state, Implementation implementation) {
  if (!IsSupported(implementation)) {
    state.SkipWithError("this machine does not have it");
    return;
  }
  uint32_t mask_bits = chunking::ChunkParams().mask_bits;
  for (auto _ : state) {
    ByteSpan rest = Source();
    while (auto found = FindCandidate(rest, mask_bits, implementation)) rest = rest.subspan(*found + 1);
    benchmark::DoNotOptimize(rest.data());
  }
  CountBytes(state, kBytes);
}

// As the daemon cuts: megabyte pieces, and a chunk's first bytes are not looked at.
void CutFinderOfPieces(benchmark::State& state) {
  for (auto _ : state) {
    chunking::CutFinder finder{chunking::ChunkParams()};
    for (size_t offset = 0; offset < kBytes; offset += kMiB) {
      ByteSpan piece = ByteSpan(Source()).subspan(offset, kMiB);
      while (!piece.empty()) piece = piece.subspan(finder.Feed(piece).consumed);
    }
    benchmark::DoNotOptimize(finder.chunk_size());
  }
  CountBytes(state, kBytes);
}

void DigestOfChunk(benchmark::State& state) {
  auto size = static_cast<size_t>(state.range(0));
  size_t offset = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(chunking::ComputeDigest(ByteSpan(Source()).subspan(offset, size)));
    offset = (offset + size) % (kBytes - size);
  }
  CountBytes(state, size);
}

BENCHMARK(Memcpy);
BENCHMARK_CAPTURE(CutPoints, scalar, Implementation::kScalar);
BENCHMARK_CAPTURE(CutPoints, AVX2, Implementation::kAvx2);
BENCHMARK_CAPTURE(CutPoints, AVX512, Implementation::kAvx512);
BENCHMARK(CutFinderOfPieces)->Name("CutPoints/as_the_daemon_cuts");
BENCHMARK(DigestOfChunk)->Name("Digest")->Arg(4 * kKiB)->Arg(kMiB);

}  // namespace
}  // namespace cairnfs::bench
