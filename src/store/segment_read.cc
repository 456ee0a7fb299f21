#include "store/segment_read.h"

#include <algorithm>
#include <cassert>

namespace cairnfs::store {

SegmentRead::SegmentRead(OpenSegment from, uint64_t begin, uint64_t end)
    : from_(std::move(from)),
      begin_(AlignDown(begin, kPageBytes)),
      bytes_(AlignUp(end, kPageBytes) - begin_),
      end_read_(begin_ + bytes_) {}

SegmentRead::~SegmentRead() {
  if (charged_ != nullptr) charged_->fetch_sub(bytes_, std::memory_order_relaxed);
  memory_.reset();
  if (entered_) entered_->Leave();
}

bool SegmentRead::TakeBuffers(io::BufferPool& pool) {
  while (buffers_.size() < buffer_count()) {
    io::BufferRef buffer = pool.TryAcquire();
    if (!buffer) {
      buffers_.clear();
      return false;
    }
    buffers_.push_back(std::move(buffer));
  }
  return true;
}

void SegmentRead::TakeMemory(const std::shared_ptr<ReadMemory>& memory) {
  entered_ = memory;
  if (bytes_ == 0) return;
  auto* bytes = static_cast<std::byte*>(std::aligned_alloc(kPageBytes, bytes_));
  if (bytes == nullptr) throw std::bad_alloc();
  // The slices keep the memory longer than this lives.
  memory_ = std::shared_ptr<std::byte[]>(bytes, [memory, size = bytes_](std::byte* begin) {
    std::free(begin);
    memory->GiveBack(size);
  });
}

void SegmentRead::ChargeTo(std::atomic<size_t>& total) {
  assert(charged_ == nullptr);
  total.fetch_add(bytes_, std::memory_order_relaxed);
  charged_ = &total;
}

MutableByteSpan SegmentRead::Piece(size_t index) const {
  const size_t at = index * kPieceBytes;
  std::byte* begin = memory_ ? memory_.get() + at : buffers_[index].payload();
  return {begin, std::min(kPieceBytes, bytes_ - at)};
}

void SegmentRead::Start(const std::shared_ptr<SegmentRead>& read, std::function<void()> done) {
  assert(read->bytes_ > 0 && (read->memory_ || read->buffers_.size() == read->buffer_count()));
  read->done_ = std::move(done);
  const size_t count = read->buffer_count();
  read->pieces_left_ = count;
  for (size_t i = 0; i < count; ++i) {
    // The pieces hold no reference: the last one would be dropped by the engine's thread, at any time after `done`.
    read->from_.file->ReadAsync(read->begin_ + i * kPieceBytes, read->Piece(i),
                                [raw = read.get(), i](const Result<size_t>& result) { raw->OnPiece(i, result); });
  }
}

void SegmentRead::OnPiece(size_t index, const Result<size_t>& result) {
  {
    MutexLock lock(mutex_);
    if (!result.ok()) {
      error_ = result.error();
    } else if (*result < Piece(index).size()) {
      end_read_ = std::min(end_read_, begin_ + index * kPieceBytes + *result);
    }
  }
  if (pieces_left_.fetch_sub(1) != 1) return;
  const std::function<void()> done = std::move(done_);
  done();  // may end this
}

Status SegmentRead::Check(uint64_t end) const {
  MutexLock lock(mutex_);
  if (error_) return *error_;
  if (end > end_read_) return MakeError(ErrorCode::kCorrupt, "the segment file ends before the chunk does");
  return {};
}

std::vector<io::Slice> SegmentRead::Slices(uint64_t offset, size_t size) const {
  assert(offset >= begin_ && offset + size <= begin_ + bytes_);
  std::vector<io::Slice> slices;
  size_t at = offset - begin_;
  if (memory_) {
    slices.push_back(io::Slice{{}, memory_.get() + at, size, memory_});
    return slices;
  }
  while (size > 0) {
    const io::BufferRef& buffer = buffers_[at / kPieceBytes];
    const size_t skip = at % kPieceBytes;
    const size_t part = std::min(size, kPieceBytes - skip);
    slices.push_back(io::Slice{buffer, buffer.payload() + skip, part});
    at += part;
    size -= part;
  }
  return slices;
}

}  // namespace cairnfs::store
