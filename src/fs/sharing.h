// Sharing: takes over what other hosts have published of a file before it is opened, read or changed: close-to-open
// consistency (docs/cluster/publishing.md). On a host alone there is nobody else.
#pragma once

#include <functional>
#include <vector>

#include "fs/contents.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/totals.h"

namespace cairnfs::fs {

// (*) may wait for other hosts: call these on a thread of Calls. Where a function has a body here, that is what a host
// alone does.
class Sharing {
 public:
  virtual ~Sharing() = default;

  // FileSystem::owns_names.
  virtual bool owns_names() const { return true; }

  // --- A file that is being made, while its number is held.
  // Adds the mark to the transaction that makes the file. Each attempt stores its session in `session`.
  virtual std::function<void(kv::Transaction&, InodeId)> MarkCreated(uint64_t& /*session*/) { return {}; }
  // The content is in memory; the transaction that made the file was of this session.
  virtual void NoteCreated([[maybe_unused]] const InodePtr& inode, uint64_t /*session*/) REQUIRES_LOCK(inode->mutex) {}
  virtual void EndCreate(const Context& /*context*/, const InodePtr& /*inode*/, uint64_t /*session*/) {}  // (*)

  // kIsDirectory, kNotFound, kStale: the file cannot be opened. (*)
  virtual Status MayOpen(const Context& context, InodeId id) = 0;
  // Loads the content as others have published it by now. (*)
  virtual void LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) = 0;
  // An open that was to truncate the file has failed.
  virtual void NoteTruncationFailed([[maybe_unused]] const InodePtr& inode) REQUIRES_LOCK(inode->mutex) {}

  // Attributes from the namespace, with those of the content in memory put in, as of one moment. (*)
  virtual Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read) = 0;
  // Whether LookForOthers must be called before the content is read.
  virtual bool MustLook([[maybe_unused]] const InodePtr& inode) REQUIRES_LOCK(inode->mutex) { return false; }
  // Takes over what others have published, as an open does. Calls `done` on another thread.
  virtual void LookForOthers(const InodePtr& /*inode*/, const Caller& /*caller*/, Done<void> done) { done({}); }
  // The same, if this host has noticed that others may have published since. If not, calls `done` at once.
  virtual void WhenCurrent(const InodePtr& /*inode*/, const Caller& /*caller*/, Done<void> done) { done({}); }
  // An open file is read. Looks in the background, now and then, whether others have published.
  virtual void NoteRead([[maybe_unused]] const InodePtr& inode) REQUIRES_LOCK(inode->mutex) {}
  // A lock on the file was granted, or a chunk of it is gone: reads from now on see what others have closed.
  virtual void NoteLocked(const InodePtr& /*inode*/) {}
  // Takes over what others have published, as far as it can be read. (*)
  virtual void Refresh(const InodePtr& /*inode*/, const Caller& /*caller*/) {}
  // Whether a chunk that could not be read with this error may be readable again soon.
  virtual bool MayComeBack(const Error& /*error*/) const { return false; }
  // The pages of the recipe that an open needs and that are not at hand. (*)
  virtual std::vector<Digest> PagesToOpen(const Context& /*context*/, InodeId /*id*/) { return {}; }

  // Whether an append goes to where this host's last one ended, so that others need not be asked.
  virtual bool ContinuesAppends(const InodePtr& /*inode*/) { return true; }
  // Where an append goes.
  virtual uint64_t PlaceAppend([[maybe_unused]] const InodePtr& inode, const FileSystem::WriteRequest& request)
      REQUIRES_LOCK(inode->mutex) {
    return request.offset;
  }
  // Makes the change, based on what others have published. (*)
  virtual void Change(FileChange change, Done<void> done) = 0;

  // An inode without link that nobody here has open.
  virtual void NoteOrphan(const InodePtr& inode) = 0;
};

class LocalFiles final : public Sharing {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    InodeTable& table;
    Contents& contents;
    SyncRounds& rounds;
    Room& room;
    LocalTotals& totals;
    TaskQueue& waiters;
  };
  explicit LocalFiles(const Parts& parts) : at_(parts) {}

  Status MayOpen(const Context& context, InodeId id) override;
  void LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) override;
  Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read) override;
  void Change(FileChange change, Done<void> done) override;
  void NoteOrphan(const InodePtr& inode) override;

 private:
  const Parts at_;
};

}  // namespace cairnfs::fs
