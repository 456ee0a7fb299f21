// Appends records to the open segment.
//
// Bytes go through a few page-aligned staging windows, each of which stands for a range of a segment file. Append gives
// out a range under a short lock and copies outside of it, so several threads copy at once. A window that is full, and
// into which every copy has finished, is written at once: data leaves for the disk as it comes. A record may span two
// windows.
//
// Invariants:
//  - window_ is the only window that is not closed; it covers [window_->file_offset, ...) of current_, and
//    next_offset_ == window_->file_offset + window_->used.
//  - A closed window whose copies are 0 has been handed to ready_ or to the file.
//  - A window whose write failed stays as it is: after that nothing is written any more.
//  - No more windows are on their way at once than the disk writes in about kQueueMax. So a sync, which waits for what
//    was written before it, does not wait long for bytes that it does not need.
//  - A block (4 KiB) of a segment is written once: closing a window early pads it with zeros to the next block.
#pragma once

#include <array>
#include <functional>
#include <set>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "io/buffer_pool.h"
#include "store/aligned_memory.h"
#include "store/chunk_index_format.h"
#include "store/failure.h"
#include "store/segment.h"

namespace cairnfs::store {

class SegmentWriter {
 public:
  struct Options {
    uint64_t segment_bytes;
    size_t window_bytes;         // multiple of kPageBytes
    unsigned window_count = 24;  // the memory of each is taken when it is first needed
    size_t chunk_bytes_max;
    // The smallest segment that is worth making: one chunk of any size fits.
    uint64_t SegmentBytesMin() const;
    uint64_t reserve_bytes;
  };
  enum class Purpose { kSave, kCompaction };  // compaction may use part of the disk's reserve, since it makes room

  struct Hooks {
    std::function<void()> wake;                   // makes another thread call PrepareNext soon
    std::function<void(SegmentPtr)> on_complete;  // a sealed segment is written wholly; its unused end may go
  };
  // The hooks are called with the writer's lock held.
  SegmentWriter(const Options& options, SegmentSet& segments, SpaceMeter& space, FailureState& failure, Hooks hooks);
  ~SegmentWriter();  // waits for writes in flight

  struct Appended {
    Location location;
    SegmentPtr segment;
  };
  // Copies the chunk into the open segment. Its bytes are on the disk after WriteOut and a DataSync of the segments
  // that WriteOut names. The segment counts it as unindexed until the caller takes it off. kNoSpace, kFailed,
  // kTooLarge.
  Result<Appended> Append(const Digest& digest, std::span<const io::Slice> slices, size_t size, Purpose purpose);

  struct WrittenOut {
    std::vector<SegmentPtr> touched;  // to be synced
    SegmentId open_segment;
    uint64_t open_end = 0;
  };
  enum class WriteOutScope { kWriteOnly, kForSync };
  // Writes what was appended before the call, and waits for it. kNoSpace: to be called again later. Only kForSync takes
  // over the segments to be synced.
  Result<WrittenOut> WriteOut(WriteOutScope scope);
  // Seals the open segment; the next append opens another.
  void SealOpen();

  // Whether bytes of [begin, end) of the segment are still in the windows. The others have been written.
  bool HasStaged(SegmentId segment, uint64_t begin, uint64_t end) const;
  enum class Staged { kNo, kPartly, kCopied };
  // Copies those bytes of [offset, offset + size) of the segment that are still in the windows to their place in `out`.
  // The spans of `out` are that range in order.
  Staged CopyStaged(SegmentId segment, uint64_t offset, std::span<const MutableByteSpan> out);

  // Makes the next segment if one is wanted. For the background thread.
  void PrepareNext();
  void WakeAll();  // after a failure was recorded
  SegmentPtr open_segment() const;
  // Appended, and not written to their segments yet; with headers and padding.
  uint64_t staged_bytes() const { return staged_bytes_.load(std::memory_order_relaxed); }
  uint64_t written_bytes_total() const { return written_bytes_total_.load(std::memory_order_relaxed); }

 private:
  struct Window {
    AlignedMemory memory;
    SegmentPtr segment;
    std::shared_ptr<io::File> file;
    uint64_t file_offset = 0;
    size_t capacity = 0;
    size_t used = 0;
    bool busy = false;  // not in free_
    bool closed = false;
    bool written = false;  // stays busy while readers > 0
    Clock::time_point submitted_at;
    unsigned submitted_beside = 0;  // so many were on their way then, with it
    unsigned copies = 0;
    unsigned readers = 0;
    uint64_t sequence = 0;
  };
  struct Part {
    Window* window;
    size_t offset;
    size_t size;
  };
  struct Grant {
    SegmentPtr segment;
    uint64_t offset = 0;
    std::array<Part, 2> parts{};
    unsigned part_count = 0;
  };
  Result<Grant> Allocate(size_t record_bytes, Purpose purpose);
  Status WaitForRoom(size_t record_bytes, Purpose purpose) REQUIRES_LOCK(mutex_);
  Status SwitchSegment(Purpose purpose) REQUIRES_LOCK(mutex_);
  void SealCurrent() REQUIRES_LOCK(mutex_);
  void TakePart(size_t size, Grant* grant) REQUIRES_LOCK(mutex_);
  Window& OpenWindow() REQUIRES_LOCK(mutex_);
  void CloseWindow() REQUIRES_LOCK(mutex_);
  void FinishCopies(const Grant& grant);
  void SubmitReady() REQUIRES_LOCK(mutex_);  // lets go of the lock meanwhile
  void WriteLittle() REQUIRES_LOCK(mutex_);  // the same
  void OnWritten(Window* window, const Result<size_t>& result);
  void NoteSubmitted(Window& window) REQUIRES_LOCK(mutex_);
  void AdaptInFlight(const Window& window) REQUIRES_LOCK(mutex_);
  void ReleaseIfDone(Window& window) REQUIRES_LOCK(mutex_);
  void ReportIfComplete(const SegmentPtr& segment) REQUIRES_LOCK(mutex_);
  void RequestNext(Purpose purpose) REQUIRES_LOCK(mutex_);
  static void CopyRecord(const Grant& grant, const RecordHeader& header, std::span<const io::Slice> slices);

  const Options options_;
  SegmentSet& segments_;
  SpaceMeter& space_;
  FailureState& failure_;
  const Hooks hooks_;
  std::atomic<uint64_t> written_bytes_total_{0}, staged_bytes_{0};

  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::unique_ptr<Window>> windows_ GUARDED_BY(mutex_);
  std::vector<Window*> free_ GUARDED_BY(mutex_);
  std::vector<Window*> ready_ GUARDED_BY(mutex_);    // closed and copied, to be submitted
  std::vector<Window*> stuck_ GUARDED_BY(mutex_);    // their write found no space; WriteOut tries again
  std::set<uint64_t> unwritten_ GUARDED_BY(mutex_);  // sequences of windows that hold bytes not written
  uint64_t last_sequence_ GUARDED_BY(mutex_) = 0;
  unsigned in_flight_ GUARDED_BY(mutex_) = 0;
  unsigned in_flight_max_ GUARDED_BY(mutex_);  // no record goes into another window while so many are on their way
  Window* window_ GUARDED_BY(mutex_) = nullptr;
  SegmentPtr current_ GUARDED_BY(mutex_);
  std::shared_ptr<io::File> current_file_ GUARDED_BY(mutex_);
  uint64_t next_offset_ GUARDED_BY(mutex_) = 0;
  std::vector<SegmentPtr> touched_ GUARDED_BY(mutex_);  // appended to since the last WriteOut

  SegmentPtr next_ GUARDED_BY(mutex_);
  bool next_wanted_ GUARDED_BY(mutex_) = false;
  Purpose next_purpose_ GUARDED_BY(mutex_) = Purpose::kSave;
  uint64_t prepare_attempts_ GUARDED_BY(mutex_) = 0;
  Status prepare_status_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::store
