// SharedFiles: Sharing among several hosts.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "fs/calls.h"
#include "fs/host_waits.h"
#include "fs/orphans.h"
#include "fs/room.h"
#include "fs/sharing.h"
#include "fs/waits.h"

namespace cairnfs::fs {

class SharedFiles final : public Sharing {
 public:
  struct Parts {  // all outlive it
    const FileSystem::Parts& parts;
    ClusterHost& host;
    const SharedSession& session;
    InodeTable& table;
    Contents& contents;
    SharedRecords& records;
    SyncRounds& rounds;
    Room& room;
    SharedCalls& calls;
    Waits& waits;
    std::stop_token stop;  // of the filesystem
  };
  explicit SharedFiles(const Parts& parts) : at_(parts) {}

  bool owns_names() const override { return false; }

  // Of deleted files, which this host asks others about. Outlives every call. Before the first.
  void SetOrphans(Orphans& orphans) { orphans_ = &orphans; }

  std::function<void(kv::Transaction&, InodeId)> MarkCreated(uint64_t& session) override;
  void NoteCreated(const InodePtr& inode, uint64_t session) override REQUIRES_LOCK(inode->mutex);
  void EndCreate(const Context& context, const InodePtr& inode, uint64_t session) override;
  Status MayOpen(const Context& context, InodeId id) override;
  void LoadForOpen(const InodePtr& inode, const OpenFlags& flags, const Caller& caller, Done<void> done) override;
  void NoteTruncationFailed(const InodePtr& inode) override REQUIRES_LOCK(inode->mutex);
  Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read) override;
  bool MustLook(const InodePtr& inode) override REQUIRES_LOCK(inode->mutex);
  void LookForOthers(const InodePtr& inode, const Caller& caller, Done<void> done) override;
  void NoteRead(const InodePtr& inode) override REQUIRES_LOCK(inode->mutex);
  void WhenCurrent(const InodePtr& inode, const Caller& caller, Done<void> done) override;
  void NoteLocked(const InodePtr& inode) override;
  void Refresh(const InodePtr& inode, const Caller& caller) override;
  bool MayComeBack(const Error& error) const override { return error.code != ErrorCode::kNotFound; }
  std::vector<Digest> PagesToOpen(const Context& context, InodeId id) override;
  bool ContinuesAppends(const InodePtr& inode) override;
  uint64_t PlaceAppend(const InodePtr& inode, const FileSystem::WriteRequest& request) override
      REQUIRES_LOCK(inode->mutex);
  void Change(FileChange change, Done<void> done) override;
  void NoteOrphan(const InodePtr& inode) override {
    orphans_->Add(inode->id);
    at_.room.NoteFreed(inode->freed_bytes);
  }

 private:
  using WithMarks = meta::Namespace::WithMarks;
  struct Opening {
    InodePtr inode;
    Caller caller;
    WithMarks marks = WithMarks::kNo;  // the file is written to: its marks are read too
  };
  // Whether another host was told that this one has the deleted file not open, and so may not open it.
  bool IsRefused(const Context& context, InodeId id);
  void Load(const Opening& opening, HostWaits waits, Done<void> done);
  Result<meta::FileState> ReadAfterAnswer(const Opening& opening);
  // Takes over the state for the opening.
  Status Adopt(const Opening& opening, const meta::FileState& state, uint64_t noticed);
  // Brings the content to what the store has, with this host's changes laid over it. False when that would have to wait
  // for the answer to a publish.
  Result<bool> Refresh(const Opening& opening, MayWait may_wait);
  // False: older than what this host has published, read it again.
  bool Overlay(meta::Attr& attr);
  bool AdoptPublished(const InodePtr& inode, const meta::FileState& state);  // whether there was anything
  // One attempt, on what others have made of the file: nullopt when it would have to wait.
  std::optional<Status> ChangeCurrent(const FileChange& change, MayWait may_wait);
  void FinishChange(const FileChange& change, Status changed, Done<void> done);

  const Parts at_;
  Orphans* orphans_ = nullptr;                // set before the first call
  std::atomic<unsigned> looks_under_way_{0};  // of NoteRead; kLooksMax at most
};

}  // namespace cairnfs::fs
