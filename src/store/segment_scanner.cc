#include "store/segment_scanner.h"

#include <algorithm>
#include <cassert>

namespace cairnfs::store {

Result<ByteSpan> FileWindow::Load(uint64_t offset, size_t size, uint64_t limit) {
  if (offset < begin_ || offset + size > begin_ + count_) CAIRNFS_RETURN_IF_ERROR(Fill(offset, size, limit));
  uint64_t end = std::min(begin_ + count_, limit);
  if (offset >= end) return ByteSpan{};
  return ByteSpan(buffer_.get() + (offset - begin_), std::min<uint64_t>(size, end - offset));
}

Status FileWindow::Fill(uint64_t offset, size_t size, uint64_t limit) {
  begin_ = AlignDown(offset, kPageBytes);
  count_ = 0;
  uint64_t end = AlignUp(limit, kPageBytes);
  if (begin_ >= end) return {};
  const size_t needed = std::min(AlignUp(offset + size, kPageBytes), end) - begin_;
  assert(needed <= bytes_max_);
  const size_t wanted = begin_ < suspect_end_ ? needed : std::min<uint64_t>(bytes_max_, end - begin_);
  auto read = file_.Read(begin_, MutableByteSpan(buffer_.get(), wanted));
  if (!read.ok() && wanted > needed) {
    suspect_end_ = begin_ + wanted;
    read = file_.Read(begin_, MutableByteSpan(buffer_.get(), needed));
  }
  if (!read.ok()) return read.error();
  count_ = *read;
  return {};
}

SegmentScanner::SegmentScanner(io::File& file, const Generation& generation, uint64_t begin, uint64_t end, Want want)
    : generation_(generation),
      end_(end),
      want_(want),
      position_(AlignUp(begin, kRecordAlignment)),
      window_(file, want == Want::kData ? 8 * kMiB : kMiB) {}

void SegmentScanner::SkipToMagic() {
  const ByteSpan bytes = window_.From(position_);
  size_t at = 0;
  for (; at + kRecordAlignment <= bytes.size(); at += kRecordAlignment) {
    uint64_t word;
    uint32_t magic;
    std::memcpy(&word, bytes.data() + at, sizeof word);
    std::memcpy(&magic, bytes.data() + at, sizeof magic);
    if (magic == kRecordMagic && at > 0) break;
    if (word != 0) rest_is_zero_ = false;
  }
  position_ += at;
}

void SegmentScanner::NoteUnreadable(uint64_t begin, uint64_t end, const Error& error) {
  unreadable_bytes_ += end - begin;
  if (!read_error_) read_error_ = error;
}

std::optional<SegmentScanner::Record> SegmentScanner::Next() {
  while (position_ + kRecordHeaderBytes <= end_) {
    auto bytes = window_.Load(position_, kRecordHeaderBytes, end_);
    if (!bytes.ok()) {
      const uint64_t page_end = AlignDown(position_, kPageBytes) + kPageBytes;
      NoteUnreadable(position_, page_end, bytes.error());
      position_ = page_end;
      rest_is_zero_ = false;
      continue;
    }
    if (bytes->size() < kRecordHeaderBytes) break;  // the file ends here
    auto header = DecodeRecordHeader(*bytes, generation_, position_);
    if (!header || position_ + kRecordHeaderBytes + header->stored_bytes > end_) {
      SkipToMagic();
      continue;
    }
    Record record{position_, *header, {}};
    if (want_ == Want::kData) {
      auto whole = window_.Load(position_, kRecordHeaderBytes + header->stored_bytes, end_);
      if (whole.ok()) {
        record.data = whole->subspan(std::min(kRecordHeaderBytes, whole->size()));
      } else {
        NoteUnreadable(position_, record.end(), whole.error());
      }
    }
    position_ = record.end();
    rest_is_zero_ = true;
    return record;
  }
  return std::nullopt;
}

}  // namespace cairnfs::store
