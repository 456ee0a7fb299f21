#include "store/segment_writer.h"

#include <algorithm>
#include <cassert>

#include "store/stream_copy.h"

namespace cairnfs::store {
namespace {

constexpr size_t kLittleBytesMax = 128 * kKiB;

// What is on its way to the disk takes it about so long, where two windows do not take longer.
constexpr std::chrono::milliseconds kQueueMax{250};
constexpr unsigned kInFlightMin = 2;

}  // namespace

SegmentWriter::SegmentWriter(const Options& options, SegmentSet& segments, SpaceMeter& space, FailureState& failure,
                             Hooks hooks)
    : options_(options),
      segments_(segments),
      space_(space),
      failure_(failure),
      hooks_(std::move(hooks)),
      in_flight_max_(kInFlightMin) {
  MutexLock lock(mutex_);
  for (unsigned i = 0; i < options_.window_count; ++i) {
    windows_.push_back(std::make_unique<Window>());
  }
  for (auto window = windows_.rbegin(); window != windows_.rend(); ++window) free_.push_back(window->get());
}

SegmentWriter::~SegmentWriter() {
  MutexLock lock(mutex_);
  while (in_flight_ > 0) changed_.Wait(mutex_);
  if (next_) segments_.Discard(std::move(next_));
}

// --- appending ---------------------------------------------------------------------------------------------------

Result<SegmentWriter::Appended> SegmentWriter::Append(const Digest& digest, std::span<const io::Slice> slices,
                                                      size_t size, Purpose purpose) {
  if (size > options_.chunk_bytes_max) {
    return MakeError(ErrorCode::kTooLarge, "a chunk of " + std::to_string(size) + " bytes; segments hold at most " +
                                               std::to_string(options_.chunk_bytes_max));
  }
  CAIRNFS_ASSIGN_OR_RETURN(Grant grant, Allocate(RecordBytes(size), purpose));
  RecordHeader header{kCodecRaw, static_cast<uint32_t>(size), static_cast<uint32_t>(size), digest};
  CopyRecord(grant, header, slices);
  FinishCopies(grant);
  Location location{grant.segment->header.id, grant.offset, header.stored_bytes, header.raw_bytes, header.codec};
  return Appended{location, std::move(grant.segment)};
}

Result<SegmentWriter::Grant> SegmentWriter::Allocate(size_t record_bytes, Purpose purpose) {
  MutexLock lock(mutex_);
  CAIRNFS_RETURN_IF_ERROR(WaitForRoom(record_bytes, purpose));
  Grant grant;
  grant.segment = current_;
  grant.offset = next_offset_;
  if (touched_.empty() || touched_.back() != current_) touched_.push_back(current_);
  size_t left = record_bytes;
  while (left > 0) {
    Window& window = window_ ? *window_ : OpenWindow();
    size_t part = std::min(left, window.capacity - window.used);
    TakePart(part, &grant);
    left -= part;
  }
  current_->used_end.store(next_offset_);
  current_->unindexed.fetch_add(1);
  space_.SetOpenRoom(SpaceMeter::UsableBytes(kSegmentHeaderBytes + current_->header.size_bytes - next_offset_));
  if (next_offset_ > current_->header.size_bytes / 2 && !next_) RequestNext(Purpose::kSave);
  return grant;
}

// On return current_ has room for the record, and so have the window and the free ones together.
Status SegmentWriter::WaitForRoom(size_t record_bytes, Purpose purpose) {
  for (;;) {
    CAIRNFS_RETURN_IF_ERROR(failure_.Check());
    if (!stuck_.empty()) return MakeError(ErrorCode::kNoSpace, "the disk had no room for bytes already taken");
    if (!current_ || current_->header.size_bytes - next_offset_ < record_bytes) {
      CAIRNFS_RETURN_IF_ERROR(SwitchSegment(purpose));
      continue;
    }
    size_t room = window_ ? window_->capacity - window_->used : 0;
    if (room >= record_bytes || (!free_.empty() && in_flight_ < in_flight_max_)) return {};
    changed_.Wait(mutex_);
  }
}

// Seals the full segment and goes on to the next, waiting until it is there. May return with nothing changed.
Status SegmentWriter::SwitchSegment(Purpose purpose) {
  if (current_) {
    SealCurrent();
    SubmitReady();
    return {};
  }
  if (!next_) {
    // An attempt for a save may fail, while the attempt for compaction, which may take more room, is still to come.
    uint64_t attempts_end = prepare_attempts_ + (purpose == Purpose::kCompaction ? 3 : 1);
    while (!next_ && !current_ && prepare_attempts_ < attempts_end && !failure_.failed()) {
      RequestNext(purpose);
      changed_.Wait(mutex_);
    }
    if (!next_ && !current_ && !prepare_status_.ok()) return prepare_status_.error();
    return {};
  }
  CAIRNFS_ASSIGN_OR_RETURN(current_file_, segments_.FileOf(*next_));
  current_ = std::move(next_);
  next_ = nullptr;
  next_offset_ = kSegmentHeaderBytes;
  segments_.Publish(current_);
  space_.SetPreparedRoom(0);
  space_.SetOpenRoom(SpaceMeter::UsableBytes(current_->header.size_bytes));
  changed_.NotifyAll();
  return {};
}

void SegmentWriter::SealCurrent() {
  if (!current_) return;
  CloseWindow();
  current_->used_end.store(next_offset_);
  current_->sealed.store(true);
  ReportIfComplete(current_);
  current_ = nullptr;
  current_file_ = nullptr;
  space_.SetOpenRoom(0);
}

SegmentWriter::Window& SegmentWriter::OpenWindow() {
  assert(!free_.empty());
  window_ = free_.back();
  if (!window_->memory) window_->memory = AllocateUntouched(options_.window_bytes);
  free_.pop_back();
  window_->segment = current_;
  window_->file = current_file_;
  window_->file_offset = next_offset_;
  window_->capacity = std::min<uint64_t>(options_.window_bytes, current_->header.size_bytes - window_->file_offset);
  window_->used = 0;
  window_->busy = true;
  window_->closed = window_->written = false;
  window_->copies = window_->readers = 0;
  window_->sequence = ++last_sequence_;
  unwritten_.insert(window_->sequence);
  return *window_;
}

void SegmentWriter::TakePart(size_t size, Grant* grant) {
  assert(grant->part_count < grant->parts.size());
  grant->parts[grant->part_count++] = Part{window_, window_->used, size};
  ++window_->copies;
  window_->used += size;
  staged_bytes_.fetch_add(size, std::memory_order_relaxed);
  next_offset_ += size;
  if (window_->used == window_->capacity) CloseWindow();
}

// A window with copies still running goes to ready_ when the last of them finishes.
void SegmentWriter::CloseWindow() {
  if (!window_) return;
  size_t padded = AlignUp(window_->used, kPageBytes);
  std::memset(window_->memory.get() + window_->used, 0, padded - window_->used);
  next_offset_ += padded - window_->used;
  staged_bytes_.fetch_add(padded - window_->used, std::memory_order_relaxed);
  window_->used = padded;
  window_->closed = true;
  if (window_->copies == 0) ready_.push_back(window_);
  window_ = nullptr;
}

void SegmentWriter::CopyRecord(const Grant& grant, const RecordHeader& header, std::span<const io::Slice> slices) {
  unsigned index = 0;
  size_t at = 0;
  auto copy = [&](const std::byte* from, size_t size) {
    while (size > 0) {
      const Part& part = grant.parts[index];
      if (at == part.size) {
        ++index;
        at = 0;
        continue;
      }
      size_t count = std::min(size, part.size - at);
      StreamCopy(part.window->memory.get() + part.offset + at, from, count);
      from += count;
      at += count;
      size -= count;
    }
  };
  std::array<std::byte, kRecordHeaderBytes> encoded;
  EncodeRecordHeader(header, grant.segment->header.generation, grant.offset, encoded);
  copy(encoded.data(), encoded.size());
  for (const io::Slice& slice : slices) copy(slice.data, slice.size);
  static constexpr std::array<std::byte, kRecordAlignment> kZeros{};
  copy(kZeros.data(), RecordBytes(header.stored_bytes) - kRecordHeaderBytes - header.stored_bytes);
}

void SegmentWriter::FinishCopies(const Grant& grant) {
  MutexLock lock(mutex_);
  for (unsigned i = 0; i < grant.part_count; ++i) {
    Window& window = *grant.parts[i].window;
    if (--window.copies == 0 && window.closed) ready_.push_back(&window);
  }
  SubmitReady();
}

// --- writing -----------------------------------------------------------------------------------------------------

void SegmentWriter::NoteSubmitted(Window& window) {
  window.submitted_at = Clock::Now();
  window.submitted_beside = ++in_flight_;
}

// The disk took `took` for all that was on its way when the window was submitted.
void SegmentWriter::AdaptInFlight(const Window& window) {
  const auto took = Clock::Now() - window.submitted_at;
  if (took > kQueueMax) {
    const auto within = static_cast<unsigned>(window.submitted_beside * kQueueMax / took);
    in_flight_max_ = std::max(kInFlightMin, std::min(in_flight_max_, within));
  } else if (in_flight_max_ < options_.window_count && window.submitted_beside >= in_flight_max_ &&
             window.used > options_.window_bytes / 2) {  // a small one tells nothing of larger ones
    ++in_flight_max_;
  }
}

void SegmentWriter::SubmitReady() {
  while (!ready_.empty()) {
    Window* window = ready_.back();
    ready_.pop_back();
    NoteSubmitted(*window);
    mutex_.Unlock();
    window->file->WriteAsync(window->file_offset, ByteSpan(window->memory.get(), window->used),
                             [this, window](const Result<size_t>& result) { OnWritten(window, result); });
    mutex_.Lock();
  }
}

// A thread that waits for one small write makes it itself: to wake two threads for it would take longer.
void SegmentWriter::WriteLittle() {
  if (ready_.size() != 1 || ready_.back()->used > kLittleBytesMax) return;
  Window* window = ready_.back();
  ready_.pop_back();
  NoteSubmitted(*window);
  mutex_.Unlock();
  const Status written = window->file->Write(window->file_offset, ByteSpan(window->memory.get(), window->used));
  OnWritten(window, written.ok() ? Result<size_t>(window->used) : Result<size_t>(written.error()));
  mutex_.Lock();
}

void SegmentWriter::OnWritten(Window* window, const Result<size_t>& result) {
  const bool out_of_space = !result.ok() && result.error().code == ErrorCode::kNoSpace;
  const bool failed = !result.ok() && !out_of_space;
  if (failed) failure_.Fail(result.error().WithContext("writing " + window->segment->name()));
  MutexLock lock(mutex_);
  --in_flight_;
  AdaptInFlight(*window);
  if (out_of_space) {
    stuck_.push_back(window);
  } else if (!failed) {  // one that failed keeps its bytes, which are nowhere else, for those who read them
    written_bytes_total_.fetch_add(window->used, std::memory_order_relaxed);
    staged_bytes_.fetch_sub(window->used, std::memory_order_relaxed);
    window->written = true;
    unwritten_.erase(window->sequence);
    ReportIfComplete(window->segment);
    ReleaseIfDone(*window);
  }
  changed_.NotifyAll();
}

void SegmentWriter::ReleaseIfDone(Window& window) {
  if (!window.busy || !window.written || window.readers > 0) return;
  window.busy = false;
  window.segment = nullptr;
  window.file = nullptr;
  free_.push_back(&window);
  changed_.NotifyAll();
}

void SegmentWriter::ReportIfComplete(const SegmentPtr& segment) {
  if (!segment->sealed.load()) return;
  for (const auto& window : windows_) {
    if (window->busy && !window->written && window->segment == segment) return;
  }
  hooks_.on_complete(segment);
}

Result<SegmentWriter::WrittenOut> SegmentWriter::WriteOut(WriteOutScope scope) {
  MutexLock lock(mutex_);
  CAIRNFS_RETURN_IF_ERROR(failure_.Check());
  ready_.insert(ready_.end(), stuck_.begin(), stuck_.end());
  stuck_.clear();
  CloseWindow();
  WrittenOut out;
  if (scope == WriteOutScope::kForSync) out.touched = std::exchange(touched_, {});
  if (current_) {
    current_->used_end.store(next_offset_);
    out.open_segment = current_->header.id;
    out.open_end = next_offset_;
  }
  uint64_t sequence = last_sequence_;
  WriteLittle();
  SubmitReady();
  while (!unwritten_.empty() && *unwritten_.begin() <= sequence && stuck_.empty() && !failure_.failed()) {
    changed_.Wait(mutex_);
  }
  Status status = failure_.Check();
  if (status.ok() && !stuck_.empty()) status = MakeError(ErrorCode::kNoSpace, "the disk has no room for bytes taken");
  if (status.ok()) return out;
  touched_.insert(touched_.begin(), out.touched.begin(), out.touched.end());
  return status.error();
}

void SegmentWriter::SealOpen() {
  MutexLock lock(mutex_);
  SealCurrent();
  SubmitReady();
}

void SegmentWriter::WakeAll() {
  MutexLock lock(mutex_);
  changed_.NotifyAll();
}

SegmentPtr SegmentWriter::open_segment() const {
  MutexLock lock(mutex_);
  return current_;
}

// --- reading what is not written yet -----------------------------------------------------------------------------

bool SegmentWriter::HasStaged(SegmentId segment, uint64_t begin, uint64_t end) const {
  MutexLock lock(mutex_);
  return std::any_of(windows_.begin(), windows_.end(), [&](const auto& window) {
    return window->busy && window->segment->header.id == segment && window->file_offset < end &&
           begin < window->file_offset + window->used;
  });
}

SegmentWriter::Staged SegmentWriter::CopyStaged(SegmentId segment, uint64_t offset,
                                                std::span<const MutableByteSpan> out) {
  struct Piece {
    Window* window;
    const std::byte* from;
    size_t at;  // in the whole of `out`
    size_t size;
  };
  size_t wanted = 0;
  for (const MutableByteSpan& span : out) wanted += span.size();
  std::vector<Piece> pieces;
  size_t found = 0;
  {
    MutexLock lock(mutex_);
    for (const auto& window : windows_) {
      if (!window->busy || window->segment->header.id != segment) continue;
      uint64_t begin = std::max(offset, window->file_offset);
      uint64_t end = std::min(offset + wanted, window->file_offset + window->used);
      if (begin >= end) continue;
      pieces.push_back(
          {window.get(), window->memory.get() + (begin - window->file_offset), begin - offset, end - begin});
      found += end - begin;
    }
    if (found == 0) return Staged::kNo;
    for (const Piece& piece : pieces) ++piece.window->readers;
  }
  for (const Piece& piece : pieces) {
    size_t at = 0;
    for (const MutableByteSpan& span : out) {
      size_t begin = std::max(at, piece.at);
      size_t end = std::min(at + span.size(), piece.at + piece.size);
      if (begin < end) std::memcpy(span.data() + (begin - at), piece.from + (begin - piece.at), end - begin);
      at += span.size();
    }
  }
  MutexLock lock(mutex_);
  for (const Piece& piece : pieces) {
    --piece.window->readers;
    ReleaseIfDone(*piece.window);
  }
  return found < wanted ? Staged::kPartly : Staged::kCopied;
}

// --- the next segment --------------------------------------------------------------------------------------------

void SegmentWriter::RequestNext(Purpose purpose) {
  if (next_wanted_ && (next_purpose_ == purpose || purpose == Purpose::kSave)) return;
  next_wanted_ = true;
  next_purpose_ = purpose;
  hooks_.wake();
}

uint64_t SegmentWriter::Options::SegmentBytesMin() const {
  return std::min<uint64_t>(segment_bytes, AlignUp(RecordBytes(chunk_bytes_max), kPageBytes) + kSegmentHeaderBytes);
}

void SegmentWriter::PrepareNext() {
  SegmentSet::CreateOptions options;
  options.size_bytes = options_.segment_bytes;
  options.size_bytes_min = options_.SegmentBytesMin();
  {
    MutexLock lock(mutex_);
    if (!next_wanted_ || next_) return;
    bool ahead = current_ != nullptr && current_->header.size_bytes - next_offset_ > options_.chunk_bytes_max;
    options.reserve_bytes = space_.KeptBytes();
    if (next_purpose_ == Purpose::kCompaction && !ahead) {
      options.reserve_bytes = options_.reserve_bytes / 4;
      options.reserve_name = "a quarter of the reserve: a collection may use the rest";
    }
    next_wanted_ = false;
  }
  auto made = segments_.Create(options);
  MutexLock lock(mutex_);
  ++prepare_attempts_;
  prepare_status_ = Status{};
  if (made.ok()) {
    next_ = *made;
    space_.SetPreparedRoom(SpaceMeter::UsableBytes(next_->header.size_bytes));
  } else {
    Error error = made.error();
    // No file was opened, so nothing that was written is in doubt. The bytes wait, as they do without room.
    if (error.code == ErrorCode::kExhausted) error.code = ErrorCode::kNoSpace;
    if (error.code != ErrorCode::kNoSpace) failure_.Fail(error.WithContext("making a segment"));
    prepare_status_ = std::move(error);
  }
  changed_.NotifyAll();
}

}  // namespace cairnfs::store
