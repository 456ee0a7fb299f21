#include "fs/sharing.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace cairnfs::fs {

Status LocalFiles::MayOpen(const Context& context, InodeId id) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.parts.names.GetAttr(context, id));
  if (S_ISDIR(attr.mode)) return MakeError(ErrorCode::kIsDirectory, "is a directory");
  return {};
}

void LocalFiles::LoadForOpen(const InodePtr& inode, const OpenFlags&, const Caller& caller, Done<void> done) {
  Result<bool> loaded = false;
  {
    MutexLock lock(inode->mutex);
    loaded = at_.contents.Load(caller.context, inode, MayWait::kNo);
  }
  if (!loaded.ok()) return done(loaded.error());
  if (*loaded) return done({});
  at_.waiters.Post([this, inode, context = caller.context, done = std::move(done)] {
    Status status;
    {
      MutexLock lock(inode->mutex);
      status = at_.contents.Load(context, inode);
    }
    done(status);
  });
}

Result<meta::Attr> LocalFiles::ReadAttr(const std::function<Result<meta::Attr>()>& read) {
  for (;;) {
    // Between the look at the record and the look at the content a round may publish the one and drop the other.
    const uint64_t dropped = at_.table.contents_dropped;
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, read());
    if (!S_ISREG(attr.mode) || at_.contents.Overlay(attr) || dropped == at_.table.contents_dropped) return attr;
  }
}

void LocalFiles::Change(FileChange change, Done<void> done) {
  const auto status = at_.contents.TryChange(change, MayWait::kNo);
  if (status && !at_.contents.MayMakeRoomFor(*status)) return done(*status);
  at_.waiters.Post([this, change = std::move(change), done = std::move(done)] { done(at_.contents.Change(change)); });
}

// More may have been published since it was unlinked. Its record goes with the next round.
void LocalFiles::NoteOrphan(const InodePtr& inode) {
  const uint64_t freed = std::max<uint64_t>(inode->freed_bytes, at_.totals.AllocatedBytesOf(inode->id));
  at_.rounds.AddOrphan(inode);
  at_.room.NoteFreed(freed);
}

}  // namespace cairnfs::fs
