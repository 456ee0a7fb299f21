#include "fs/reader.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "fs/host_waits.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kZeroBytes = kMiB;
constexpr size_t kSlicesMax = 512;  // a reply is one writev: fewer than IOV_MAX pieces

const std::byte* Zeros() {
  static const std::vector<std::byte> zeros(kZeroBytes);
  return zeros.data();
}

void AppendZeros(std::vector<io::Slice>& slices, uint64_t length) {
  while (length > 0) {
    const auto size = std::min<uint64_t>(length, kZeroBytes);
    slices.push_back({{}, Zeros(), size});
    length -= size;
  }
}

}  // namespace

// One read in progress: parts in file order, each bytes in memory, a hole, or a chunk that is being fetched.
struct Reader::Plan {
  explicit Plan(std::atomic<uint64_t>& running_count) : running(running_count) {}
  struct Running {
    explicit Running(std::atomic<uint64_t>& running_count) : count(running_count) { ++count; }
    ~Running() { --count; }
    Running(const Running&) = delete;
    std::atomic<uint64_t>& count;
  };
  const Running running;  // destroyed last: without any, all that the others point into may go
  struct Part {
    uint64_t length = 0;
    io::Slice bytes{};               // in memory
    std::optional<Extent> extent{};  // stored
    store::ChunkData chunk{};        // once fetched
  };
  InodePtr inode;
  uint64_t offset = 0;
  size_t size = 0;
  ReadOptions options;
  bool from_disk = false;
  unsigned attempt = 0;
  bool saw_others = false;
  HostWaits waits;
  Done<FileSystem::ReadResult> done;
  std::vector<Part> parts;
  std::atomic<size_t> missing{0};
  Mutex mutex;
  std::optional<Error> error GUARDED_BY(mutex);
  std::vector<Digest> away GUARDED_BY(mutex);  // chunks that other hosts may have

  void AddExtents(const ExtentMap& extents, uint64_t from, uint64_t length) {
    uint64_t position = from, end = from + length;
    extents.ForEach(from, length, [&](const Extent& extent) {
      AddHole(extent.offset - position);
      parts.push_back({.length = extent.length, .extent = extent});
      position = extent.end();
    });
    AddHole(end - position);
  }
  void AddHole(uint64_t length) {
    if (length > 0) parts.push_back({.length = length});
  }
  FileSystem::ReadResult Assemble() const;
  // The error is of no fault: it ended what its caller, who is gone, did not wait for.
  bool HasNobodyWaiting(const Error& why) const {
    return why.code == ErrorCode::kInterrupted || options.caller.context.Expired();
  }
};

FileSystem::ReadResult Reader::Plan::Assemble() const {
  FileSystem::ReadResult result;
  for (const Part& part : parts) {
    result.size += part.length;
    if (part.extent) {
      uint64_t skip = part.extent->chunk_offset, left = part.length;
      for (const io::Slice& slice : part.chunk.slices) {
        if (left == 0) break;
        if (skip >= slice.size) {
          skip -= slice.size;
          continue;
        }
        uint64_t take = std::min<uint64_t>(left, slice.size - skip);
        result.slices.push_back(slice.Sub(skip, take));
        left -= take;
        skip = 0;
      }
    } else if (part.bytes.data != nullptr) {
      result.slices.push_back(part.bytes);
    } else {
      AppendZeros(result.slices, part.length);
    }
  }
  return result;
}

namespace {

// Many small pieces become one, which the reply can carry.
void Coalesce(FileSystem::ReadResult& result, io::BufferPool& pool) {
  if (result.slices.size() <= kSlicesMax || result.size > io::BufferPool::kPayloadBytes) return;
  io::BufferRef buffer = pool.AcquireReserved();
  if (!buffer) return;
  size_t at = 0;
  for (const io::Slice& slice : result.slices) {
    std::memcpy(buffer.payload() + at, slice.data, slice.size);
    at += slice.size;
  }
  const std::byte* whole = buffer.payload();
  result.slices.assign({io::Slice{std::move(buffer), whole, at}});
}

}  // namespace

void Reader::AwaitRunning() {
  while (running_.load() > 0) Clock::SleepFor(std::chrono::milliseconds(1));
}

void Reader::Read(HandleId handle_id, InodeId id, uint64_t offset, size_t size, Done<FileSystem::ReadResult> done,
                  const ReadOptions& options) {
  HandlePtr handle = at_.handles.Find(handle_id);
  InodePtr inode = handle ? handle->inode : at_.table.Find(id);
  if (!inode) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (options.for_page_cache) inode->mapped = true;
  auto plan = std::make_shared<Plan>(running_);
  plan->inode = inode;
  plan->offset = offset;
  plan->size = size;
  plan->options = options;
  plan->from_disk = handle && handle->flags.from_disk;
  plan->done = [this, handle, done = std::move(done)](Result<FileSystem::ReadResult> result) {
    // After the look at the store, which may be how it comes out.
    if (const Status same = handle ? at_.session.CheckRead(*handle) : Status(); !same.ok()) return done(same.error());
    if (result.ok()) {
      bytes_total_ += result->size;
      Coalesce(*result, at_.parts.pool);
    }
    done(std::move(result));
  };
  if (handle) {
    CheckAtime(*handle);
    if (!plan->from_disk) ReadAhead(*handle, inode, offset, size);
  }
  // The first look at a program, from which on the kernel lets nobody write to it.
  const bool executes = handle && handle->flags.executes && !options.for_page_cache;
  if (executes && inode->told_set_id != 0) return ReadForExec(plan);
  Start(plan);
}

void Reader::NotePassed(HandleId handle_id) {
  if (const HandlePtr handle = at_.handles.Find(handle_id)) CheckAtime(*handle);
}

void Reader::ReadForExec(const PlanPtr& plan) {
  auto read = [this, plan] {
    const Result<bool> is_in_doubt = at_.privileges.MayBelieveOldSetId(plan->options.caller.context, plan->inode);
    if (!is_in_doubt.ok()) return plan->done(is_in_doubt.error());
    if (*is_in_doubt) return plan->done(MakeError(ErrorCode::kBusy, "its set-id bits went while it was opened"));
    Start(plan);
  };
  at_.calls.Run(plan->options.caller, read, [plan](const Status& refused) { plan->done(refused.error()); });
}

void Reader::Start(const PlanPtr& plan) {
  switch (PlanParts(*plan)) {
    case Step::kFetch: return FetchParts(plan);
    case Step::kLookForOthers:
      return at_.sharing.LookForOthers(plan->inode, plan->options.caller, [this, plan](const Status& seen) {
        if (!seen.ok()) return FailLoad(plan, seen.error());
        Start(plan);
      });
    case Step::kLoad: return at_.waiters.Post([this, plan] { Load(plan); });
    case Step::kFailLost:
      return plan->done(MakeError(ErrorCode::kIo, "bytes of this file could not be stored and are lost"));
  }
}

Reader::Step Reader::PlanParts(Plan& plan) {
  const InodePtr& inode = plan.inode;
  MutexLock lock(inode->mutex);
  if (!plan.saw_others && at_.sharing.MustLook(inode)) {
    plan.saw_others = true;
    return Step::kLookForOthers;
  }
  bool ready = inode->content != nullptr && !inode->content->must_reload();
  uint64_t length = 0;
  if (ready) {
    Content& content = *inode->content;
    length = plan.offset >= content.size ? 0 : std::min<uint64_t>(plan.size, content.size - plan.offset);
    ready = content.extents.IsLoaded(plan.offset, length);
  }
  if (!ready) return Step::kLoad;
  const Content& content = *inode->content;
  at_.sharing.NoteRead(inode);
  inode->bytes_read += length;
  if (content.size >= BackingFiles::kSizeMin) inode->is_read_through |= inode->bytes_read >= content.size;
  if (plan.options.for_page_cache) inode->written_under_pages.Remove(plan.offset, plan.offset + plan.size);
  plan.parts.clear();
  bool is_lost = false;
  content.overlay.Visit(
      plan.offset, length,
      [&](uint64_t, const io::Slice& slice) { plan.parts.push_back({.length = slice.size, .bytes = slice}); },
      [&](uint64_t from, uint64_t gap) {
        // What lies in the overlay was written since, or could not be stored and is there all the same.
        is_lost = is_lost || content.HasLost(from, from + gap);
        plan.AddExtents(content.extents, from, gap);
      });
  return is_lost ? Step::kFailLost : Step::kFetch;
}

void Reader::FetchParts(const PlanPtr& plan) {
  size_t extents = 1;
  for (const auto& part : plan->parts) extents += part.extent.has_value() ? 1 : 0;
  plan->missing = extents;
  for (size_t i = 0; i < plan->parts.size(); i++) {
    if (!plan->parts[i].extent) continue;
    const auto take = [this, plan, i](Result<store::ChunkData> chunk) {
      Plan::Part& part = plan->parts[i];
      if (chunk.ok() && chunk->size >= part.extent->chunk_offset + part.length) {
        part.chunk = std::move(*chunk);
      } else {
        MutexLock lock(plan->mutex);
        plan->error = chunk.ok() ? MakeError(ErrorCode::kCorrupt, "a chunk is shorter than its extent") : chunk.error();
        if (!chunk.ok() && at_.sharing.MayComeBack(chunk.error())) {
          plan->away.push_back(part.extent->digest);
        }
      }
      if (--plan->missing == 0) Finish(plan);
    };
    const Digest& digest = plan->parts[i].extent->digest;
    if (plan->from_disk) {
      at_.parts.chunks.GetFromDisk(digest, take);
    } else {
      at_.parts.chunks.Get(digest, take);
    }
  }
  if (--plan->missing == 0) Finish(plan);
}

void Reader::Finish(const PlanPtr& plan) {
  std::optional<Error> error;
  std::vector<Digest> away;
  {
    MutexLock lock(plan->mutex);
    error = std::exchange(plan->error, std::nullopt);
    away.swap(plan->away);
  }
  if (!error) return plan->done(plan->Assemble());
  // The file may have changed under the read and its old chunks be collected: look once more at what it is now.
  // Not on this thread, for which others may wait.
  if (error->code == ErrorCode::kNotFound && plan->attempt++ == 0) {
    at_.sharing.NoteLocked(plan->inode);  // among other hosts, one of these has changed it
    plan->saw_others = false;
    return at_.waiters.Post([this, plan] { Start(plan); });
  }
  // The wait holds no buffers, and what the file is after it is looked up anew: others may have written.
  if (!away.empty() && plan->waits.MayWait()) {
    plan->parts.clear();
    return AwaitChunks(at_.parts.chunks, at_.waits, away, plan->options.caller, [this, plan](const Status& there) {
      if (!there.ok()) return Fail(plan, there.error());
      at_.waiters.Post([this, plan] { Start(plan); });
    });
  }
  Fail(plan, *error);
}

void Reader::Fail(const PlanPtr& plan, Error error) {
  if (plan->HasNobodyWaiting(error)) return plan->done(std::move(error));
  spdlog::error("inode {}: read of {} bytes at {} failed: {}", plan->inode->id.value, plan->size, plan->offset,
                error.message);
  at_.error_names.Note(plan->inode->id);
  plan->done(OfNamedChunk(std::move(error)));
}

void Reader::FailLoad(const PlanPtr& plan, const Error& error) {
  if (plan->HasNobodyWaiting(error)) return plan->done(error);
  spdlog::error("inode {}: cannot read its recipe: {}", plan->inode->id.value, error.message);
  at_.error_names.Note(plan->inode->id);
  plan->done(error);
}

void Reader::Load(const PlanPtr& plan) {
  Status status;
  std::vector<Digest> away;
  bool is_away = false;
  {
    const InodePtr& inode = plan->inode;
    MutexLock lock(inode->mutex);
    status = at_.contents.Load(plan->options.caller.context, inode);
    const bool is_loaded = status.ok();
    if (is_loaded) status = inode->content->extents.EnsureLoaded(plan->offset, plan->size, at_.parts.chunks);
    is_away = !status.ok() && status.error().code == ErrorCode::kUnavailable;
    if (is_away && is_loaded) away = inode->content->extents.MissingPages(plan->offset, plan->size);
  }
  if (is_away && away.empty()) {  // not even the top of the recipe could be read
    away = at_.sharing.PagesToOpen(plan->options.caller.context, plan->inode->id);
  }
  if (!away.empty() && plan->waits.MayWait()) {
    return AwaitChunks(at_.parts.chunks, at_.waits, away, plan->options.caller, [this, plan](const Status& there) {
      if (!there.ok()) return FailLoad(plan, there.error());
      at_.waiters.Post([this, plan] { Load(plan); });
    });
  }
  // As of a chunk that is gone: the recipe may be another one by now.
  if (!status.ok() && status.error().code == ErrorCode::kCorrupt && plan->attempt++ == 0) {
    at_.sharing.NoteLocked(plan->inode);
    plan->saw_others = false;
    return Start(plan);
  }
  if (!status.ok()) return FailLoad(plan, status.error());
  Start(plan);
}

// A reader that goes on where it ended gets chunks asked for ahead of it, in a window that doubles.
void Reader::ReadAhead(Handle& handle, const InodePtr& inode, uint64_t offset, size_t size) {
  uint64_t from, to;
  {
    MutexLock lock(handle.mutex);
    // Requests of one large read may come a little out of order.
    const uint64_t nearby = std::max<uint64_t>(size, kMiB);
    const bool sequential = offset <= handle.next_offset + 2 * nearby && offset + 4 * nearby >= handle.next_offset;
    if (!sequential) {
      handle.read_ahead_window = 0;
      handle.read_ahead_end = 0;
    } else {
      uint64_t window = std::max<uint64_t>(handle.read_ahead_window * 2, 2 * std::max<uint64_t>(size, 64 * kKiB));
      handle.read_ahead_window = std::min<uint64_t>(window, at_.options.read_ahead_bytes);
    }
    handle.next_offset = sequential ? std::max(handle.next_offset, offset + size) : offset + size;
    if (!sequential) return;
    from = std::max(handle.read_ahead_end, offset + size);
    to = offset + size + handle.read_ahead_window;
    // Ask in steps, not for every request anew.
    if (to <= from || to - from < std::min<uint64_t>(handle.read_ahead_window / 4, 4 * kMiB)) return;
    handle.read_ahead_end = to;
  }
  PrefetchRange(inode, from, to);
}

// Pages of the recipe are asked for earlier than the bytes that they name. Where one is missing all the same, as at the
// beginning, a thread that may wait loads it and comes back.
void Reader::PrefetchRange(const InodePtr& inode, uint64_t from, uint64_t to) {
  std::vector<Digest> digests;
  bool loaded;
  {
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->must_reload()) return;
    const Content& content = *inode->content;
    to = std::min(to, content.size);
    if (from >= to) return;
    loaded = content.extents.IsLoaded(from, to - from);
    const bool enters_page = from % kLeafBytes < to - from || to / kLeafBytes != from / kLeafBytes;
    if (!loaded || enters_page) digests = content.extents.MissingPages(from, to - from + kLeafBytes);
    if (loaded) {
      content.extents.ForEach(from, to - from, [&](const Extent& extent) { digests.push_back(extent.digest); });
    }
  }
  at_.parts.chunks.Prefetch(digests);
  if (loaded) return;
  at_.waiters.Post([this, inode, from, to, pages = std::move(digests)] {
    // Waited for here, so that nobody waits for them with the inode's lock.
    for (const Digest& page : pages) static_cast<void>(store::GetBlocking(at_.parts.chunks, page));
    {
      MutexLock lock(inode->mutex);
      // A failure shows when the bytes are read.
      if (!inode->content || !inode->content->extents.EnsureLoaded(from, to - from, at_.parts.chunks).ok()) return;
    }
    PrefetchRange(inode, from, to);
  });
}

// relatime: once per open, and only when the time is older than the last change or than a day. Not among several hosts,
// where each would be a transaction.
void Reader::CheckAtime(Handle& handle) {
  if (!update_atime_ || handle.flags.no_atime || !at_.sharing.owns_names()) return;
  {
    MutexLock lock(handle.mutex);
    if (handle.atime_checked) return;
  }
  // It would wait in memory for a round that goes well: that room is for what makes room.
  if (at_.rounds.failing()) return;
  {
    MutexLock lock(handle.mutex);
    if (std::exchange(handle.atime_checked, true)) return;
  }
  auto attr = at_.parts.names.GetAttr({}, handle.inode->id);
  if (!attr.ok()) return;
  at_.contents.Overlay(*attr);
  Timestamp now = Clock::WallTime();
  if (attr->atime > attr->mtime && attr->atime > attr->ctime && now.seconds - attr->atime.seconds < 24 * 3600) return;
  SyncRounds::Operation operation(at_.rounds);
  at_.parts.names.TouchAtime({}, handle.inode->id, now);
}

void Reader::SeekTo(HandleId handle_id, uint64_t offset, FileSystem::Seek what, Done<uint64_t> done,
                    const Caller& caller) {
  HandlePtr handle = at_.handles.Find(handle_id);
  if (!handle) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  auto seek = [this, handle, offset, what, context = caller.context, done] {
    if (const Status same = at_.session.CheckRead(*handle); !same.ok()) return done(same.error());
    done(at_.contents.FindSought(context, handle->inode, offset, what));
  };
  at_.sharing.WhenCurrent(handle->inode, caller, [this, seek, done](const Status& current) {
    if (!current.ok()) return done(current.error());
    at_.waiters.Post(seek);  // may load pages of the recipe
  });
}

}  // namespace cairnfs::fs
