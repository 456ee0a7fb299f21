// Content of files: loading it, changing it other than by writing, and what it lays over attributes.
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

// Under memory pressure: a stream to which nothing was added for so long counts as one that nobody goes on with.
constexpr std::chrono::seconds kIdleFor{1};
// No buffer given back for so long: those that should be are not counted on any more.
constexpr std::chrono::seconds kStuckFor{1};

}  // namespace

Result<bool> FileSystem::Impl::LoadContent(const InodePtr& inode, bool may_wait) {
  if (inode->content && !inode->content->must_reload()) return true;
  if (host != nullptr) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::FileState state, parts.names.ReadFile(inode->id));
    CAIRNFS_RETURN_IF_ERROR(LoadShared(inode, state));
    return true;
  }
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, parts.kv.Get(meta::FileKey(inode->id)));
  CAIRNFS_ASSIGN_OR_RETURN(const chunking::Owner owner, FindOwner(inode->id));
  auto content = MakeContent(owner);
  if (entry) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::FileRecord record, meta::FileRecord::Decode(entry->value));
    CAIRNFS_ASSIGN_OR_RETURN(Recipe recipe, Recipe::Decode(record.recipe));
    if (recipe.is_tree && !may_wait) return false;
    CAIRNFS_RETURN_IF_ERROR(content->extents.Load(recipe, parts.chunks));
    content->size = content->published_size = record.size;
    content->mtime = record.mtime;
    content->ctime = record.ctime;
    // A record may name extents past its size, of bytes whose predecessors were not stored then.
    if (content->extents.extent_count() > 0) {
      if (!content->extents.IsLoaded(record.size, 1)) {
        if (!may_wait) return false;
        CAIRNFS_RETURN_IF_ERROR(content->extents.EnsureLoaded(record.size, 1, parts.chunks));
      }
      content->extents.Replace(record.size, kFileSizeMax - record.size, nullptr);
    }
  } else {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.GetAttr(inode->id));
    content->mtime = attr.mtime;
    content->ctime = attr.ctime;
  }
  inode->content = std::move(content);
  return true;
}

Result<chunking::Owner> FileSystem::Impl::FindOwner(InodeId id) {
  if (parts.dedup == meta::Dedup::kMount) return chunking::Owner{};
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, parts.names.GetAttr(id));
  return OwnerOf(attr.uid);
}

// What is written from now on is the new owner's; what was written stays the chunks of the one before.
void FileSystem::Impl::NoteOwner(InodeId id, uint32_t uid) {
  InodePtr inode = table.Find(id);
  if (!inode) return;
  MutexLock lock(inode->mutex);
  if (inode->content) inode->content->owner = OwnerOf(uid);
}

void FileSystem::Impl::DropContentIfUnused(const InodePtr& inode) {
  if (!inode->content || inode->open_count > 0) return;
  const Content& content = *inode->content;
  if (content.changed || content.unrecorded || !content.idle() || !content.overlay.empty()) return;
  inode->content.reset();
  table.contents_dropped++;
}

void FileSystem::Impl::Touch(Content& content) { content.mtime = content.ctime = Clock::WallTime(); }

void FileSystem::Impl::MarkChanged(const InodePtr& inode) {
  if (inode->content->changed) return;
  if (host != nullptr) inode->content->shared().session = host->session();
  rounds->AddChanged(inode);
}

Result<meta::Attr> FileSystem::Impl::ReadAttr(const std::function<Result<meta::Attr>()>& read) {
  // A store that gave a record's revision gives no older one; should it all the same, what it gives is told.
  constexpr int kTriesMax = 64;
  for (int tries = 1;; tries++) {
    // Between the look at the record and the look at the content a round may publish the one and drop the other.
    uint64_t dropped = table.contents_dropped;
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, read());
    if (host != nullptr) {
      if ((attr.mode & S_IFMT) != S_IFREG) return attr;
      if (OverlayShared(attr) || tries >= kTriesMax) return attr;
      continue;
    }
    if (Overlay(attr) || (attr.mode & S_IFMT) != S_IFREG || dropped == table.contents_dropped) return attr;
  }
}

bool FileSystem::Impl::Overlay(meta::Attr& attr) {
  if ((attr.mode & S_IFMT) != S_IFREG) return false;
  InodePtr inode = table.Find(attr.inode);
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

std::optional<Status> FileSystem::Impl::TryChange(const InodePtr& inode, const std::function<Status(Content&)>& change,
                                                  bool may_wait, bool empties, uint64_t session) {
  SyncRounds::Operation operation(*rounds);
  MutexLock lock(inode->mutex);
  auto loaded = LoadContent(inode, may_wait);
  // A session that is lost from here on finds the change made, and gives it up.
  if (host != nullptr) CAIRNFS_RETURN_IF_ERROR(CheckSameSession(session));
  if (!loaded.ok() && empties) {
    spdlog::warn("inode {} is emptied without its recipe, which cannot be read: {}", inode->id.value,
                 loaded.error().message);
    CAIRNFS_ASSIGN_OR_RETURN(const chunking::Owner owner, FindOwner(inode->id));
    if (!inode->content || host == nullptr) inode->content = MakeContent(owner);
    if (host != nullptr) inode->content->shared().is_void = false;
    loaded = true;
  }
  if (!loaded.ok()) return loaded.error();
  if (!*loaded) return std::nullopt;
  if (!may_wait && inode->content->extents.extent_count() > kInlineExtentsMax) return std::nullopt;
  // What found no space does not keep the file from being emptied, which is what makes room.
  if (empties && inode->content->IsQuietButForFailed()) streams->DiscardUnstored(inode);
  if (!inode->content->quiet()) return std::nullopt;
  Status status = change(*inode->content);
  if (status.ok()) MarkChanged(inode);
  streams->ScheduleCut(inode);
  return status;
}

Status FileSystem::Impl::ChangeQuietly(const InodePtr& inode, const std::function<Status(Content&)>& change,
                                       bool empties, uint64_t session) {
  for (;;) {
    if (auto status = TryChange(inode, change, true, empties, session)) return *status;
    MutexLock lock(inode->mutex);
    if (!inode->content) continue;
    inode->content->barriers_waiting++;
    while (inode->content && !inode->content->quiet()) {
      if (empties && inode->content->IsQuietButForFailed()) break;
      // What was given up with its session may be owed for as long as no round can go on.
      Status goes_on = host != nullptr ? CheckSameSession(session) : Status();
      if (goes_on.ok() && GivesUpOn(*inode->content)) goes_on = Unanswered();
      if (!goes_on.ok()) {
        inode->content->barriers_waiting--;
        return goes_on;
      }
      if (inode->changed_state.WaitFor(inode->mutex, std::chrono::milliseconds(200))) continue;
      // Chunks that found no space stay in flight until there is some: do not wait with them. Who empties the file,
      // which is the way out, waits for no more than the round that owes it: that ends, whatever finds no space.
      const Error* failure = inode->content ? inode->content->Failure() : nullptr;
      if (failure == nullptr || empties) continue;
      inode->content->barriers_waiting--;
      return failure->WithContext("what was written to the file before");
    }
    if (inode->content) inode->content->barriers_waiting--;
  }
}

void FileSystem::Impl::ChangeWhenQuiet(const InodePtr& inode, std::function<Status(Content&)> change, Done<void> done,
                                       bool empties) {
  if (auto status = TryChange(inode, change, false, empties, 0)) return done(*status);
  waiters->Post([this, inode, change = std::move(change), done = std::move(done), empties] {
    done(ChangeQuietly(inode, change, empties, 0));
  });
}

Status FileSystem::Impl::Punch(const InodePtr& inode, Content& content, uint64_t offset, uint64_t length) {
  if (length == 0) return {};
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset, 1, parts.chunks));
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset + length - 1, 1, parts.chunks));
  uint64_t before = content.extents.allocated_bytes();
  streams->RemoveRange(inode, offset, length);
  content.extents.Replace(offset, length, nullptr);
  content.ForgetLost(offset, offset + length);
  content.publish->NoteRange(offset, offset + length);
  if (uint64_t freed = before - content.extents.allocated_bytes()) NoteFreed(freed);
  return {};
}

Status FileSystem::Impl::Truncate(const InodePtr& inode, Content& content, uint64_t size) {
  inode->late_appends.Clear();
  inode->others_cut_from = 0;  // the kernel knows this end
  if (size == 0) {
    NoteFreed(content.extents.allocated_bytes());
    streams->RemoveRange(inode, 0, kFileSizeMax);
    content.extents = ExtentMap();
    content.pins.clear();
    content.ForgetLost(0, kFileSizeMax);
    Streams::ForgetRecipeError(inode);  // it was of the recipe of those bytes
  } else if (size < content.size) {
    CAIRNFS_RETURN_IF_ERROR(Punch(inode, content, size, kFileSizeMax - size));
  }
  content.publish->NoteTruncation(size);
  content.published_size = std::min(content.published_size, size);
  content.size = size;
  Touch(content);
  return {};
}

Status FileSystem::Impl::TakeError(const InodePtr& inode, Handle& handle) {
  MutexLock lock(handle.mutex);
  if (handle.error_seen >= inode->error_number || !inode->error) return {};
  handle.error_seen = inode->error_number;
  inode->error_told = true;
  return *inode->error;
}

Status FileSystem::Impl::TakeErrorLocked(Handle& handle) {
  const InodePtr& inode = handle.inode;
  MutexLock lock(inode->mutex);
  return TakeError(inode, handle);
}

HandleId FileSystem::Impl::AddHandle(const InodePtr& inode, const OpenFlags& flags) {
  auto handle = std::make_shared<Handle>();
  handle->inode = inode;
  handle->flags = flags;
  if (host != nullptr) {
    handle->session = host->session();
    handle->store_state = host->store_state();
  }
  {
    // An error that nobody was told is told to whoever opens the file for writing next. Who only reads it is told by
    // the reads of what is lost.
    MutexLock lock(handle->mutex);
    handle->error_seen = inode->errors_total - (flags.write && inode->error && !inode->error_told ? 1 : 0);
  }
  inode->open_count++;
  if (flags.write) {
    inode->write_open_count++;
    inode->refused_execs.clear();
  }
  table.Hold(inode->id);
  open_files++;
  return handles.Add(std::move(handle));
}

// The pool has run dry. What is on its way gives its buffers back by itself; tails of streams do not, which wait for
// more bytes.
void FileSystem::Impl::OnPressure(std::chrono::milliseconds without_release) {
  auto told = pressure_without_release.load();
  while (told < without_release && !pressure_without_release.compare_exchange_weak(told, without_release)) {
  }
  if (pressure_posted.exchange(true)) return;
  waiters->Post([this] {
    pressure_posted = false;  // who runs dry from here on may have written behind this pass: it gets one of its own
    GiveBackBuffers(pressure_without_release.exchange({}));
  });
}

// A tail that is given up ends a chunk where no cut is, and equal bytes written another time are cut otherwise there.
// So it is done to streams that nobody goes on with; to all only when nothing else will give buffers back.
void FileSystem::Impl::GiveBackBuffers(std::chrono::milliseconds without_release) {
  bool is_stuck = without_release >= kStuckFor;
  if (without_release > std::chrono::milliseconds(0) && !is_stuck) {
    bool any_on_its_way = parts.chunks.KeepsPutSlices();
    table.ForEachHeld([&any_on_its_way](const InodePtr& inode) {
      MutexLock lock(inode->mutex);
      any_on_its_way = any_on_its_way || (inode->content && inode->content->IsOnItsWay());
    });
    is_stuck = !any_on_its_way;
  }
  const auto idle_since = Clock::Now() - kIdleFor;
  table.ForEachHeld([this, is_stuck, idle_since](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->overlay.runs().empty()) return;
    Content& content = *inode->content;
    const bool goes_on = inode->write_open_count > 0 && content.written_at > idle_since;
    if (goes_on && !is_stuck) return;
    content.drop_runs = true;
    if (content.barriers_waiting == 0) streams->CutAll(inode);
    streams->DropStoredRuns(inode);
  });
}

}  // namespace cairnfs::fs
