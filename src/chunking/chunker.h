// Cut points by the window test: content-defined, a pure function of the bytes, and evaluated at all positions at once.
//
// Position p is a candidate when (b[p] ^ b[p+3]) == 0x0c and (b[p+5] + b[p+10]) mod 256 == 0xbc and the `mask_bits`
// high bits of a mix of the window [p, p+16) are zero (docs/formats/chunking.md). A cut falls at p + 16, the end of the
// window, for the first candidate whose cut makes the chunk at least `size_bytes_min` long; a chunk without one ends at
// size_bytes_max.
#pragma once

#include <array>
#include <cassert>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::chunking {

// Recorded in the filesystem's header when it is made; never changed under existing data.
struct ChunkParams {
  uint32_t version = 1;  // of the window test itself
  uint32_t size_bytes_min = 256 * kKiB;
  uint32_t size_bytes_max = 2 * kMiB;
  uint32_t mask_bits = 3;  // a candidate survives with probability 2^-(16 + mask_bits)

  Status Validate() const;  // kInvalidArgument says which member and what would be right
  std::string Encode() const;
  static Result<ChunkParams> Decode(std::string_view text);
  bool operator==(const ChunkParams&) const = default;
};

inline constexpr size_t kWindowBytes = 16;

enum class Implementation { kScalar, kAvx2, kAvx512 };
bool IsSupported(Implementation implementation);

// The least p >= 0 with p + kWindowBytes <= bytes.size() at which the window test holds; nullopt if there is none.
// Reads nothing outside `bytes`. Pure; any thread. All implementations give the same answer. When none is named, it
// takes the one that was faster with the first bytes searched.
std::optional<size_t> FindCandidate(ByteSpan bytes, uint32_t mask_bits);
std::optional<size_t> FindCandidate(ByteSpan bytes, uint32_t mask_bits, Implementation implementation);

// The least distance of two anchors of a chunk.
inline constexpr uint32_t kAnchorDistanceMin = 16 * kKiB;

// Finds the cuts of a run of bytes that arrives in pieces of any size; the cuts do not depend on the pieces.
//
// The same search finds the anchors of each chunk: places that equal data has in common wherever it lies, 80 KiB apart
// on average. An anchor is the end of a window that passes the two byte tests, whatever its mix; the search looks at
// the same windows for cuts. It lies at least kAnchorDistanceMin after the anchor before. Anchors are no part of any
// format.
//
// One thread at a time. Remembers the last 15 bytes, so windows may span pieces.
class CutFinder {
 public:
  // REQUIRES: params.Validate() is ok.
  explicit CutFinder(const ChunkParams& params) : params_(params) { assert(params.Validate().ok()); }

  // Looks through `piece`, which follows all bytes consumed so far. Consumes up to and including the first cut:
  // returns the count of bytes of `piece` that belong to the current chunk, with cut = true when the chunk ends there
  // (the caller then calls again with the rest); else the whole piece was consumed.
  // A window never reaches back before the current chunk's first byte. The first size_bytes_min - kWindowBytes bytes
  // of a chunk are not looked at.
  struct Step {
    size_t consumed;
    bool cut;
    std::vector<uint32_t> anchors = {};  // with a cut: those of the chunk that ends, rising
  };
  Step Feed(ByteSpan piece);

  // Bytes of the current chunk consumed so far; 0 after a cut.
  size_t chunk_size() const { return chunk_size_; }
  // Of the current chunk, found so far: how many of its bytes lie before each.
  const std::vector<uint32_t>& anchors() const { return anchors_; }
  void Reset();  // the next byte starts a new chunk

 private:
  std::optional<size_t> FindCut(ByteSpan bytes, size_t base, size_t position_min);
  std::optional<size_t> FindInSeam(ByteSpan room, size_t position_min);
  void Remember(ByteSpan room);

  ChunkParams params_;
  size_t chunk_size_ = 0;
  std::vector<uint32_t> anchors_;
  std::array<std::byte, kWindowBytes - 1> tail_{};  // the last min(15, chunk_size_) bytes consumed
};

}  // namespace cairnfs::chunking
