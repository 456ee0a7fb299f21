// BackingFiles: which files the kernel reads and maps past the daemon (FUSE passthrough), and the memory for them.
//
// A file is filled on a thread of its own kind, and becomes the inode's Backing if it was not changed meanwhile. It
// stays until its memory is wanted and nobody uses it, or the inode is forgotten.
//
// Lock order: Inode::mutex before the mutex here.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <vector>

#include "base/context.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/backing_registry.h"
#include "fs/inode.h"
#include "io/backing_fs.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// Any thread.
class BackingFiles {
 public:
  struct Parts {  // all outlive it
    io::BufferPool& pool;
    store::ChunkStore& chunks;
    InodeTable& table;
    // Has chunks that are in memory leave so many bytes of the pool, if they can.
    std::function<void(uint64_t bytes)> make_room;
    // An inode was let go, with its lock held: its content may be dropped.
    std::function<void(const InodePtr& inode)> drop_if_unused;
  };
  struct Kernel {  // both outlive End
    io::BackingFs& memory;
    BackingRegistry& registry;
  };
  // A file that is smaller gains little.
  static constexpr uint64_t kSizeMin = kMiB;
  static constexpr size_t kFillsMax = 64;  // that run or wait

  explicit BackingFiles(const Parts& parts) : parts_(parts) {}
  ~BackingFiles() { End(); }
  BackingFiles(const BackingFiles&) = delete;

  // The kernel takes such files from now on. REQUIRES: called once, before requests come.
  void Begin(const Kernel& kernel);
  // It does no more: none is filled, and the memory of all goes back, but for what is still mapped. REQUIRES: no
  // NoteOpened and no Fill runs or follows.
  void End();

  // How an open for reading is answered: with this id; 0: as all others. The open then counts until NoteReleased, also
  // when the kernel does not take the answer. REQUIRES: opens of the file that are open now were all answered with the
  // id, or there are none.
  BackingId NoteOpened(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void NoteReleased(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The file is about to be changed: what nobody uses goes, rather than be changed with it.
  static void NoteChanging(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // For this and Fill no lock of an inode is held.
  // Has the file filled, beside. Nothing happens where it is, is being filled, or is not worth it.
  void FillSoon(InodeId inode);
  // Blocks. A success also when it is filled already. kNotSupported: the kernel takes none, or the file is not worth
  // it. kBusy: it is being filled; and errors of BackingFill. kNoSpace: others that are in use have the memory.
  Status Fill(const Context& context, InodeId inode);

  bool is_begun() const { return is_begun_; }  // or has ended since
  // Whether the file is in memory now.
  bool IsBacked(InodeId inode);

  struct Counts {
    uint64_t files = 0, bytes = 0;  // in memory now; bytes that the pool does without
    uint64_t filled_total = 0, failed_total = 0, opens_total = 0;
  };
  Counts counts() const;

 private:
  // An inode that is being filled: it stays, and its content.
  class Held;
  Status CheckWorth(const InodePtr& inode) const REQUIRES_LOCK(inode->mutex);
  bool BeginFill(InodeId id) EXCLUDES_LOCK(mutex_);
  void EndFill(InodeId id) EXCLUDES_LOCK(mutex_);
  Status FillHeld(const Context& context, const InodePtr& inode);
  Status FillAndInstall(const Context& context, const InodePtr& inode, const Kernel& kernel, uint64_t size);
  Result<io::MemoryLoan> Borrow(uint64_t bytes);
  // Takes the file whose last open is the oldest, of those that nobody uses. False: there is none.
  bool RetireOne();
  std::vector<InodePtr> Listed() const EXCLUDES_LOCK(mutex_);
  std::optional<Kernel> kernel() const EXCLUDES_LOCK(mutex_);

  const Parts parts_;
  std::stop_source stop_;
  std::atomic<bool> is_begun_{false};
  std::atomic<uint64_t> filled_total_{0}, failed_total_{0}, opens_total_{0};
  mutable Mutex mutex_;
  std::optional<Kernel> kernel_ GUARDED_BY(mutex_);  // nullopt: it takes none
  std::set<InodeId> filling_ GUARDED_BY(mutex_);
  std::map<InodeId, std::weak_ptr<Inode>> listed_ GUARDED_BY(mutex_);  // that got a backing, and may have it still
  std::unique_ptr<TaskQueue> fills_ GUARDED_BY(mutex_);                // of kFillsMax at most
};

}  // namespace cairnfs::fs
