#include "fs/anchor_table.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace cairnfs::fs {
namespace {

constexpr size_t kGenerations = 8;

// Chunks take 44 bytes each, where their eight or nine anchors take 8 bytes each in buckets that are never all full.
size_t BytesOfChunks(size_t bytes_max) { return bytes_max / 40 * 11; }
constexpr size_t kChunksMax = (1 << 20) - 1;  // of a generation: Entry::number

uint32_t TagOf(uint64_t fingerprint) { return static_cast<uint32_t>(fingerprint & 0xf'ffff); }

}  // namespace

AnchorTable::AnchorTable(size_t bytes_max)
    : generation_count_max_(std::clamp<size_t>(BytesOfChunks(bytes_max) / sizeof(Chunk), 1, kGenerations)),
      generation_chunks_(
          std::clamp<size_t>(BytesOfChunks(bytes_max) / sizeof(Chunk) / generation_count_max_, 1, kChunksMax)),
      bucket_count_(
          std::max<size_t>(1, (bytes_max - BytesOfChunks(bytes_max)) / sizeof(Bucket) / generation_count_max_)) {
  generations_.reserve(generation_count_max_);
}

std::span<AnchorTable::Entry> AnchorTable::BucketOf(Generation& generation, uint64_t fingerprint) const {
  return generation.buckets[(fingerprint >> 32) * bucket_count_ >> 32].entries;
}

AnchorTable::Entry* AnchorTable::FindIn(Generation& generation, const Author& author, uint64_t fingerprint) const {
  for (Entry& entry : BucketOf(generation, fingerprint)) {
    if (entry.tag != TagOf(fingerprint) || entry.number == 0) continue;
    if (generation.chunks[entry.number - 1].author == author) return &entry;
  }
  return nullptr;
}

AnchorTable::Found AnchorTable::FindLocked(const Author& author, uint64_t fingerprint) {
  for (auto generation = generations_.rbegin(); generation != generations_.rend(); ++generation) {
    if (Entry* entry = FindIn(*generation, author, fingerprint)) return {&*generation, entry};
  }
  return {};
}

std::optional<AnchorTable::Place> AnchorTable::PlaceOf(const Found& found) {
  if (found.entry == nullptr) return std::nullopt;
  return Place{found.chunk().digest, found.chunk().size, static_cast<uint32_t>(found.entry->offset)};
}

std::optional<AnchorTable::Place> AnchorTable::Find(const Author& author, uint64_t fingerprint) {
  MutexLock lock(mutex_);
  return PlaceOf(FindLocked(author, fingerprint));
}

std::vector<std::optional<AnchorTable::Place>> AnchorTable::FindAll(const Author& author,
                                                                    std::span<const Anchor> anchors) {
  std::vector<std::optional<Place>> places;
  places.reserve(anchors.size());
  MutexLock lock(mutex_);
  for (const Anchor& anchor : anchors) places.push_back(PlaceOf(FindLocked(author, anchor.fingerprint)));
  return places;
}

bool AnchorTable::IsYoung(const Generation& generation) const {
  const auto age = static_cast<size_t>(&generations_.back() - &generation);
  return age * 2 < generation_count_max_;
}

AnchorTable::Generation& AnchorTable::Current() {
  if (!generations_.empty() && generations_.back().chunks.size() < generation_chunks_) return generations_.back();
  if (generations_.size() < generation_count_max_) {
    // The pages are zeros, and in memory once they are used.
    Generation next{{},
                    decltype(Generation::buckets)(static_cast<Bucket*>(std::calloc(bucket_count_, sizeof(Bucket))))};
    if (next.buckets == nullptr) throw std::bad_alloc();
    next.chunks.reserve(generation_chunks_);
    generations_.push_back(std::move(next));
  } else {
    std::rotate(generations_.begin(), generations_.begin() + 1, generations_.end());
    generations_.back().chunks.clear();
    std::memset(generations_.back().buckets.get(), 0, bucket_count_ * sizeof(Bucket));
  }
  return generations_.back();
}

// Takes the place of the same anchor of another chunk, else of the anchor that was noted first.
void AnchorTable::Note(Generation& generation, const Author& author, const Anchor& anchor) const {
  Entry* place = FindIn(generation, author, anchor.fingerprint);
  if (place == nullptr) {
    const std::span<Entry> bucket = BucketOf(generation, anchor.fingerprint);
    place = &*std::min_element(bucket.begin(), bucket.end(),
                               [](const Entry& a, const Entry& b) { return a.number < b.number; });
  }
  place->tag = TagOf(anchor.fingerprint);
  place->number = generation.chunks.size() & kChunksMax;
  place->offset = anchor.offset & 0xff'ffff;
}

void AnchorTable::Remember(const Author& author, const Digest& digest, uint32_t chunk_size,
                           std::span<const Anchor> anchors) {
  if (anchors.empty()) return;
  MutexLock lock(mutex_);
  // What is saved again and again takes no room of what was saved before it.
  const Found last = FindLocked(author, anchors.back().fingerprint);
  if (last.entry != nullptr && last.chunk().digest == digest && IsYoung(*last.generation)) return;
  Generation& current = Current();
  current.chunks.push_back(Chunk{digest, chunk_size, author});
  for (const Anchor& anchor : anchors) Note(current, author, anchor);
}

}  // namespace cairnfs::fs
