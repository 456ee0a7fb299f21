// The segment files of a store: the table of those in use, making, recycling and freeing them.
//
// Life of a segment file: new-ID (being made; removed at open) -> segment-ID (header synced before it gets this name)
// -> free-ID (kept for reuse, contents meaningless) -> new-ID2 -> ... or removed. Ids are never used twice.
//
// Whoever reads or writes a segment holds a shared_ptr to it; a freed segment's file is renamed or removed only after
// the last of them is gone, by ProcessReleased.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/thread_annotations.h"
#include "io/file.h"
#include "store/segment_format.h"
#include "store/space.h"

namespace cairnfs::store {

struct Segment {
  explicit Segment(const SegmentHeader& header_in) : header(header_in) {}
  const SegmentHeader header;
  bool header_damaged = false;  // in the file; constant once it is in the table
  std::string name() const { return MakeSegmentName(SegmentName::kSegment, header.id); }

  std::atomic<uint64_t> used_end{kSegmentHeaderBytes};  // where the next record would go, or the end of the last block
  std::atomic<uint64_t> file_bytes{0};                  // disk that the file takes
  std::atomic<bool> sealed{false};                      // nothing is appended any more
  std::atomic<uint64_t> unindexed{0};                   // records appended whose index entry is not in the engine yet
  std::atomic<bool> freed{false};                       // taken out of the table; the file goes when the last user does

  Mutex file_mutex;
  std::shared_ptr<io::File> file GUARDED_BY(file_mutex);  // null: closed to save descriptors
};
using SegmentPtr = std::shared_ptr<Segment>;

class SegmentSet {
 public:
  // `on_work` is called, on any thread, when ProcessReleased or CloseFilesBeyondLimit has something to do.
  SegmentSet(io::Disk& disk, SpaceMeter& space, std::function<void()> on_work);

  // A segment that is not in the table.
  SegmentPtr Make(const SegmentHeader& header);
  void Publish(const SegmentPtr& segment);  // puts it into the table
  void AddFree(SegmentId id, uint64_t file_bytes);
  void SetNextId(uint64_t next_id);
  uint64_t next_id() const { return next_id_.load(); }

  struct CreateOptions {
    uint64_t size_bytes;      // wanted
    uint64_t size_bytes_min;  // taken when the disk has no more
    uint64_t reserve_bytes;   // leave this much of the disk free
    const char* reserve_name = "the reserve";
  };
  // A segment ready for records: header and directory entry are durable, blocks allocated. Takes a freed one first.
  // Not in the table until Publish. kNoSpace, kExhausted: it can be tried again. kIo.
  Result<SegmentPtr> Create(const CreateOptions& options);
  // Frees one that is not in the table.
  void Discard(SegmentPtr segment);

  SegmentPtr Find(SegmentId id) const;
  std::vector<SegmentPtr> All() const;  // by id
  // Opens it when it is closed.
  Result<std::shared_ptr<io::File>> FileOf(Segment& segment);
  // Closes files of sealed segments when many are open; they open again when they are read.
  void CloseFilesBeyondLimit();

  // Takes it out of the table; the file is freed once nobody holds it. REQUIRES (unchecked): no
  // durable index entry names it.
  void Free(SegmentId id);
  // Renames or removes the files of freed segments; keeps at most `free_bytes_max` for reuse. Blocking.
  void ProcessReleased(uint64_t free_bytes_max);
  bool HasReleased() const;
  // Removes files kept for reuse until the disk has that much free or none is left. Whether any went. Blocking.
  bool GiveUpFree(uint64_t disk_free_bytes_wanted);
  bool HasFree() const;
  // Removes every file that is kept for reuse or half-made; how many. For a disk that no store has open.
  static Result<uint64_t> RemoveUnused(io::Disk& disk);

  struct Totals {
    uint64_t segment_count = 0, file_bytes = 0, free_bytes = 0;
  };
  Totals GetTotals() const;

 private:
  struct FreeFile {
    SegmentId id;
    SegmentName kind;
    uint64_t bytes;
    bool may_be_reused = true;
  };
  void OnLastRelease(Segment* segment);
  std::optional<FreeFile> TakeFree();
  Result<SegmentPtr> Recycle(const CreateOptions& options);
  Result<uint64_t> PrepareRecycled(SegmentHeader& header, const CreateOptions& options);
  Result<uint64_t> FitRecycled(io::File& file, const CreateOptions& options);
  Result<uint64_t> BytesBeyondReserve(const CreateOptions& options);
  Result<SegmentPtr> CreateFresh(const CreateOptions& options);
  Status WriteHeader(io::File& file, const SegmentHeader& header);
  Result<SegmentPtr> Finish(const SegmentHeader& header);
  Status SyncDirectory();
  void UpdateFreeRoom() REQUIRES_LOCK(mutex_);
  void ReleaseFile(const FreeFile& file, uint64_t free_bytes_max);

  io::Disk& disk_;
  SpaceMeter& space_;
  const std::function<void()> on_work_;
  std::atomic<unsigned> opened_{0};  // files, since CloseFilesBeyondLimit last looked
  std::atomic<uint64_t> next_id_{1};

  mutable Mutex mutex_;
  std::map<uint64_t, SegmentPtr> table_ GUARDED_BY(mutex_);
  std::vector<FreeFile> free_ GUARDED_BY(mutex_);
  uint64_t free_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<FreeFile> released_ GUARDED_BY(mutex_);  // freed, nobody holds them, still under their old name
};

}  // namespace cairnfs::store
