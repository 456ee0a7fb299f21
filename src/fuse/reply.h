// Answers to requests: errors, and the structures that libfuse 3.14 cannot fill as they are needed here.
#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include "base/result.h"
#include "fs/backing_registry.h"
#include "fs/filesystem.h"
#include "meta/namespace.h"

namespace cairnfs::fuse {

// On one host names change through this kernel only. So all that it knows of a name stays true, also that there is
// none.
inline constexpr double kEntrySeconds = 86400.0 * 365;
// The kernel drops attributes that its own operations change. A second, not for ever, because the reply to a stat may
// cross with another process's operation in the same directory, and then leave attributes from just before it.
inline constexpr double kAttrSeconds = 1.0;
// How long the kernel may believe an answer.
struct CacheTimes {
  double entry_seconds = kEntrySeconds, attr_seconds = kAttrSeconds;
};
// The times of the mount that the request came through: zero where other hosts change names and attributes, too.
CacheTimes CacheTimesOf(fuse_req_t request);
// The same for an answer with these attributes. No time for those of a file with set-id bits: a stranger's write clears
// the bits in the daemon, and the kernel must ask again before it executes the file (docs/decisions/set-id.md).
CacheTimes CacheTimesOf(fuse_req_t request, const meta::Attr& attr);
// Where an entry lies that is answered. One whose name may lead each process to another file has no time: now, or when
// the name was read, for a close may have given it another file since, without the kernel.
struct EntryPlace {
  InodeId directory;
  std::string_view name;
  bool was_asked_each_time = false;
  bool is_beside = false;  // the kernel asked for the file by the node id beside, and so gets that again
};
// Whether the entry is to name the file by the node id beside its own. It then has no time.
bool NamesBeside(fuse_req_t request, const meta::Attr& attr);
// To be asked before the name is read.
bool IsAskedEachTime(fuse_req_t request, InodeId directory, std::string_view name);
CacheTimes CacheTimesOf(fuse_req_t request, const meta::Attr& attr, const EntryPlace& place);
// What the kernel does with attributes when it has learned of a change of the file since it asked.
enum class WhenOld {
  kDropped,
  kTaken,  // such an answer tells no set-id bits of a file
};
// st_blksize of a file: what cp, dd-like tools and buffered streams write at a time. One request.
inline constexpr uint32_t kPreferredBytes = kMiB;

struct stat StatOf(const meta::Attr& attr);
fuse_entry_param EntryOf(const meta::Attr& attr, const CacheTimes& times, bool is_beside = false);

// Logs errors that say that something is wrong with the store, since the errno alone does not tell what.
void ReplyError(fuse_req_t request, const Error& error);
// Replies to a request on the inode that a path led to. When the inode is gone, another host has removed it or replaced
// it under its name since the kernel looked the path up; with ESTALE the kernel looks it up once more.
void ReplyInodeError(fuse_req_t request, const Error& error);
// errno 0 for success.
void ReplyStatus(fuse_req_t request, const Status& status);
// Undoes the look-up when the kernel does not take the answer.
void ReplyEntry(fuse_req_t request, const Result<meta::Attr>& attr, WhenOld when_old, const EntryPlace& place);
void ReplyAttr(fuse_req_t request, const Result<meta::Attr>& attr, WhenOld when_old);
// Answers OPEN of a regular file, by hand because FOPEN_PARALLEL_DIRECT_WRITES has no name in libfuse 3.14. Releases
// the handle when the kernel does not take the answer.
void ReplyOpen(fuse_req_t request, InodeId inode, fs::HandleId handle);
void ReplyCreate(fuse_req_t request, const fs::FileSystem::Created& created, const EntryPlace& place);

// --- pure, for the above and for tests ---
meta::Attr AttrToReply(const meta::Attr& attr, WhenOld when_old);
// With a backing id: the kernel reads and maps that file itself.
fuse_open_out OpenOut(fs::HandleId handle, fs::BackingId backing = 0);
fuse_entry_out EntryOut(const meta::Attr& attr, const CacheTimes& times, bool is_beside = false);

}  // namespace cairnfs::fuse
