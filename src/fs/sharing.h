// Sharing: brings in what other hosts have published of a file before it is opened, read or changed: close-to-open
// (docs/cluster/publishing.md). To the files of a host alone nobody else writes.
#pragma once

#include <functional>
#include <vector>

#include "fs/contents.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/totals.h"

namespace cairnfs::fs {

// (*) may wait for other hosts: call it on a thread of Calls.
class Sharing {
 public:
  virtual ~Sharing() = default;

  // FileSystem::owns_names.
  virtual bool owns_names() const = 0;

  // --- a file that is made, as long as its number is held
  // What the transaction that makes the file writes as well. Each attempt is noted in `session`.
  virtual std::function<void(kv::Transaction&, InodeId)> MarkCreated(uint64_t& session) = 0;
  // The content is there, and the transaction was of this session.
  virtual void NoteCreated(const InodePtr& inode, uint64_t session) REQUIRES_LOCK(inode->mutex) = 0;
  virtual void EndCreate(const Context& context, const InodePtr& inode, uint64_t session) = 0;  // (*)

  // kIsDirectory, kNotFound, kStale: the file cannot be opened. (*)
  virtual Status MayOpen(const Context& context, InodeId id) = 0;
  // Has the content be what others have published by now. (*)
  virtual void LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) = 0;
  // An open that was to truncate the file has failed.
  virtual void NoteTruncationFailed(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) = 0;

  // Attributes from the namespace with what is in memory laid over them, as of one moment. (*)
  virtual Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read) = 0;
  // Whether others have to be looked for before the content is read; LookForOthers does so.
  virtual bool MustLook(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) = 0;
  // As for who opens the file now: what others have published is in the content. On another thread.
  virtual void LookForOthers(const InodePtr& inode, const Caller& caller, Done<void> done) = 0;
  // The same where something was noticed of them since; else at once.
  virtual void WhenCurrent(const InodePtr& inode, const Caller& caller, Done<void> done) = 0;
  // An open file is read: others are looked for beside that, now and then.
  virtual void NoteRead(const InodePtr& inode) REQUIRES_LOCK(inode->mutex) = 0;
  // Somebody was granted a lock on the file: what others have closed of it by now is read from now on.
  virtual void NoteLocked(const InodePtr& inode) = 0;
  // Takes over what others have published, as far as it can be had. (*)
  virtual void Refresh(const InodePtr& inode, const Caller& caller) = 0;
  // Whether a chunk that could not be read for this reason may be there again soon.
  virtual bool MayComeBack(const Error& error) const = 0;
  // Pages of the recipe that cannot be read as they are, where not even its top can. (*)
  virtual std::vector<Digest> PagesToOpen(const Context& context, InodeId id) = 0;

  // Whether an append goes on where this host's last one ended: others need not be looked for.
  virtual bool ContinuesAppends(const InodePtr& inode) = 0;
  // Where an append goes.
  virtual uint64_t PlaceAppend(const InodePtr& inode, const FileSystem::WriteRequest& request)
      REQUIRES_LOCK(inode->mutex) = 0;
  // Makes the change, on what others have made of the file. (*)
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

  bool owns_names() const override { return true; }
  std::function<void(kv::Transaction&, InodeId)> MarkCreated(uint64_t&) override { return {}; }
  void NoteCreated(const InodePtr&, uint64_t) override {}
  void EndCreate(const Context&, const InodePtr&, uint64_t) override {}
  Status MayOpen(const Context& context, InodeId id) override;
  void LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) override;
  void NoteTruncationFailed(const InodePtr&) override {}
  Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read) override;
  bool MustLook(const InodePtr&) override { return false; }
  void LookForOthers(const InodePtr&, const Caller&, Done<void> done) override { done({}); }
  void WhenCurrent(const InodePtr&, const Caller&, Done<void> done) override { done({}); }
  void NoteRead(const InodePtr&) override {}
  void NoteLocked(const InodePtr&) override {}
  void Refresh(const InodePtr&, const Caller&) override {}
  bool MayComeBack(const Error&) const override { return false; }
  std::vector<Digest> PagesToOpen(const Context&, InodeId) override { return {}; }
  bool ContinuesAppends(const InodePtr&) override { return true; }
  uint64_t PlaceAppend(const InodePtr&, const FileSystem::WriteRequest& request) override { return request.offset; }
  void Change(FileChange change, Done<void> done) override;
  void NoteOrphan(const InodePtr& inode) override;

 private:
  const Parts at_;
};

}  // namespace cairnfs::fs
