#include "fs/contents.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "fs/backing_files.h"
#include "fs/waits.h"

namespace cairnfs::fs {
namespace {

// Under memory pressure: a stream to which nothing was added for so long counts as one that nobody goes on with.
constexpr std::chrono::seconds kIdleFor{1};
// No buffer given back for so long: those that should be are not counted on any more.
constexpr std::chrono::seconds kStuckFor{1};
// How often who waits for a file to be quiet looks whether it still should.
constexpr auto kQuietLook = std::chrono::milliseconds(200);
// The kernel writes back and drops the pages of a write(2) before that returns: after this long, what comes is newer.
constexpr auto kOldPagesWrittenBackIn = std::chrono::seconds(10);

}  // namespace

Result<bool> Contents::Load(const Context& context, const InodePtr& inode, MayWait may_wait) {
  if (inode->content && !inode->content->must_reload()) return true;
  return records_.Load(context, inode, may_wait);
}

Status Contents::Load(const Context& context, const InodePtr& inode) {
  CAIRNFS_ASSIGN_OR_RETURN(const bool is_loaded, Load(context, inode, MayWait::kYes));
  static_cast<void>(is_loaded);
  return {};
}

void Contents::NoteOwner(InodeId id, uint32_t uid) {
  InodePtr inode = table_.Find(id);
  if (!inode) return;
  MutexLock lock(inode->mutex);
  if (inode->content) inode->content->owner = OwnerOf(parts_, uid);
}

void Contents::DropIfUnused(const InodePtr& inode) {
  if (!inode->content || inode->open_count > 0) return;
  const Content& content = *inode->content;
  if (content.changed || content.unrecorded || !content.idle() || !content.overlay.empty()) return;
  inode->content.reset();
  table_.contents_dropped++;
}

void Contents::Touch(Content& content) { content.mtime = content.ctime = Clock::WallTime(); }

void Contents::MarkChanged(const InodePtr& inode) {
  if (inode->content->changed) return;
  inode->ForgetReads();
  BackingFiles::NoteChanging(inode);
  records_.NoteChanging(*inode->content);
  rounds_.AddChanged(inode);
}

bool Contents::Overlay(meta::Attr& attr) {
  if ((attr.mode & S_IFMT) != S_IFREG) return false;
  InodePtr inode = table_.Find(attr.inode);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  if (!inode->content) return false;
  const Content& content = *inode->content;
  attr.size = content.size;
  attr.mtime = content.mtime;
  attr.ctime = std::max(attr.ctime, content.ctime);
  attr.allocated_bytes = content.AllocatedBytes();
  return true;
}

// A file that is emptied needs no room, unless it may have no record yet.
NameChange Contents::NameChangeOf(const FileChange& change, const Content& content) {
  if (change.empties && content.size > 0) return NameChange::kShortens;
  return change.adds ? NameChange::kMakes : NameChange::kAlters;
}

NameChange Contents::NameChangeOf(const FileChange& change) {
  MutexLock lock(change.inode->mutex);
  if (change.inode->content) return NameChangeOf(change, *change.inode->content);
  return change.adds ? NameChange::kMakes : NameChange::kAlters;
}

std::optional<Status> Contents::TryChange(const FileChange& change, MayWait may_wait) {
  const InodePtr& inode = change.inode;
  SyncRounds::Operation operation(rounds_);
  MutexLock lock(inode->mutex);
  auto loaded = Load(change.caller.context, inode, may_wait);
  // A session that is lost from here on finds the change made, and gives it up.
  CAIRNFS_RETURN_IF_ERROR(records_.CheckSession(change.session));
  if (!loaded.ok() && change.empties) {
    spdlog::warn("inode {} is emptied without its recipe, which cannot be read: {}", inode->id.value,
                 loaded.error().message);
    CAIRNFS_ASSIGN_OR_RETURN(const chunking::Owner owner, FindOwner(change.caller.context, parts_, inode->id));
    records_.BeginAnew(inode, owner);
    loaded = true;
  }
  if (!loaded.ok()) return loaded.error();
  if (!*loaded) return std::nullopt;
  const NameChange kind = NameChangeOf(change, *inode->content);
  if (!room_.Has({kind, change.caller.uid})) {
    if (may_wait == MayWait::kNo) return std::nullopt;
    CAIRNFS_RETURN_IF_ERROR(room_.Admit(kind, change.caller.uid));
  }
  if (may_wait == MayWait::kNo && inode->content->extents.extent_count() > kInlineExtentsMax) return std::nullopt;
  if (inode->freeze_points > 0) rounds_.DropFreezePoints();
  // What found no space does not keep the file from being emptied, which is what makes room.
  if (change.empties && inode->content->IsQuietButForFailed()) streams_.DiscardUnstored(inode);
  if (!inode->content->quiet()) return std::nullopt;
  Status status = change.apply(*inode->content);
  if (status.ok()) MarkChanged(inode);
  if (status.ok() && change.kills) inode->content->publish->NoteKills(*change.kills);
  streams_.ScheduleCut(inode);
  return status;
}

Status Contents::Change(const FileChange& change) {
  const InodePtr& inode = change.inode;
  for (bool after_round = false;;) {
    const uint64_t emptyings = room_.emptyings();
    auto status = TryChange(change, MayWait::kYes);
    const bool is_refused = status && !status->ok() && status->error().code == ErrorCode::kNoSpace;
    if (is_refused && !after_round && rounds_.UnwrittenBytes() > 0) {
      after_round = true;  // what was let in before may have taken less than it counted for
      static_cast<void>(rounds_.RequestAndWait(SyncRounds::Scope::kNames).ok());
      continue;
    }
    if (is_refused && room_.MakeRoomForNames({NameChangeOf(change), change.caller.uid}, emptyings)) continue;
    if (status) return *status;
    MutexLock lock(inode->mutex);
    if (!inode->content) continue;
    inode->content->barriers_waiting++;
    while (inode->content && !inode->content->quiet()) {
      if (change.empties && inode->content->IsQuietButForFailed()) break;
      Status goes_on =
          change.caller.context.Expired() ? CallerIsGone() : records_.CheckWait(*inode->content, change.session);
      if (!goes_on.ok()) {
        inode->content->barriers_waiting--;
        return goes_on;
      }
      if (inode->changed_state.WaitFor(inode->mutex, kQuietLook)) continue;
      // Chunks that found no space stay in flight until there is some: do not wait with them. Who empties the file,
      // which is the way out, waits for no more than the round that has it: that ends, whatever finds no space.
      const Error* failure = inode->content ? inode->content->Failure() : nullptr;
      if (failure == nullptr || change.empties) continue;
      inode->content->barriers_waiting--;
      return failure->WithContext("what was written to the file before");
    }
    if (inode->content) inode->content->barriers_waiting--;
  }
}

Status Contents::Punch(const InodePtr& inode, uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  Content& content = *inode->content;
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset, 1, parts_.chunks));
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset + length - 1, 1, parts_.chunks));
  uint64_t before = content.extents.allocated_bytes();
  streams_.RemoveRange(inode, offset, length);
  content.extents.Replace(offset, length, nullptr);
  content.ForgetLost(offset, offset + length);
  if (inode->backing) inode->backing->NotePunched(offset, std::min(offset + length, content.size));
  content.publish->NoteRange(offset, offset + length);
  if (uint64_t freed = before - content.extents.allocated_bytes()) room_.NoteFreed(freed);
  content.FoldNewBytes(content.AllocatedBytes());
  return {};
}

Status Contents::Truncate(const InodePtr& inode, uint64_t size) {
  Content& content = *inode->content;
  inode->late_appends.Clear();
  inode->others_cut_from = 0;  // the kernel knows this end
  if (size == 0) {
    room_.NoteFreed(content.extents.allocated_bytes());
    streams_.RemoveRange(inode, 0, kFileSizeMax);
    content.extents = ExtentMap();
    content.FoldNewBytes(0);
    content.accepted_bytes = 0;
    content.pins.clear();
    content.ForgetLost(0, kFileSizeMax);
    Streams::ForgetRecipeError(inode);  // it was of the recipe of those bytes
  } else if (size < content.size) {
    CAIRNFS_RETURN_IF_ERROR(Punch(inode, size, kFileSizeMax - size));
  }
  content.publish->NoteTruncation(size);
  content.published_size = std::min(content.published_size, size);
  content.size = size;
  if (inode->backing) inode->backing->NoteTruncated(size);
  Touch(content);
  return {};
}

Status Contents::CheckMayLay(const InodePtr& inode) {
  BackingFiles::NoteChanging(inode);
  if (!inode->backing) return {};
  return MakeError(ErrorCode::kNotSupported, "the kernel reads the file itself: its bytes are to be copied");
}

Status Contents::Lay(const InodePtr& inode, uint64_t offset, uint64_t length, const std::vector<Extent>& extents,
                     std::vector<store::ChunkPin> pins) {
  CAIRNFS_RETURN_IF_ERROR(CheckMayLay(inode));
  CAIRNFS_RETURN_IF_ERROR(Punch(inode, offset, length));
  Content& content = *inode->content;
  for (const Extent& extent : extents) {
    CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(extent.offset, extent.length, parts_.chunks));
    content.extents.Replace(extent.offset, extent.length, &extent);
  }
  NoteUnderPages(inode, offset, offset + length);
  std::move(pins.begin(), pins.end(), std::back_inserter(content.pins));
  content.size = std::max(content.size, offset + length);
  content.publish->NoteSizeMin(offset + length);
  Touch(content);
  return {};
}

void Contents::NoteUnderPages(const InodePtr& inode, uint64_t begin, uint64_t end) {
  if (!inode->mapped || begin >= end) return;
  inode->written_under_pages.Add(begin, end);
  inode->written_under_pages_at = Clock::Now();
}

// Of pages that were refused, what no write(2) has written since.
void Contents::LosePages(const InodePtr& inode, uint64_t offset, uint64_t length) {
  const uint64_t end = std::max(offset, std::min(offset + length, inode->content->size));
  ForgetOldWrites(inode);
  inode->written_under_pages.ForEachGap(offset, end, [&](uint64_t first, uint64_t last) {
    inode->mutex.AssertHeld();
    streams_.Lose(inode, first, last - first);
  });
}

// Pages that are written back so long after write(2) hold what was stored after it.
void Contents::ForgetOldWrites(const InodePtr& inode) {
  if (Clock::Now() - inode->written_under_pages_at > kOldPagesWrittenBackIn) {
    inode->written_under_pages.Clear();
  }
}

// Pages that the kernel writes back. It filled some of them before a write(2) that came since (docs/decisions/
// mappings.md): what they have where that wrote is not newer, and is left out.
bool Contents::AcceptPages(const InodePtr& inode, uint64_t offset, const io::Slice& data) {
  ForgetOldWrites(inode);
  uint64_t taken = 0;
  bool cuts = false;
  inode->written_under_pages.ForEachGap(offset, offset + data.size, [&](uint64_t begin, uint64_t end) {
    inode->mutex.AssertHeld();
    io::Slice piece = data;
    piece.data += begin - offset;
    piece.size = end - begin;
    taken += piece.size;
    if (streams_.Accept(inode, begin, piece)) cuts = true;
  });
  parts_.local_chunks.ReleaseReservation(data.size - taken);
  return cuts;
}

void Contents::NotePressure(std::chrono::milliseconds without_release) {
  auto told = pressure_without_release_.load();
  while (told < without_release && !pressure_without_release_.compare_exchange_weak(told, without_release)) {
  }
  if (is_pressure_posted_.exchange(true)) return;
  waiters_.Post([this] {
    is_pressure_posted_ = false;  // who runs dry from here on may have written behind this pass: it gets one of its own
    GiveBackBuffers(pressure_without_release_.exchange({}));
  });
}

// What is on its way gives its buffers back by itself; tails of streams do not, which wait for more bytes. A tail that
// is given up ends a chunk where no cut is, and equal bytes written another time are cut otherwise there.
// So it is done to streams that nobody goes on with; to all only when nothing else will give buffers back.
void Contents::GiveBackBuffers(std::chrono::milliseconds without_release) {
  bool is_stuck = without_release >= kStuckFor;
  if (without_release > std::chrono::milliseconds(0) && !is_stuck) {
    bool any_on_its_way = parts_.chunks.KeepsPutSlices();
    table_.ForEachHeld([&any_on_its_way](const InodePtr& inode) {
      MutexLock lock(inode->mutex);
      any_on_its_way = any_on_its_way || (inode->content && inode->content->IsOnItsWay());
    });
    is_stuck = !any_on_its_way;
  }
  const auto idle_since = Clock::Now() - kIdleFor;
  table_.ForEachHeld([this, is_stuck, idle_since](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->overlay.runs().empty()) return;
    Content& content = *inode->content;
    const bool goes_on = inode->write_open_count > 0 && content.written_at > idle_since;
    if (goes_on && !is_stuck) return;
    content.drop_runs = true;
    if (content.barriers_waiting == 0) streams_.CutAll(inode);
    streams_.DropStoredRuns(inode);
  });
}

}  // namespace cairnfs::fs
