#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "fs/atomic_files.h"
#include "fs/reader.h"
#include "fs/writer.h"
#include "fuse/admitted.h"
#include "fuse/interrupt.h"
#include "fuse/ops.h"
#include "fuse/receiver.h"
#include "fuse/reply.h"
#include "fuse/session.h"

namespace cairnfs::fuse {
namespace {

// writev(2) takes 1024 pieces, one of them the header.
constexpr size_t kSlicesMax = 1000;
// The answer has 32 bits for the count of bytes copied.
constexpr size_t kCopyBytesMax = kGiB;

void ReplyFlattened(fuse_req_t request, const fs::FileSystem::ReadResult& read) {
  std::string flat;
  flat.reserve(read.size);
  for (const io::Slice& slice : read.slices) flat.append(AsText(slice.bytes()));
  fuse_reply_buf(request, flat.data(), flat.size());
}

void ReplyRead(fuse_req_t request, const fs::FileSystem::ReadResult& read) {
  if (read.slices.size() > kSlicesMax) return ReplyFlattened(request, read);
  std::vector<iovec> parts;
  parts.reserve(read.slices.size());
  for (const io::Slice& slice : read.slices) parts.push_back({const_cast<std::byte*>(slice.data), slice.size});
  fuse_reply_iov(request, parts.data(), static_cast<int>(parts.size()));
}

}  // namespace

void OpRead(fuse_req_t request, fuse_ino_t inode, size_t size, off_t offset, fuse_file_info* file) {
  // The kernel names an owner of locks in a process's reads, and none in reads for its page cache.
  fs::ReadOptions options;
  options.for_page_cache = (Receiver::Current().Body<fuse_read_in>().read_flags & FUSE_READ_LOCKOWNER) == 0;
  options.caller = UntilStop(request, CallerOf(request));
  auto reply = [request](Result<fs::FileSystem::ReadResult> read) {
    if (!read.ok() && read.error().code == ErrorCode::kBusy) return (void)fuse_reply_err(request, ETXTBSY);
    if (!read.ok()) return ReplyError(request, read.error());
    ReplyRead(request, *read);
  };
  SessionOf(request).filesystem().reader().Read(file->fh, InodeId{inode}, static_cast<uint64_t>(offset), size, reply,
                                                options);
}

void SubmitWrite(fuse_req_t request, fs::FileSystem::WriteRequest write) {
  fs::FileSystem& filesystem = SessionOf(request).filesystem();
  const InodeId inode = write.inode;
  filesystem.writer().Write(std::move(write), [request, &filesystem, inode](Result<size_t> written) {
    if (!written.ok()) {
      filesystem.atomic_files().NoteWriteFailed(inode, written.error());
      return ReplyError(request, written.error());
    }
    fuse_reply_write(request, *written);
  });
}

void RefuseWrite(fuse_req_t request, fs::FileSystem::WriteRequest write, ByteSpan payload, const Error& why) {
  Session& session = SessionOf(request);
  write.data = io::Slice{{}, payload.data(), payload.size()};
  // When a server that stops has given up a disk that hangs, it asks nothing of that disk any more.
  const bool is_given_up = session.stopping() && why.code == ErrorCode::kFailed;
  if (!is_given_up) session.filesystem().writer().NoteRefused(write, why);
  session.filesystem().atomic_files().NoteWriteFailed(write.inode, why);
  ReplyError(request, why);
}

void OpWrite(fuse_req_t request, fuse_ino_t inode, const char* data, size_t size, off_t offset, fuse_file_info* file) {
  Receiver& receiver = Receiver::Current();
  const uint32_t write_flags = receiver.Body<fuse_write_in>().write_flags;
  fs::FileSystem::WriteRequest write;
  write.handle = file->fh;
  write.inode = InodeId{inode};
  write.offset = static_cast<uint64_t>(offset);
  write.sync = (file->flags & O_DSYNC) != 0;
  write.from_page_cache = (write_flags & FUSE_WRITE_CACHE) != 0;
  write.append = (file->flags & O_APPEND) != 0 && !write.from_page_cache;
  write.direct = (file->flags & O_DIRECT) != 0;
  write.caller = CallerOf(request);
  if (write.append && !write.sync) write.caller = UntilStop(request, std::move(write.caller));
  write.kill_suid_sgid = (write_flags & FUSE_WRITE_KILL_SUIDGID) != 0;
  const ByteSpan payload = AsBytes({data, size});
  Receiver::Payload taken = receiver.TakePayload(payload);
  switch (taken.outcome) {
    case Receiver::Outcome::kTaken: write.data = std::move(taken.slice); return SubmitWrite(request, std::move(write));
    case Receiver::Outcome::kPostponed: return SessionOf(request).overflow().Add(request, std::move(write), payload);
    case Receiver::Outcome::kRefused: return RefuseWrite(request, std::move(write), payload, *taken.refusal);
  }
}

void OpFallocate(fuse_req_t request, fuse_ino_t inode, int mode, off_t offset, off_t length, fuse_file_info* file) {
  constexpr int kKnownModes = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
  if ((mode & ~kKnownModes) != 0) {
    fuse_reply_err(request, EOPNOTSUPP);
    return;
  }
  fs::FallocateRequest change;
  change.offset = static_cast<uint64_t>(offset);
  change.length = static_cast<uint64_t>(length);
  change.keep_size = (mode & FALLOC_FL_KEEP_SIZE) != 0;
  change.punch_hole = (mode & FALLOC_FL_PUNCH_HOLE) != 0;
  change.zero_range = (mode & FALLOC_FL_ZERO_RANGE) != 0;
  WhereItMayWait(request,
                 [request, inode, change, handle = file->fh](fs::FileSystem& filesystem, const fs::Caller& caller) {
                   auto reply = [request, inode, &filesystem](const Result<void>& status) {
                     if (!status.ok()) filesystem.atomic_files().NoteWriteFailed(InodeId{inode}, status.error());
                     ReplyStatus(request, status);
                   };
                   filesystem.writer().Fallocate(handle, change, std::move(reply), caller);
                 });
}

void OpLseek(fuse_req_t request, fuse_ino_t, off_t offset, int whence, fuse_file_info* file) {
  if (whence != SEEK_DATA && whence != SEEK_HOLE) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  auto what = whence == SEEK_DATA ? fs::FileSystem::Seek::kData : fs::FileSystem::Seek::kHole;
  auto reply = [request](Result<uint64_t> found) {
    if (found.ok()) {
      fuse_reply_lseek(request, static_cast<off_t>(*found));
    } else if (found.error().code == ErrorCode::kNoData) {
      fuse_reply_err(request, ENXIO);  // elsewhere it is a missing xattr's ENODATA
    } else {
      ReplyError(request, found.error());
    }
  };
  WhereItMayWait(request, [=, handle = file->fh](fs::FileSystem& filesystem, const fs::Caller& caller) {
    filesystem.reader().SeekTo(handle, static_cast<uint64_t>(offset), what, reply, caller);
  });
}

void OpCopyFileRange(fuse_req_t request, fuse_ino_t, off_t from_offset, fuse_file_info* from_file, fuse_ino_t to,
                     off_t to_offset, fuse_file_info* to_file, size_t length, int flags) {
  if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  WhereItMayWait(request, [=, from_handle = from_file->fh, to_handle = to_file->fh](fs::FileSystem& filesystem,
                                                                                    const fs::Caller& caller) {
    auto reply = [request, to, &filesystem](Result<size_t> copied) {
      if (!copied.ok()) {
        filesystem.atomic_files().NoteWriteFailed(InodeId{to}, copied.error());
        return ReplyError(request, copied.error());
      }
      fuse_reply_write(request, *copied);
    };
    filesystem.writer().CopyRange({from_handle, static_cast<uint64_t>(from_offset), to_handle,
                                   static_cast<uint64_t>(to_offset), std::min(length, kCopyBytesMax)},
                                  reply, caller);
  });
}

}  // namespace cairnfs::fuse
