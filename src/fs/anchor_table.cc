#include "fs/anchor_table.h"

#include <algorithm>
#include <new>

namespace cairnfs::fs {
namespace {

// Chunks take a quarter of the memory: 40 bytes each, where their eight or nine anchors take 8 bytes each in buckets
// that are never all full.
constexpr size_t kChunksShare = 4;

uint32_t TagOf(uint64_t fingerprint) { return static_cast<uint32_t>(fingerprint & 0xf'ffff); }

}  // namespace

AnchorTable::AnchorTable(size_t bytes_max)
    : bucket_count_(std::max<size_t>(1, (bytes_max - bytes_max / kChunksShare) / sizeof(Bucket))),
      // The pages are zeros, and in memory once they are used.
      buckets_(static_cast<Bucket*>(std::calloc(bucket_count_, sizeof(Bucket)))),
      chunks_(std::clamp<size_t>(bytes_max / kChunksShare / sizeof(Chunk), 1, kChunksMax)) {
  if (buckets_ == nullptr) throw std::bad_alloc();
}

std::span<AnchorTable::Entry> AnchorTable::BucketOf(uint64_t fingerprint) {
  return buckets_[(fingerprint >> 32) * bucket_count_ >> 32].entries;
}

// Null: none.
AnchorTable::Entry* AnchorTable::FindEntry(uint32_t writer, uint64_t fingerprint) {
  for (Entry& entry : BucketOf(fingerprint)) {
    if (entry.tag != TagOf(fingerprint) || entry.number == 0 || AgeOf(entry) >= chunks_.size()) continue;
    if (ChunkOf(entry).writer == writer) return &entry;
  }
  return nullptr;
}

std::optional<AnchorTable::Place> AnchorTable::FindLocked(uint32_t writer, uint64_t fingerprint) {
  const Entry* entry = FindEntry(writer, fingerprint);
  if (entry == nullptr) return std::nullopt;
  const Chunk& chunk = ChunkOf(*entry);
  if (entry->offset > chunk.size) return std::nullopt;  // of a chunk whose number came round
  return Place{chunk.digest, chunk.size, static_cast<uint32_t>(entry->offset)};
}

std::optional<AnchorTable::Place> AnchorTable::Find(uint32_t writer, uint64_t fingerprint) {
  MutexLock lock(mutex_);
  return FindLocked(writer, fingerprint);
}

std::vector<std::optional<AnchorTable::Place>> AnchorTable::FindAll(uint32_t writer, std::span<const Anchor> anchors) {
  std::vector<std::optional<Place>> places;
  places.reserve(anchors.size());
  MutexLock lock(mutex_);
  for (const Anchor& anchor : anchors) places.push_back(FindLocked(writer, anchor.fingerprint));
  return places;
}

// Takes the place of the same anchor of another chunk, else of the anchor that was noted first.
void AnchorTable::Note(uint32_t writer, const Anchor& anchor) {
  Entry* place = FindEntry(writer, anchor.fingerprint);
  if (place == nullptr) {
    const auto age = [this](const Entry& entry) {
      mutex_.AssertHeld();
      return entry.number == 0 ? UINT32_MAX : AgeOf(entry);
    };
    const std::span<Entry> bucket = BucketOf(anchor.fingerprint);
    place = &*std::max_element(bucket.begin(), bucket.end(),
                               [&](const Entry& a, const Entry& b) { return age(a) < age(b); });
  }
  place->tag = TagOf(anchor.fingerprint);
  place->number = last_number_ & kNumberMask;
  place->offset = anchor.offset & 0xff'ffff;
}

void AnchorTable::Remember(uint32_t writer, const Digest& digest, uint32_t chunk_size,
                           std::span<const Anchor> anchors) {
  if (anchors.empty()) return;
  MutexLock lock(mutex_);
  // What is saved again and again takes no room of what was saved before it.
  const Entry* last = FindEntry(writer, anchors.back().fingerprint);
  const bool is_young = last != nullptr && AgeOf(*last) < chunks_.size() / 2;
  if (is_young && ChunkOf(*last).digest == digest) return;
  if ((++last_number_ & kNumberMask) == 0) ++last_number_;
  ChunkOf(last_number_) = Chunk{digest, chunk_size, writer};
  for (const Anchor& anchor : anchors) Note(writer, anchor);
}

}  // namespace cairnfs::fs
