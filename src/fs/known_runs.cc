#include "fs/known_runs.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace cairnfs::fs {
namespace {

// What only looks alike here and there costs so many reads for nothing.
constexpr unsigned kVainMax = 2;

}  // namespace

Anchor AnchorAt(const SlicedBytes& bytes, size_t offset) {
  assert(kAnchorWindowBytes <= offset && offset <= bytes.size());
  std::array<std::byte, kAnchorWindowBytes> window;
  bytes.Copy(offset - window.size(), window);
  return {static_cast<uint32_t>(offset), std::hash<std::string_view>()(AsText(window))};
}

std::vector<KnownRun> KnownRuns::Find(std::span<const Anchor> anchors,
                                      std::span<const std::optional<AnchorTable::Place>> places) {
  std::vector<Digest> digests;
  for (const auto& place : places) {
    if (place && (digests.empty() || digests.back() != place->digest)) digests.push_back(place->digest);
  }
  local_.Prefetch(digests);
  size_t known_end = 0;
  for (size_t i = 0; i < anchors.size() && vain_ < kVainMax; i++) {
    if (!places[i] || anchors[i].offset <= known_end) continue;
    auto run = Match(anchors[i].offset, *places[i], known_end, bytes_.size());
    if (!run) continue;
    FollowBack(*run, known_end);
    known_end = FollowOn(*run);
  }
  std::sort(runs_.begin(), runs_.end(),
            [](const KnownRun& a, const KnownRun& b) { return a.extent.offset < b.extent.offset; });
  return std::move(runs_);
}

// The run around `at` that does not leave [begin, end), if its bytes are worth it; its chunk is pinned. It is put as if
// its bytes had been written again: so it is there and gets its copies, also when a collection has just removed it.
std::optional<Extent> KnownRuns::Match(size_t at, const AnchorTable::Place& place, size_t begin, size_t end) {
  if (end - begin < kRunBytesMin) return std::nullopt;
  auto chunk = store::GetBlocking(local_, place.digest);
  if (chunk.ok() && chunk->size == place.chunk_size) {
    const SlicedBytes known(chunk->slices);
    const size_t before = CommonBefore(bytes_, at, known, place.offset, at - begin);
    const size_t length = before + CommonAfter(bytes_, at, known, place.offset, end - at);
    if (length >= kRunBytesMin && length * kRunShareMin >= known.size()) {
      if (auto put = chunks_.Put(place.digest, chunk->slices); put.ok()) {
        const Extent run{at - before, length, place.digest, static_cast<uint32_t>(place.offset - before),
                         place.chunk_size};
        runs_.push_back({run, std::move(put->pin)});
        return run;
      }
    }
  }
  vain_++;
  return std::nullopt;
}

std::optional<Extent> KnownRuns::MatchAnchor(size_t at, size_t begin, size_t end) {
  const auto place = table_.Find(author_, AnchorAt(bytes_, at).fingerprint);
  return place ? Match(at, *place, begin, end) : std::nullopt;
}

// What lies before the run, down to `begin`, where the run begins with its chunk.
void KnownRuns::FollowBack(Extent run, size_t begin) {
  while (run.chunk_offset == 0 && run.offset >= begin + kRunBytesMin) {
    auto before = MatchAnchor(run.offset, begin, run.offset);
    if (!before) return;
    run = *before;
  }
}

// What lies behind the run where it ends with its chunk. Returns where what is known ends.
size_t KnownRuns::FollowOn(Extent run) {
  while (run.chunk_offset + run.length == run.chunk_size && run.end() + kRunBytesMin <= bytes_.size()) {
    auto after = MatchAnchor(run.end() + kAnchorWindowBytes, run.end(), bytes_.size());
    if (!after) break;
    run = *after;
  }
  return run.end();
}

}  // namespace cairnfs::fs
