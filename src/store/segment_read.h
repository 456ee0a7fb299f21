// One read of a page-aligned range of a segment's file: for one chunk, or for several that lie side by side. The chunks
// are slices of its memory, which lives as long as any of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_annotations.h"
#include "io/buffer_pool.h"
#include "store/aligned_memory.h"
#include "store/read_memory.h"
#include "store/segment.h"

namespace cairnfs::store {

// A segment to read from, and its file.
struct OpenSegment {
  SegmentPtr segment;
  std::shared_ptr<io::File> file;
};

class SegmentRead {
 public:
  // The range covers the bytes [begin, end) of the file; it may reach past the file's end.
  SegmentRead(OpenSegment from, uint64_t begin, uint64_t end);
  ~SegmentRead();
  const Segment& segment() const { return *from_.segment; }

  // Takes the memory that the bytes go to: pool buffers (false: none is taken), or memory of its own, for which
  // `memory` has let this read in.
  bool TakeBuffers(io::BufferPool& pool);
  void TakeMemory(const std::shared_ptr<ReadMemory>& memory);
  // Counts the memory in `total` for as long as this lives.
  void ChargeTo(std::atomic<size_t>& total);
  size_t buffer_count() const { return (bytes_ + kPieceBytes - 1) / kPieceBytes; }
  size_t bytes() const { return bytes_; }

  // REQUIRES: memory was taken, bytes() > 0; the caller keeps a reference until `done` is called, once, on a thread of
  // the I/O engine.
  static void Start(const std::shared_ptr<SegmentRead>& read, std::function<void()> done);
  // After done: whether everything before `end` came. kCorrupt when the file ends before it; the disk's error.
  Status Check(uint64_t end) const;
  // The memory of [offset, offset + size) of the file. REQUIRES: inside the range.
  std::vector<io::Slice> Slices(uint64_t offset, size_t size) const;

 private:
  // A whole buffer: a chunk of a megabyte takes one.
  static constexpr size_t kPieceBytes = io::BufferPool::kPayloadBytes;
  static_assert(kPieceBytes % kPageBytes == 0);
  void OnPiece(size_t index, const Result<size_t>& result);
  MutableByteSpan Piece(size_t index) const;

  const OpenSegment from_;
  const uint64_t begin_;
  const size_t bytes_;
  std::vector<io::BufferRef> buffers_;  // or else
  std::shared_ptr<std::byte[]> memory_;
  std::shared_ptr<ReadMemory> entered_;
  std::atomic<size_t>* charged_ = nullptr;
  std::function<void()> done_;
  std::atomic<size_t> pieces_left_{0};
  mutable Mutex mutex_;
  std::optional<Error> error_ GUARDED_BY(mutex_);
  uint64_t end_read_ GUARDED_BY(mutex_);  // every byte before it came
};

}  // namespace cairnfs::store
