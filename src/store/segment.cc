#include "store/segment.h"

#include <algorithm>

#include "base/failpoint.h"
#include "base/log.h"
#include "store/aligned_memory.h"
#include "store/local_chunk_store.h"

namespace cairnfs::store {
namespace {

Failpoint segment_created("store.segment_created", Failpoint::Kind::kKill);
Failpoint segment_header_written("store.segment_header_written", Failpoint::Kind::kKill);
Failpoint segment_recycled("store.segment_recycled", Failpoint::Kind::kKill);
Failpoint segment_freed("store.segment_freed", Failpoint::Kind::kKill);
Failpoint segment_header_sync("store.segment_header_sync", Failpoint::Kind::kSkippable);
Failpoint directory_sync("store.directory_sync", Failpoint::Kind::kSkippable);
Failpoint recycle_directory_sync("store.recycle_directory_sync", Failpoint::Kind::kSkippable);

}  // namespace

SegmentSet::SegmentSet(io::Disk& disk, SpaceMeter& space, std::function<void()> on_work)
    : disk_(disk), space_(space), on_work_(std::move(on_work)) {}

SegmentPtr SegmentSet::Make(const SegmentHeader& header) {
  return SegmentPtr(new Segment(header), [this](Segment* last) { OnLastRelease(last); });
}

void SegmentSet::OnLastRelease(Segment* segment) {
  std::unique_ptr<Segment> owned(segment);
  if (!owned->freed.load()) return;
  FreeFile file{owned->header.id, SegmentName::kSegment, owned->file_bytes.load(), !owned->header_damaged};
  owned.reset();
  {
    MutexLock lock(mutex_);
    released_.push_back(file);
  }
  on_work_();
}

void SegmentSet::Publish(const SegmentPtr& segment) {
  MutexLock lock(mutex_);
  table_.emplace(segment->header.id.value, segment);
}

void SegmentSet::AddFree(SegmentId id, uint64_t file_bytes) {
  MutexLock lock(mutex_);
  free_.push_back({id, SegmentName::kFree, file_bytes});
  free_bytes_ += file_bytes;
  UpdateFreeRoom();
}

void SegmentSet::SetNextId(uint64_t next_id) {
  if (next_id > next_id_.load()) next_id_.store(next_id);
}

void SegmentSet::UpdateFreeRoom() {
  uint64_t room = 0;
  for (const FreeFile& file : free_) room += space_.RoomOfSegment(file.bytes);
  space_.SetFreeSegmentsRoom(room);
}

// --- making ------------------------------------------------------------------------------------------------------

Result<SegmentPtr> SegmentSet::Create(const CreateOptions& options) {
  auto recycled = Recycle(options);
  if (recycled.ok() || recycled.error().code != ErrorCode::kNotFound) return recycled;
  return CreateFresh(options);
}

std::optional<SegmentSet::FreeFile> SegmentSet::TakeFree() {
  MutexLock lock(mutex_);
  if (free_.empty()) return std::nullopt;
  FreeFile file = free_.back();
  free_.pop_back();
  free_bytes_ -= file.bytes;
  UpdateFreeRoom();
  return file;
}

Result<SegmentPtr> SegmentSet::Recycle(const CreateOptions& options) {
  for (;;) {
    std::optional<FreeFile> free_file = TakeFree();
    if (!free_file) return MakeError(ErrorCode::kNotFound, "no freed segment");
    SegmentHeader header{SegmentId{next_id_.fetch_add(1)}, RandomGeneration(), 0};
    std::string name = MakeSegmentName(SegmentName::kNew, header.id);
    CAIRNFS_RETURN_IF_ERROR(disk_.Rename(MakeSegmentName(SegmentName::kFree, free_file->id), name));
    segment_recycled.Pass();
    auto size_bytes = PrepareRecycled(header, options);
    if (!size_bytes.ok()) {
      // Nobody knows the file by its new name. If only a descriptor was lacking, the file is as it was.
      const bool keep = size_bytes.error().code == ErrorCode::kExhausted;
      ReleaseFile({header.id, SegmentName::kNew, free_file->bytes, keep}, UINT64_MAX);
      return size_bytes.error();
    }
    if (*size_bytes > 0) return Finish(header);
    CAIRNFS_RETURN_IF_ERROR(disk_.Remove(name));
  }
}

// Makes the file under its new name fit and writes the header, with its size. 0: the file is too small.
Result<uint64_t> SegmentSet::PrepareRecycled(SegmentHeader& header, const CreateOptions& options) {
  // The old name must be gone for good before the header is overwritten, or a crash could leave a file whose name and
  // header disagree.
  if (!recycle_directory_sync.PassOrSkip()) CAIRNFS_RETURN_IF_ERROR(disk_.SyncDirectory());
  CAIRNFS_ASSIGN_OR_RETURN(auto file, disk_.Open(MakeSegmentName(SegmentName::kNew, header.id)));
  CAIRNFS_ASSIGN_OR_RETURN(header.size_bytes, FitRecycled(*file, options));
  if (header.size_bytes > 0) CAIRNFS_RETURN_IF_ERROR(WriteHeader(*file, header));
  return header.size_bytes;
}

// The size that a freed file can serve with; 0 when it is too small. Its tail was given back when it was sealed. It
// grows by what the disk has free beyond the reserve; without that it serves as it is.
Result<uint64_t> SegmentSet::FitRecycled(io::File& file, const CreateOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t size_bytes, file.Size());
  if (size_bytes >= options.size_bytes) return size_bytes;
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t usable, BytesBeyondReserve(options));
  const uint64_t own_bytes = AlignDown(size_bytes, kPageBytes);
  const uint64_t grown_bytes = std::min(options.size_bytes, own_bytes + AlignDown(usable, kPageBytes));
  if (grown_bytes < options.size_bytes_min) return 0;
  if (grown_bytes > own_bytes && file.Allocate(grown_bytes).ok()) return grown_bytes;
  if (own_bytes < options.size_bytes_min) return 0;
  CAIRNFS_RETURN_IF_ERROR(file.Truncate(own_bytes));
  return own_bytes;
}

Result<uint64_t> SegmentSet::BytesBeyondReserve(const CreateOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(io::Disk::Space space, disk_.GetSpace());
  return space.free_bytes > options.reserve_bytes ? space.free_bytes - options.reserve_bytes : 0;
}

Result<SegmentPtr> SegmentSet::CreateFresh(const CreateOptions& options) {
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t usable, BytesBeyondReserve(options));
  uint64_t size_bytes = std::min(options.size_bytes, AlignDown(usable, kPageBytes));
  for (; size_bytes >= options.size_bytes_min; size_bytes = AlignDown(size_bytes / 2, kPageBytes)) {
    SegmentHeader header{SegmentId{next_id_.fetch_add(1)}, RandomGeneration(), size_bytes};
    std::string name = MakeSegmentName(SegmentName::kNew, header.id);
    CAIRNFS_ASSIGN_OR_RETURN(auto file, disk_.Create(name));
    Status allocated = file->Allocate(size_bytes);
    segment_created.Pass();
    Status written = allocated.ok() ? WriteHeader(*file, header) : allocated;
    file.reset();
    if (written.ok()) return Finish(header);
    CAIRNFS_RETURN_IF_ERROR(disk_.Remove(name));
    if (written.error().code != ErrorCode::kNoSpace) return written.error();
  }
  space_.Refresh();
  return MakeError(ErrorCode::kNoSpace, "the disk has no room for another segment beyond the " +
                                            std::to_string(options.reserve_bytes) + " bytes kept free (" +
                                            options.reserve_name + ")");
}

Status SegmentSet::WriteHeader(io::File& file, const SegmentHeader& header) {
  AlignedMemory block = AllocateAligned(kSegmentHeaderBytes);
  MutableByteSpan bytes(block.get(), kSegmentHeaderBytes);
  EncodeSegmentHeader(header, bytes);
  CAIRNFS_RETURN_IF_ERROR(file.Write(0, bytes));
  segment_header_written.Pass();
  if (segment_header_sync.PassOrSkip()) return {};
  return file.DataSync();
}

Result<SegmentPtr> SegmentSet::Finish(const SegmentHeader& header) {
  SegmentPtr segment = Make(header);
  segment->file_bytes = header.size_bytes;
  CAIRNFS_RETURN_IF_ERROR(disk_.Rename(MakeSegmentName(SegmentName::kNew, header.id), segment->name()));
  if (!directory_sync.PassOrSkip()) CAIRNFS_RETURN_IF_ERROR(disk_.SyncDirectory());
  auto file = FileOf(*segment);
  if (!file.ok()) {
    Discard(std::move(segment));  // or its file would stay until the next start
    return file.error();
  }
  space_.Refresh();
  return segment;
}

// --- looking up --------------------------------------------------------------------------------------------------

SegmentPtr SegmentSet::Find(SegmentId id) const {
  MutexLock lock(mutex_);
  auto found = table_.find(id.value);
  return found == table_.end() ? nullptr : found->second;
}

std::vector<SegmentPtr> SegmentSet::All() const {
  MutexLock lock(mutex_);
  std::vector<SegmentPtr> all;
  all.reserve(table_.size());
  for (const auto& [id, segment] : table_) all.push_back(segment);
  return all;
}

Result<std::shared_ptr<io::File>> SegmentSet::FileOf(Segment& segment) {
  MutexLock file_lock(segment.file_mutex);
  if (segment.file) return segment.file;
  CAIRNFS_ASSIGN_OR_RETURN(segment.file, disk_.Open(segment.name()));
  if (opened_.fetch_add(1) + 1 == kSegmentFilesOpenMax / 2) on_work_();
  return segment.file;
}

void SegmentSet::CloseFilesBeyondLimit() {
  if (opened_.load() < kSegmentFilesOpenMax / 2) return;
  opened_ = 0;
  std::vector<SegmentPtr> all = All();
  size_t open_count = 0;
  for (const SegmentPtr& segment : all) {
    MutexLock lock(segment->file_mutex);
    open_count += segment->file != nullptr;
  }
  for (const SegmentPtr& segment : all) {
    if (open_count <= kSegmentFilesOpenMax / 2) break;
    std::shared_ptr<io::File> closing;
    MutexLock lock(segment->file_mutex);
    if (!segment->file || !segment->sealed.load()) continue;
    // A write that is not synced may fail to reach the disk. Only a descriptor that was open meanwhile is told.
    if (segment->unindexed.load() > 0) continue;
    closing = std::move(segment->file);
    segment->file = nullptr;
    --open_count;
  }
}

// --- freeing -----------------------------------------------------------------------------------------------------

void SegmentSet::Free(SegmentId id) {
  SegmentPtr segment;  // goes after the lock, because the last release takes it too
  {
    MutexLock lock(mutex_);
    auto found = table_.find(id.value);
    if (found == table_.end()) return;
    segment = std::move(found->second);
    table_.erase(found);
    segment->freed = true;
  }
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the reference ends here.
void SegmentSet::Discard(SegmentPtr segment) { segment->freed = true; }

bool SegmentSet::HasReleased() const {
  MutexLock lock(mutex_);
  return !released_.empty();
}

void SegmentSet::ProcessReleased(uint64_t free_bytes_max) {
  for (;;) {
    FreeFile file;
    {
      MutexLock lock(mutex_);
      if (released_.empty()) break;
      file = released_.back();
      released_.pop_back();
    }
    ReleaseFile(file, free_bytes_max);
  }
  space_.Refresh();
}

void SegmentSet::ReleaseFile(const FreeFile& file, uint64_t free_bytes_max) {
  std::string name = MakeSegmentName(file.kind, file.id);
  bool keep;
  {
    MutexLock lock(mutex_);
    keep = file.may_be_reused && free_bytes_ + file.bytes <= free_bytes_max;
  }
  Status done = keep ? disk_.Rename(name, MakeSegmentName(SegmentName::kFree, file.id)) : disk_.Remove(name);
  segment_freed.Pass();
  if (!done.ok()) {
    spdlog::warn("freeing segment file {}: {}", name, done.error().message);
    return;
  }
  if (keep) AddFree(file.id, file.bytes);
}

bool SegmentSet::HasFree() const {
  MutexLock lock(mutex_);
  return !free_.empty();
}

bool SegmentSet::GiveUpFree(uint64_t disk_free_bytes_wanted) {
  bool any_removed = false;
  while (HasFree()) {
    auto space = disk_.GetSpace();
    if (!space.ok() || space->free_bytes >= disk_free_bytes_wanted) break;
    std::optional<FreeFile> file = TakeFree();
    if (!file) break;
    std::string name = MakeSegmentName(SegmentName::kFree, file->id);
    Status removed = disk_.Remove(name);
    if (removed.ok()) {
      any_removed = true;
    } else {
      spdlog::warn("removing {}: {}", name, removed.error().message);
    }
  }
  if (any_removed) space_.Refresh();
  return any_removed;
}

Result<uint64_t> SegmentSet::RemoveUnused(io::Disk& disk) {
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<std::string> names, disk.List());
  uint64_t removed = 0;
  for (const std::string& name : names) {
    auto parsed = ParseSegmentName(name);
    if (!parsed || parsed->kind == SegmentName::kSegment) continue;
    CAIRNFS_RETURN_IF_ERROR(disk.Remove(name));
    ++removed;
  }
  return removed;
}

SegmentSet::Totals SegmentSet::GetTotals() const {
  MutexLock lock(mutex_);
  Totals totals;
  for (const auto& [id, segment] : table_) {
    ++totals.segment_count;
    totals.file_bytes += segment->file_bytes.load();
  }
  totals.free_bytes = free_bytes_;
  totals.file_bytes += free_bytes_;
  for (const FreeFile& file : released_) totals.file_bytes += file.bytes;
  return totals;
}

}  // namespace cairnfs::store
