#include "store/segment_scanner.h"

#include <algorithm>

namespace cairnfs::store {

Result<ByteSpan> FileWindow::Load(uint64_t offset, size_t size, uint64_t limit) {
  if (offset < begin_ || offset + size > begin_ + count_) {
    begin_ = AlignDown(offset, kPageBytes);
    count_ = 0;
    uint64_t end = AlignUp(limit, kPageBytes);
    if (begin_ >= end) return ByteSpan{};
    size_t wanted = std::min<uint64_t>(bytes_max_, end - begin_);
    CAIRNFS_ASSIGN_OR_RETURN(count_, file_.Read(begin_, MutableByteSpan(buffer_.get(), wanted)));
  }
  uint64_t end = std::min(begin_ + count_, limit);
  if (offset >= end) return ByteSpan{};
  return ByteSpan(buffer_.get() + (offset - begin_), std::min<uint64_t>(size, end - offset));
}

SegmentScanner::SegmentScanner(io::File& file, const Generation& generation, uint64_t begin, uint64_t end, Want want)
    : generation_(generation),
      end_(end),
      want_(want),
      position_(AlignUp(begin, kRecordAlignment)),
      window_(file, want == Want::kData ? 8 * kMiB : kMiB) {}

uint64_t SegmentScanner::SkipToMagic(uint64_t offset, ByteSpan bytes) {
  size_t at = kRecordAlignment;
  for (; at + sizeof(kRecordMagic) <= bytes.size(); at += kRecordAlignment) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    if (word == kRecordMagic) break;
  }
  return offset + at;
}

Result<std::optional<SegmentScanner::Record>> SegmentScanner::Next() {
  while (position_ + kRecordHeaderBytes <= end_) {
    CAIRNFS_ASSIGN_OR_RETURN(ByteSpan bytes, window_.Load(position_, kRecordHeaderBytes, end_));
    if (bytes.size() < kRecordHeaderBytes) break;  // the file ends here
    auto header = DecodeRecordHeader(bytes, generation_, position_);
    if (!header || position_ + kRecordHeaderBytes + header->stored_bytes > end_) {
      position_ = SkipToMagic(position_, window_.From(position_));
      continue;
    }
    Record record{position_, *header, {}};
    if (want_ == Want::kData) {
      CAIRNFS_ASSIGN_OR_RETURN(ByteSpan whole,
                               window_.Load(position_, kRecordHeaderBytes + header->stored_bytes, end_));
      record.data = whole.subspan(std::min(kRecordHeaderBytes, whole.size()));
    }
    position_ = record.end();
    return std::optional<Record>{record};
  }
  return std::optional<Record>{};
}

}  // namespace cairnfs::store
