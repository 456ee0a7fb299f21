// Walks the records of a segment file from a given offset on, without an index.
//
// Where no record begins it looks for the next 8-byte boundary at which one does. So it steps over padding at the end
// of a sync, a part that a crash tore, a damaged header, and blocks that cannot be read.
#pragma once

#include <cassert>
#include <optional>

#include "io/file.h"
#include "store/aligned_memory.h"
#include "store/segment_format.h"

namespace cairnfs::store {

// A part of a file in memory. It is read in large aligned pieces, and in small ones where a large one met a read error:
// so a bad sector costs no more than what lies on it.
class FileWindow {
 public:
  FileWindow(io::File& file, size_t bytes_max)
      : file_(file), bytes_max_(bytes_max), buffer_(AllocateUntouched(bytes_max)) {}
  // The bytes [offset, offset + size), fewer where the file or `limit` ends; valid until the next call. When they are
  // not in memory it reads up to bytes_max. An error concerns these bytes alone. REQUIRES: the pages that hold
  // them are bytes_max at most.
  Result<ByteSpan> Load(uint64_t offset, size_t size, uint64_t limit);
  // What is there from `offset` on. REQUIRES: the last Load covered `offset`.
  ByteSpan From(uint64_t offset) const {
    assert(begin_ <= offset && offset <= begin_ + count_);
    return ByteSpan(buffer_.get() + (offset - begin_), static_cast<size_t>(begin_ + count_ - offset));
  }

 private:
  Status Fill(uint64_t offset, size_t size, uint64_t limit);

  io::File& file_;
  const size_t bytes_max_;
  AlignedMemory buffer_;
  uint64_t begin_ = 0;
  size_t count_ = 0;
  uint64_t suspect_end_ = 0;  // of the last large piece that could not be read
};

class SegmentScanner {
 public:
  enum class Want { kHeaders, kData };
  // Looks at [begin, end) of the file, which must outlive the scanner.
  SegmentScanner(io::File& file, const Generation& generation, uint64_t begin, uint64_t end, Want want);

  struct Record {
    uint64_t offset;
    RecordHeader header;
    // kData only; valid until the next call. Shorter than stored_bytes when the file ends; empty when it cannot be
    // read.
    ByteSpan data;
    uint64_t end() const { return offset + RecordBytes(header.stored_bytes); }
  };
  // The next record; nullopt at the end. The record's data is not checked against its digest.
  std::optional<Record> Next();

  // What was stepped over because it could not be read, and the first such error.
  uint64_t unreadable_bytes() const { return unreadable_bytes_; }
  const std::optional<Error>& read_error() const { return read_error_; }
  // Everything between the last record and where the scan is now reads as zeros.
  bool rest_is_zero() const { return rest_is_zero_; }

 private:
  void SkipToMagic();
  void NoteUnreadable(uint64_t begin, uint64_t end, const Error& error);

  const Generation generation_;
  const uint64_t end_;
  const Want want_;
  uint64_t position_;
  FileWindow window_;
  uint64_t unreadable_bytes_ = 0;
  std::optional<Error> read_error_;
  bool rest_is_zero_ = true;
};

}  // namespace cairnfs::store
