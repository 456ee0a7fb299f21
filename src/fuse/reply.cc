#include "fuse/reply.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "base/log.h"
#include "fs/atomic_files.h"
#include "fs/attributes.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/reader.h"
#include "fuse/node_ids.h"
#include "fuse/server.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

constexpr uint64_t kBlockBytes = 512;  // unit of st_blocks
// Kernel 6.9; not in Debian 12's linux/fuse.h. Reads and mappings go to the file that the backing id names.
constexpr uint32_t kFopenPassthrough = 1U << 7;

static_assert(sizeof(fuse_entry_out) == 128 && sizeof(fuse_open_out) == 16);

timespec TimeOf(const Timestamp& time) { return {time.seconds, static_cast<long>(time.nanoseconds)}; }

bool IsWorthALine(ErrorCode code) {
  return code == ErrorCode::kCorrupt || code == ErrorCode::kIo || code == ErrorCode::kFailed ||
         code == ErrorCode::kExhausted || code == ErrorCode::kUnavailable || code == ErrorCode::kConflict;
}

}  // namespace

struct stat StatOf(const meta::Attr& attr) {
  struct stat result {};
  result.st_ino = attr.inode.value;
  result.st_mode = attr.mode;
  result.st_nlink = attr.nlink;
  result.st_uid = attr.uid;
  result.st_gid = attr.gid;
  result.st_rdev = attr.rdev;
  result.st_size = static_cast<off_t>(attr.size);
  result.st_blksize = S_ISREG(attr.mode) ? kPreferredBytes : kPageBytes;
  result.st_blocks = static_cast<blkcnt_t>((attr.allocated_bytes + kBlockBytes - 1) / kBlockBytes);
  result.st_atim = TimeOf(attr.atime);
  result.st_mtim = TimeOf(attr.mtime);
  result.st_ctim = TimeOf(attr.ctime);
  return result;
}

CacheTimes CacheTimesOf(fuse_req_t request) {
  return SessionOf(request).filesystem().owns_names() ? CacheTimes{} : CacheTimes{0, 0};
}

CacheTimes CacheTimesOf(fuse_req_t request, const meta::Attr& attr) {
  CacheTimes times = CacheTimesOf(request);
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  if (!filesystem.attributes().NoteReply(attr)) times.attr_seconds = 0;
  if (S_ISREG(attr.mode) && filesystem.open_files().MayHaveTwoIds(attr.inode)) times.attr_seconds = 0;
  return times;
}

CacheTimes CacheTimesOf(fuse_req_t request, const meta::Attr& attr, const EntryPlace& place) {
  CacheTimes times = CacheTimesOf(request, attr);
  const bool may_keep = times.entry_seconds > 0;
  const bool is_asked_each_time =
      may_keep && (place.was_asked_each_time || place.is_beside || NamesBeside(request, attr) ||
                   IsAskedEachTime(request, place.directory, place.name));
  if (is_asked_each_time) times.entry_seconds = 0;
  return times;
}

bool NamesBeside(fuse_req_t request, const meta::Attr& attr) {
  const auto thread = static_cast<uint32_t>(fuse_req_ctx(request)->pid);
  return S_ISREG(attr.mode) && SessionOf(request).filesystem().open_files().NamesBeside(attr.inode, thread);
}

bool IsAskedEachTime(fuse_req_t request, InodeId directory, std::string_view name) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  return filesystem.owns_names() && filesystem.atomic_files().IsAskedEachTime(directory, name);
}

meta::Attr AttrToReply(const meta::Attr& attr, WhenOld when_old) {
  meta::Attr told = attr;
  if (when_old == WhenOld::kTaken && S_ISREG(attr.mode)) told.mode &= ~static_cast<uint32_t>(S_ISUID | S_ISGID);
  return told;
}

fuse_entry_param EntryOf(const meta::Attr& attr, const CacheTimes& times, bool is_beside) {
  fuse_entry_param entry{};
  entry.ino = NodeIdOf(attr.inode, is_beside);
  entry.generation = attr.generation;
  entry.attr = StatOf(attr);
  entry.attr_timeout = times.attr_seconds;
  entry.entry_timeout = times.entry_seconds;
  return entry;
}

fuse_open_out OpenOut(fs::HandleId handle, fs::BackingId backing) {
  fuse_open_out out{};
  out.fh = handle;
  // An older kernel ignores the flags that it does not know.
  out.open_flags = FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES;
  if (backing != 0) {
    out.open_flags = kFopenPassthrough;
    out.padding = static_cast<uint32_t>(backing);  // from 6.9 on the backing id
  }
  return out;
}

fuse_entry_out EntryOut(const meta::Attr& attr, const CacheTimes& times, bool is_beside) {
  fuse_entry_out out{};
  out.nodeid = NodeIdOf(attr.inode, is_beside);
  out.entry_valid = static_cast<uint64_t>(times.entry_seconds);
  out.attr_valid = static_cast<uint64_t>(times.attr_seconds);
  const struct stat from = StatOf(attr);
  fuse_attr& to = out.attr;
  to.ino = from.st_ino;
  to.size = static_cast<uint64_t>(from.st_size);
  to.blocks = static_cast<uint64_t>(from.st_blocks);
  to.atime = static_cast<uint64_t>(attr.atime.seconds);
  to.mtime = static_cast<uint64_t>(attr.mtime.seconds);
  to.ctime = static_cast<uint64_t>(attr.ctime.seconds);
  to.atimensec = attr.atime.nanoseconds;
  to.mtimensec = attr.mtime.nanoseconds;
  to.ctimensec = attr.ctime.nanoseconds;
  to.mode = attr.mode;
  to.nlink = attr.nlink;
  to.uid = attr.uid;
  to.gid = attr.gid;
  to.rdev = static_cast<uint32_t>(attr.rdev);
  to.blksize = static_cast<uint32_t>(from.st_blksize);
  return out;
}

void ReplyError(fuse_req_t request, const Error& error) {
  if (IsWorthALine(error.code)) spdlog::error("{}: {}", ErrorCodeName(error.code), error.message);
  fuse_reply_err(request, ErrnoOf(error));
}

void ReplyInodeError(fuse_req_t request, const Error& error) {
  const bool kept_its_name = CacheTimesOf(request).entry_seconds > 0;
  if (error.code != ErrorCode::kNotFound || kept_its_name) return ReplyError(request, error);
  fuse_reply_err(request, ESTALE);
}

void ReplyStatus(fuse_req_t request, const Status& status) {
  if (status.ok()) {
    fuse_reply_err(request, 0);
  } else {
    ReplyError(request, status.error());
  }
}

void ReplyEntry(fuse_req_t request, const Result<meta::Attr>& attr, WhenOld when_old, const EntryPlace& place) {
  if (!attr.ok()) return ReplyError(request, attr.error());
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  EntryPlace there = place;
  there.is_beside = place.is_beside || NamesBeside(request, *attr);  // once: it may be otherwise in a moment
  const fuse_entry_param entry =
      EntryOf(AttrToReply(*attr, when_old), CacheTimesOf(request, *attr, there), there.is_beside);
  if (fuse_reply_entry(request, &entry) != 0) filesystem.names().Forget(attr->inode, 1);
}

void ReplyAttr(fuse_req_t request, const Result<meta::Attr>& attr, WhenOld when_old) {
  if (!attr.ok()) return ReplyInodeError(request, attr.error());
  const struct stat attributes = StatOf(AttrToReply(*attr, when_old));
  fuse_reply_attr(request, &attributes, CacheTimesOf(request, *attr).attr_seconds);
}

void ReplyOpen(fuse_req_t request, InodeId inode, fs::HandleId handle) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  const fs::BackingId backing = filesystem.open_files().BackingOf(handle);
  if (backing != 0) filesystem.reader().NotePassed(handle);
  const fuse_open_out out = OpenOut(handle, backing);
  if (fuse_reply_buf(request, reinterpret_cast<const char*>(&out), sizeof out) != 0) {
    filesystem.atomic_files().Release(inode, handle);
  }
}

void ReplyCreate(fuse_req_t request, const fs::FileSystem::Created& created, const EntryPlace& place) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  struct {
    fuse_entry_out entry;
    fuse_open_out open;
  } out{
      EntryOut(AttrToReply(created.attr, WhenOld::kTaken), CacheTimesOf(request, created.attr, place), place.is_beside),
      OpenOut(created.handle)};
  static_assert(sizeof out == sizeof(fuse_entry_out) + sizeof(fuse_open_out));
  if (fuse_reply_buf(request, reinterpret_cast<const char*>(&out), sizeof out) != 0) {
    filesystem.atomic_files().Release(created.attr.inode, created.handle);
    filesystem.names().Forget(created.attr.inode, 1);
  }
}

}  // namespace cairnfs::fuse
