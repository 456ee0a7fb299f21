// FileRecords: reads the record of a file, on which its content in memory is based.
#pragma once

#include <memory>
#include <vector>

#include "fs/filesystem.h"
#include "fs/host_session.h"
#include "fs/inode.h"
#include "fs/streams.h"

namespace cairnfs::fs {

// Whether a call may wait for chunks, for a round, or for the answer to a publish.
enum class MayWait { kNo, kYes };

// The owner for whom the chunks of this user's files are stored.
chunking::Owner OwnerOf(const FileSystem::Parts& parts, uint32_t uid);
Result<chunking::Owner> FindOwner(const Context& context, const FileSystem::Parts& parts, InodeId id);

// Where a function has a body here, that is what a host alone does.
class FileRecords {
 public:
  virtual ~FileRecords() = default;
  virtual std::unique_ptr<Content> MakeContent(chunking::Owner owner) const = 0;
  // Reads the record into the content. Call it when there is no valid content. False: it would have to wait.
  virtual Result<bool> Load(const Context& context, const InodePtr& inode, MayWait may_wait)
      REQUIRES_LOCK(inode->mutex) = 0;
  // Makes an empty content, for a file that is about to be emptied and whose record cannot be read.
  virtual void BeginAnew(const InodePtr& inode, chunking::Owner owner) REQUIRES_LOCK(inode->mutex) = 0;
  // The content is about to differ from its record.
  virtual void NoteChanging(Content& /*content*/) const {}
  // kIo: the session is over, and a change that began under it can no longer be made.
  virtual Status CheckSession(uint64_t /*session*/) const { return {}; }
  // An error: a change that began under the session must no longer wait for the file.
  virtual Status CheckWait(const Content& /*content*/, uint64_t /*session*/) const { return {}; }
};

class LocalRecords final : public FileRecords {
 public:
  explicit LocalRecords(const FileSystem::Parts& parts) : parts_(parts) {}  // outlive it
  std::unique_ptr<Content> MakeContent(chunking::Owner owner) const override;
  Result<bool> Load(const Context& context, const InodePtr& inode, MayWait may_wait) override
      REQUIRES_LOCK(inode->mutex);
  void BeginAnew(const InodePtr& inode, chunking::Owner owner) override REQUIRES_LOCK(inode->mutex);

 private:
  const FileSystem::Parts& parts_;
};

// Records that other hosts publish too.
class SharedRecords final : public FileRecords {
 public:
  // All outlive it.
  SharedRecords(const FileSystem::Parts& parts, ClusterHost& host, const SharedSession& session, Streams& streams)
      : parts_(parts), host_(host), session_(session), streams_(streams) {}
  std::unique_ptr<Content> MakeContent(chunking::Owner owner) const override;
  Result<bool> Load(const Context& context, const InodePtr& inode, MayWait may_wait) override
      REQUIRES_LOCK(inode->mutex);
  void BeginAnew(const InodePtr& inode, chunking::Owner owner) override REQUIRES_LOCK(inode->mutex);
  void NoteChanging(Content& content) const override { content.shared().session = host_.session(); }
  Status CheckSession(uint64_t session) const override { return session_.Check(session); }
  Status CheckWait(const Content& content, uint64_t session) const override;

  // Brings the content to this state, with this host's changes laid over it. On failure it is as it was.
  Status Adopt(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex);
  // Whether the state may include a publish of this host whose answer is still awaited.
  static bool AwaitsAnswer(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex);
  // The recipe pages that loading the file needs next and that are not at hand.
  std::vector<Digest> PagesToOpen(const meta::FileState& state) const;

 private:
  Status LoadState(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex);
  static void NoteEnd(const InodePtr& inode, uint64_t before, uint64_t now) REQUIRES_LOCK(inode->mutex);

  const FileSystem::Parts& parts_;
  ClusterHost& host_;
  const SharedSession& session_;
  Streams& streams_;
};

}  // namespace cairnfs::fs
