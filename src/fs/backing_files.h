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
#include "fs/filesystem.h"
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
    // With the inode's lock held. Its content is to be in memory; and, as it was let go, may be dropped.
    std::function<Status(const Context& context, const InodePtr& inode)> load;
    std::function<void(const InodePtr& inode)> drop_if_unused;
    // Runs it on a thread that may wait.
    std::function<void(std::function<void()> task)> post;
  };
  static constexpr uint64_t kFilesMax = 4096;
  struct Kernel {  // memory and registry outlive End
    io::BackingFs& memory;
    BackingRegistry& registry;
    uint64_t files_max = kFilesMax;  // in memory at once
  };
  // A file that is smaller gains little.
  static constexpr uint64_t kSizeMin = kMiB;
  static constexpr size_t kFillsMax = 64;  // that run or wait
  // Of what the pool lends: what a user other than root may have filled; and what only files take that grow while they
  // are read.
  static constexpr uint64_t kUserDivisor = 2, kGrowthDivisor = 8;

  explicit BackingFiles(const Parts& parts) : parts_(parts) {}
  ~BackingFiles() { End(); }
  BackingFiles(const BackingFiles&) = delete;

  // The kernel takes such files from now on. kUnavailable: the system gives no thread for the fills, and all is as
  // before. REQUIRES: called once.
  Status Begin(const Kernel& kernel);
  // Why it takes none: for who looks at the status. Any time.
  void NoteOff(std::string why);
  // It does no more: fills that run are cut short and waited for, and the memory of all goes back, but for what is
  // still mapped. REQUIRES: no NoteOpened runs or follows.
  void End();

  // How an open for reading is answered: with this id; 0: as all others. The open then counts until NoteReleased, also
  // when the kernel does not take the answer. REQUIRES: opens of the file that are open now were all answered with the
  // id, or there are none.
  BackingId NoteOpened(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void NoteReleased(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // The file is about to be changed: what nobody uses goes, rather than be changed with it.
  static void NoteChanging(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);

  // For these no lock of an inode is held. `uid`: for whom, and whose share of the memory it takes.
  // Has the file filled, beside. Nothing happens where it is, is being filled, or is not worth it.
  void FillSoon(InodeId inode, uint32_t uid);
  // Blocks. A success also when it is filled already. kNotSupported: the kernel takes none, or the file is not worth
  // it. kBusy: it is being filled; and errors of BackingFill. kNoSpace: others that are in use have the memory, or
  // those of this user.
  Status Fill(const Context& context, InodeId inode, uint32_t uid);
  // Runs it on the thread of the fills. False: there is none, or no more.
  bool PostFill(std::function<void()> task);
  // The pool runs dry: takes the memory of a file that nobody uses, beside, or has chunks make room where there is
  // none. Any lock may be held.
  void NotePressure();

  bool is_begun() const { return is_begun_; }  // or has ended since

  PassthroughStatus status() const;  // takes no lock of an inode

 private:
  // An inode that is being filled: it stays, and its content.
  class Held;
  Status CheckWorth(const InodePtr& inode) const REQUIRES_LOCK(inode->mutex);
  bool BeginFill(InodeId id) EXCLUDES_LOCK(mutex_);
  void EndFill(InodeId id) EXCLUDES_LOCK(mutex_);
  void AwaitFills() EXCLUDES_LOCK(mutex_);
  Status FillHeld(const Context& context, const InodePtr& inode, uint32_t uid);
  struct Wanted {
    uint64_t size = 0;
    uint32_t uid = 0;
  };
  Status FillAndInstall(const Context& context, const InodePtr& inode, const Kernel& kernel, const Wanted& wanted);
  // Files that nobody uses make room for one more.
  Status AdmitOne(uint64_t files_max);
  Result<io::MemoryLoan> Borrow(uint64_t bytes, uint32_t uid);
  uint64_t RoomOf(uint32_t uid) const;
  uint64_t BytesOf(uint32_t uid) const;
  // Takes the file whose last open is the oldest, of those that nobody uses, and of the user's where one is given.
  // False: there is none. Waits for no inode's lock, whose holder may wait for memory.
  bool RetireOne(std::optional<uint32_t> uid = {});
  std::vector<InodePtr> Listed() const EXCLUDES_LOCK(mutex_);
  std::optional<Kernel> kernel() const EXCLUDES_LOCK(mutex_);

  const Parts parts_;
  std::stop_source stop_;
  std::atomic<bool> is_begun_{false};
  std::atomic<bool> is_pressure_posted_{false};
  std::atomic<uint64_t> count_{0}, filled_total_{0}, failed_total_{0}, opens_total_{0};
  mutable Mutex mutex_;
  CondVar fill_ended_;
  std::optional<Kernel> kernel_ GUARDED_BY(mutex_);  // nullopt: it takes none
  std::string why_not_ GUARDED_BY(mutex_) = "nothing is mounted";
  std::set<InodeId> filling_ GUARDED_BY(mutex_);
  std::map<InodeId, std::weak_ptr<Inode>> listed_ GUARDED_BY(mutex_);  // that got a backing, and may have it still
  std::unique_ptr<TaskQueue> fills_ GUARDED_BY(mutex_);                // of kFillsMax at most, and one of FillsAhead
};

}  // namespace cairnfs::fs
