#include "base/clock.h"
#include "base/coding.h"
#include "meta/access.h"
#include "meta/load.h"

namespace cairnfs::meta {

Status Namespace::Format(const Context& context, const FilesystemHeader& header, uint32_t uid, uint32_t gid) {
  CAIRNFS_ASSIGN_OR_RETURN(auto existing, store_.Get(context, HeaderKey()));
  if (existing) return MakeError(ErrorCode::kAlreadyExists, "there is a filesystem here");
  // The reservation first, and never backwards: an earlier Format may have got no further than this.
  CAIRNFS_ASSIGN_OR_RETURN(auto next_inode, store_.Get(context, NextInodeKey()));
  if (!next_inode && !options_.remote) {
    CAIRNFS_RETURN_IF_ERROR(durable_put_({kv::KvWrite{NextInodeKey(), Encoder().U64(kRootInode.value + 1).Take()}}));
  }
  InodeRecord root;
  root.mode = S_IFDIR | 0755;
  root.uid = uid;
  root.gid = gid;
  root.nlink = 1;
  root.atime = root.mtime = root.ctime = Clock::WallTime();
  root.parent = kRootInode;
  kv::Transaction transaction;
  transaction.IfAbsent(HeaderKey())
      .IfAbsent(LoadMarkKey())
      .Put(HeaderKey(), header.Encode())
      .Put(InodeKey(kRootInode), root.Encode())
      .Put(MoveKey(), Encoder().U64(0).Take());
  // Another host may be making it too. All is in one transaction, so one of them makes it.
  if (!next_inode && options_.remote) {
    transaction.IfAbsent(NextInodeKey()).Put(NextInodeKey(), Encoder().U64(kRootInode.value + 1).Take());
  }
  auto committed = store_.Commit(context, transaction);
  if (committed.ok()) return {};
  if (committed.error().code != ErrorCode::kConflict) return committed.error();
  return MakeError(ErrorCode::kAlreadyExists, "there is a filesystem here");
}

}  // namespace cairnfs::meta
