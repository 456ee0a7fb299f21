// Operations on ranges of a file: fallocate, lseek for data and holes, copy_file_range.
#include <algorithm>

#include "base/log.h"
#include "fs/impl.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kPagesAtOnce = 64;
constexpr uint64_t kSoughtAtOnce = kPagesAtOnce * kLeafBytes;

// Where the sought byte is, if it lies before `limit`.
Result<std::optional<uint64_t>> FindDataIn(Content& content, uint64_t offset, uint64_t limit,
                                           store::ChunkStore& chunks) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> stored, content.extents.FindData(offset, limit, chunks));
  const std::optional<uint64_t> waiting = content.overlay.FindData(offset);
  const uint64_t first = std::min(stored.value_or(kFileSizeMax), waiting.value_or(kFileSizeMax));
  return first < limit ? std::optional(first) : std::nullopt;
}

Result<std::optional<uint64_t>> FindHoleIn(Content& content, uint64_t offset, uint64_t limit,
                                           store::ChunkStore& chunks) {
  for (uint64_t position = offset; position < limit;) {
    const uint64_t past_waiting = content.overlay.FindGap(position);
    if (past_waiting >= limit) break;
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t past_stored, content.extents.FindHole(past_waiting, limit, chunks));
    if (past_stored == position) return std::optional(position);
    position = past_stored;
  }
  return std::optional<uint64_t>();
}

}  // namespace

// Loads the pages of the recipe that tell of the range; they are read while nobody waits for the inode's lock, which a
// round may want. A failure shows when they are needed.
void FileSystem::Impl::LoadPages(const InodePtr& inode, uint64_t offset, uint64_t length) {
  length = std::min(length, kFileSizeMax - std::min(offset, kFileSizeMax));
  for (;;) {
    std::vector<Digest> pages;
    {
      MutexLock lock(inode->mutex);
      if (!LoadContent(inode, true).ok()) return;
      pages = inode->content->extents.MissingPages(offset, length, kPagesAtOnce);
    }
    if (pages.empty()) return;
    parts.chunks.Prefetch(pages);
    for (const Digest& page : pages) {
      if (!store::GetBlocking(parts.chunks, page).ok()) return;
    }
    MutexLock lock(inode->mutex);
    if (!inode->content) return;
    if (!inode->content->extents.EnsureLoaded(offset, length, parts.chunks, kPagesAtOnce).ok()) return;
  }
}

// Those of the range that the file does not have yet.
Result<uint64_t> FileSystem::Impl::BytesMissingIn(Content& content, uint64_t begin, uint64_t end) {
  CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(begin, end - begin, parts.chunks));
  RangeSet there(SIZE_MAX);
  content.extents.ForEach(begin, end - begin, [&](const Extent& extent) { there.Add(extent.offset, extent.end()); });
  content.overlay.ForEachUnstored([&](uint64_t first, uint64_t last) { there.Add(first, last); });
  uint64_t missing = 0;
  there.ForEachGap(begin, end, [&](uint64_t first, uint64_t last) { missing += last - first; });
  return missing;
}

void FileSystem::Fallocate(HandleId handle_id, InodeId, const FallocateRequest& request, Done<void> done,
                           const Caller& caller) {
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (request.length == 0 || request.offset > kFileSizeMax || request.length > kFileSizeMax - request.offset) {
    return done(MakeError(request.length == 0 ? ErrorCode::kInvalidArgument : ErrorCode::kTooLarge,
                          "fallocate past the largest file size, or of nothing"));
  }
  if (auto session = impl_->CheckSession(*handle); !session.ok()) return done(session);
  if (impl_->host != nullptr) Impl::NoteWriter(*handle, caller);
  if (Status killed = impl_->KillPrivileges(handle->inode, caller.uid != 0, caller); !killed.ok()) return done(killed);
  bool allocate = !request.punch_hole && !request.zero_range;
  const uint64_t available = impl_->parts.local_chunks.Stats().available_bytes;
  InodePtr inode = handle->inode;
  auto change = [this, inode, request, allocate, available](Content& content) -> Status {
    inode->mutex.AssertHeld();
    uint64_t end = request.offset + request.length;
    if (allocate && request.length > available) {
      CAIRNFS_ASSIGN_OR_RETURN(const uint64_t missing, impl_->BytesMissingIn(content, request.offset, end));
      if (missing > available) {
        return MakeError(ErrorCode::kNoSpace, "no space for " + std::to_string(missing) + " bytes");
      }
    }
    if (!allocate) {
      CAIRNFS_RETURN_IF_ERROR(impl_->Punch(inode, content, request.offset, request.length));
      // The kernel keeps the pages at the edges, and clears a part of them.
      impl_->NoteUnderPages(inode, AlignUp(request.offset, kPageBytes), AlignDown(end, kPageBytes));
    }
    if (!request.keep_size && !request.punch_hole) {
      content.size = std::max(content.size, end);
      content.publish->NoteSizeMin(end);
    }
    impl_->Touch(content);
    content.must_publish = true;
    return {};
  };
  if (impl_->host != nullptr) {
    return impl_->ChangeShared(inode, change, std::move(done), {.session = handle->session}, caller);
  }
  impl_->ChangeWhenQuiet(inode, change, std::move(done));
}

Result<uint64_t> FileSystem::Impl::FindSought(const InodePtr& inode, uint64_t offset, Seek what) {
  store::ChunkStore& chunks = parts.chunks;
  for (uint64_t from = offset;;) {
    // Of data the first page tells, of a hole perhaps the last one.
    LoadPages(inode, from, what == Seek::kData ? 1 : kSoughtAtOnce);
    MutexLock lock(inode->mutex);
    CAIRNFS_ASSIGN_OR_RETURN(const bool loaded, LoadContent(inode, true));
    static_cast<void>(loaded);
    Content& content = *inode->content;
    if (from >= content.size) break;
    const bool is_last = what == Seek::kData || content.size - from <= kSoughtAtOnce;
    const uint64_t limit = is_last ? content.size : from + kSoughtAtOnce;
    CAIRNFS_ASSIGN_OR_RETURN(const std::optional<uint64_t> found, what == Seek::kData
                                                                      ? FindDataIn(content, from, limit, chunks)
                                                                      : FindHoleIn(content, from, limit, chunks));
    if (found) return *found;
    if (is_last && what == Seek::kHole) return limit;  // there is one behind every file
    if (is_last) break;
    from = limit;
  }
  return MakeError(ErrorCode::kNoData, "nothing behind this offset");
}

void FileSystem::SeekTo(HandleId handle_id, InodeId, uint64_t offset, Seek what, Done<uint64_t> done,
                        const Caller& caller) {
  HandlePtr handle = impl_->handles.Find(handle_id);
  if (!handle) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  auto seek = [this, handle, offset, what, done] {
    if (const Status same = impl_->CheckSameStore(*handle); !same.ok()) return done(same.error());
    done(impl_->FindSought(handle->inode, offset, what));
  };
  impl_->WhenCurrent(handle->inode, caller, [this, seek, done](const Status& current) {
    if (!current.ok()) return done(current.error());
    impl_->waiters->Post(seek);  // may load pages of the recipe
  });
}

// The extents of [offset, offset + length) with everything accepted before the call in them; `pins` takes a pin for
// each, unless it is null. Lowers `length` to what the file has.
Result<std::vector<Extent>> FileSystem::Impl::StoredExtents(const InodePtr& inode, uint64_t offset, uint64_t& length,
                                                            std::vector<store::ChunkPin>* pins) {
  LoadPages(inode, offset, length);
  std::vector<Extent> extents;
  {
    MutexLock lock(inode->mutex);
    CAIRNFS_ASSIGN_OR_RETURN(bool loaded, LoadContent(inode, true));
    static_cast<void>(loaded);
    streams->CutAll(inode);
    uint64_t target = inode->content->next_chunk_id - 1;
    while (inode->content && !inode->content->flying.empty() && inode->content->flying.begin()->first <= target) {
      auto landed = inode->content->landed.find(inode->content->flying.begin()->first);
      if (landed != inode->content->landed.end() && landed->second.failure) {
        return landed->second.failure->WithContext("the bytes to copy");
      }
      inode->changed_state.Wait(inode->mutex);
    }
    CAIRNFS_ASSIGN_OR_RETURN(loaded, LoadContent(inode, true));
    Content& content = *inode->content;
    length = offset >= content.size ? 0 : std::min(length, content.size - offset);
    if (content.HasLost(offset, offset + length)) {
      return MakeError(ErrorCode::kIo, "bytes of this file could not be stored and are lost");
    }
    CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(offset, length, parts.chunks));
    content.extents.ForEach(offset, length, [&](const Extent& extent) { extents.push_back(extent); });
    if (pins == nullptr) return extents;
    // Under the lock: once the source lets go of a chunk that found no room, nobody may have it any more.
    for (const Extent& extent : extents) {
      CAIRNFS_ASSIGN_OR_RETURN(store::ChunkPin pin, parts.chunks.Pin(extent.digest));
      pins->push_back(std::move(pin));
    }
  }
  return extents;
}

// The round that publishes the copy waits for the copies of its chunks. Where all have the same level they were waited
// for when the source was published.
Status FileSystem::Impl::CoverCopies(const InodePtr& from, const InodePtr& to, const std::vector<Extent>& extents) {
  if (host == nullptr) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const bool may_lack, host->levels().MayLackCopies(from->id, to->id));
  if (!may_lack) return {};
  std::vector<ClusterHost::SizedChunk> chunks;
  chunks.reserve(extents.size());
  for (const Extent& extent : extents) chunks.push_back({extent.digest, extent.chunk_size});
  static_cast<void>(host->CoverChunks(chunks));  // they have pins
  return {};
}

Result<size_t> FileSystem::Impl::CopyNow(const InodePtr& from, uint64_t from_offset, const InodePtr& to,
                                         uint64_t to_offset, uint64_t length, uint64_t session) {
  std::vector<store::ChunkPin> pins;
  Result<std::vector<Extent>> extents = std::vector<Extent>();
  for (int attempt = 0; attempt < 8; attempt++) {
    pins.clear();
    uint64_t wanted = length;
    extents = StoredExtents(from, from_offset, wanted, &pins);
    // One that the source had when it was loaded may be gone since another host changed the source.
    if (extents.ok() || extents.error().code != ErrorCode::kNotFound) {
      length = wanted;
      break;
    }
  }
  if (!extents.ok()) {
    if (extents.error().code != ErrorCode::kNotFound) return extents.error();
    const Error error = OfNamedChunk(extents.error());
    spdlog::error("inode {}: bytes at {} (+{}) cannot be copied: {}", from->id.value, from_offset, length,
                  error.message);
    error_names->Note(from->id);
    return error;
  }
  if (length == 0) return size_t{0};
  CAIRNFS_RETURN_IF_ERROR(CoverCopies(from, to, *extents));
  auto change = [&](Content& content) -> Status {
    to->mutex.AssertHeld();
    CAIRNFS_RETURN_IF_ERROR(Punch(to, content, to_offset, length));
    for (Extent extent : *extents) {
      extent.offset = extent.offset - from_offset + to_offset;
      CAIRNFS_RETURN_IF_ERROR(content.extents.EnsureLoaded(extent.offset, extent.length, parts.chunks));
      content.extents.Replace(extent.offset, extent.length, &extent);
    }
    NoteUnderPages(to, to_offset, to_offset + length);
    std::move(pins.begin(), pins.end(), std::back_inserter(content.pins));
    content.size = std::max(content.size, to_offset + length);
    content.publish->NoteSizeMin(to_offset + length);
    Touch(content);
    return {};
  };
  CAIRNFS_RETURN_IF_ERROR(ChangeQuietly(to, change, false, session));
  return static_cast<size_t>(length);
}

void FileSystem::CopyRange(HandleId from_handle, InodeId, uint64_t from_offset, HandleId to_handle, InodeId,
                           uint64_t to_offset, uint64_t length, Done<size_t> done, const Caller& caller) {
  HandlePtr from = impl_->handles.Find(from_handle), to = impl_->handles.Find(to_handle);
  if (!from || !to) return done(MakeError(ErrorCode::kStale, "the file is not open"));
  if (to_offset > kFileSizeMax || length > kFileSizeMax - to_offset || from_offset > kFileSizeMax ||
      length > kFileSizeMax - from_offset) {
    return done(MakeError(ErrorCode::kTooLarge, "copy past the largest file size"));
  }
  auto copy = [this, from, to, from_offset, to_offset, length, caller, done] {
    Status error;
    {
      MutexLock lock(to->inode->mutex);
      error = Impl::TakeError(to->inode, *to);
    }
    if (error.ok()) error = impl_->CheckSession(*to);
    if (error.ok()) error = impl_->CheckSameStore(*from);
    // The kernel does not say whether the caller keeps the bits; it does before that, by what it knows of the mode.
    if (error.ok()) error = impl_->KillPrivileges(to->inode, caller.uid != 0, caller);
    if (!error.ok()) return done(error.error());
    if (impl_->host != nullptr) Impl::NoteWriter(*to, caller);
    done(impl_->CopyNow(from->inode, from_offset, to->inode, to_offset, length, to->session));
  };
  impl_->WhenCurrent(from->inode, caller, [this, copy, caller, done](const Status& current) {
    if (!current.ok()) return done(current.error());
    impl_->PostToWait(caller, copy, [done](const Status& refused) { done(refused.error()); });
  });
}

}  // namespace cairnfs::fs
