// AtomicFiles: files that appear whole (docs/commits.md, docs/decisions/atomic-files.md).
//
// What is being written under such a name is an ordinary file without a name, an orphan, and an entry in memory that
// says under which name one process finds it. When that process has closed it, one transaction gives it the name. So
// nothing else has to be undone when the process, the daemon or the host dies: the orphan goes, as orphans do.
//
// The front end asks here first for all calls that such a file may be in the way of. While no directory has a rule, and
// nothing is pending, that costs one look at two numbers.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/clock.h"
#include "base/task_queue.h"
#include "base/thread_annotations.h"
#include "fs/atomic_rules.h"
#include "fs/descriptor_looks.h"
#include "fs/name_changes.h"
#include "fs/names.h"
#include "fs/open_files.h"
#include "fs/processes.h"
#include "fs/reader.h"
#include "fs/turns.h"
#include "fs/unsaved.h"

namespace cairnfs::fs {

// Any thread. Functions take the thread that asks as a FUSE request names it.
class AtomicFiles {
 public:
  struct Parts {  // all outlive it
    const Services services;
    NameChanges& changes;
    Names& names;
    OpenFiles& open_files;
    Reader& reader;
  };
  static constexpr size_t kPendingMax = 8192;  // of all users; HasShare says how many of these one may have

  explicit AtomicFiles(const Parts& parts)
      : at_(parts), looks_({parts.services.waits, parts.services.waiters}, &HasOpenForWriting) {}
  void Stop();  // what is being closed is closed first. No call may follow

  // Whether the name may lead each process to another file: the kernel asks each time.
  bool IsAskedEachTime(InodeId directory, std::string_view name);
  // Names::Lookup, as the process finds the name.
  Result<meta::Attr> Lookup(const Context& context, uint32_t thread, InodeId directory, std::string_view name);
  // Whether the thread's last open was sent back by Open, and it has not looked the file up again.
  bool IsSentBack(uint32_t thread);

  // Who opens the name, which may be another's by the time of the close.
  struct Opener {
    Caller caller;
    Credentials credentials;
  };
  // Lookup for a thread that was sent back: where the name leads to the file that it was to open, it finds a new one in
  // its place. Where none can be made it finds the old one, and the Open that follows fails: kBusy: too many are being
  // written; and what a new name may be refused with. May wait for the store.
  void LookUpSentBack(const Opener& opener, InodeId directory, std::string_view name, const Done<meta::Attr>& done);
  // open(2) that makes a file. nullopt: such a file appears at once, or is there and is to be opened as it is. Adds one
  // to its lookup count. kNotSupported: nobody could tell how the process ends.
  Result<std::optional<meta::Attr>> Create(const Opener& opener, InodeId directory, std::string_view name,
                                           const meta::CreateParams& params, const OpenFlags& flags);
  // OpenFiles::Open. kStale: the thread is sent back, to look the path up once more.
  void Open(InodeId inode, const OpenFlags& flags, Done<HandleId> done, const Caller& caller);
  // OpenFiles::Flush. The last close by the process that opened the file waits until it has its name. kIo: the file
  // does not get it; kStale: the name stands for another file by now, which the opener may not replace; and errors of
  // renames.
  void Flush(InodeId inode, const Closing::Descriptor& closed, Done<void> done, const Caller& caller);
  void Release(InodeId inode, HandleId handle);
  // A change of the file's bytes was refused: it does not get its name.
  void NoteWriteFailed(InodeId inode, const Error& why);

  // Those that are being written. Not those whose writer was killed, which get no name.
  PlacesToCome GetPlacesToCome() EXCLUDES_LOCK(mutex_);
  // Namespace::PathOfInode; of one that is being written, the path that it is to get.
  std::string PathOf(const Context& context, InodeId inode);

  // False: the process has no such file of its own under this name. Else it has none from now on.
  bool Unlink(uint32_t thread, InodeId directory, std::string_view name);
  // nullopt: the first name leads the process to no such file. Else `params` is of the file itself: it gets the new
  // name at once, and is written in place from then on. kInvalidArgument: it cannot be exchanged. kStale: the thread is
  // sent back, to look both names up once more: the kernel moves what it knows of a name, also for how long it knows
  // it, to a name that leads each process to another file.
  Result<std::optional<meta::RenameParams>> BeginRename(uint32_t thread, const meta::RenameParams& params);
  // The rename that the process asked for was made; `named`: as BeginRename has it.
  void EndRename(uint32_t thread, const meta::RenameParams& params, const std::optional<meta::RenameParams>& named);
  // The answer to a rename comes next.
  void NoteAnswered(const meta::RenameParams& params);

 private:
  struct Pending;
  using PendingPtr = std::shared_ptr<Pending>;
  using Key = std::tuple<InodeId, std::string, ProcessId, InodeId>;  // directory, name, process, the file's own
  struct Place {
    InodeId directory;
    std::string name;
    bool must_be_complete = false;
  };
  // A thread whose open was answered so that the kernel looks the path up again. Whatever comes of that takes it away.
  struct SentBack {
    InodeId inode;         // that it opened
    InodeId directory;     // in which this host last saw its name; 0: not known
    uint64_t started = 0;  // the thread
    Clock::time_point at;
    // Its name was looked up again: it is opened in place, or the open is answered so. nullopt: it was not yet.
    std::optional<Status> looked_up = {};
    // The name in `directory`. The kernel may look it up twice, and others make and remove it meanwhile.
    std::string name = {};
  };
  enum class IsNamed { kNo, kYes };

  bool IsPending(InodeId directory, std::string_view name) EXCLUDES_LOCK(mutex_);
  // The kernel need not ask for a name that a rename moves to one of ours, and moves that along.
  bool IsMoved(InodeId directory, std::string_view name) EXCLUDES_LOCK(mutex_);
  bool MustLookUpAgain(uint32_t thread, const meta::RenameParams& params) EXCLUDES_LOCK(mutex_);
  void SetMoved(const meta::RenameParams& params, uint32_t thread, Clock::time_point until) REQUIRES_LOCK(mutex_);
  // One whose last close has not begun.
  PendingPtr FindOwn(uint32_t thread, InodeId directory, std::string_view name) EXCLUDES_LOCK(mutex_);
  PendingPtr FindLocked(const Place& place, const ProcessId& process) REQUIRES_LOCK(mutex_);
  PendingPtr Find(InodeId inode) EXCLUDES_LOCK(mutex_);
  // Whether the open that is made now is the one that the note is about.
  bool IsAgain(const SentBack& note, InodeId inode, const Context& context);
  std::optional<SentBack> TakeSentBack(uint32_t thread) EXCLUDES_LOCK(mutex_);
  void NoteSentBack(uint32_t thread, const SentBack& sent_back) EXCLUDES_LOCK(mutex_);
  // An open that empties the file is to be sent back, where this is given.
  Result<std::optional<SentBack>> MustSendBack(InodeId inode, const Caller& caller);
  Status CheckSeen(const Caller& caller, InodeId directory, InodeId inode);
  // `replaced`: what the name leads to.
  Result<meta::Attr> Make(const Opener& opener, const Place& place, meta::CreateParams params,
                          const std::optional<meta::Attr>& replaced);
  Status CopyAttributes(const Context& context, InodeId from, InodeId to);
  Result<meta::Attr> LookUp(const Context& context, const Pending& pending);
  Status CheckRoom(uint32_t uid) EXCLUDES_LOCK(mutex_);
  void Tidy() EXCLUDES_LOCK(mutex_);
  void OpenPending(const PendingPtr& pending, OpenFlags flags, const Done<HandleId>& done, const Caller& caller);

  bool IsWriter(const Pending& pending, HandleId handle) EXCLUDES_LOCK(mutex_);
  // Whether the process is known to have been killed, by now or then.
  bool NoteEnd(Pending& pending, bool is_killed) EXCLUDES_LOCK(mutex_);
  void NoteFailed(Pending& pending, const Error& why) EXCLUDES_LOCK(mutex_);
  // True, once: `has_closed`, and the process was not killed.
  bool BeginsEnd(Pending& pending, bool has_closed) EXCLUDES_LOCK(mutex_);
  void Publish(const PendingPtr& pending, const Caller& caller, Done<void> done);
  std::optional<std::string> WhyCutShort(const Pending& pending, const Caller& caller);
  void TakeName(const PendingPtr& pending, const Caller& caller, const Done<void>& done);
  void RenameToName(const PendingPtr& pending, const Caller& caller, const Done<void>& done);
  Status CheckMayTake(const Pending& pending, const Context& context,
                      const std::optional<meta::RenameParams::Target>& target);
  // What became of a rename that has failed.
  Status Settle(const PendingPtr& pending, const Error& why);
  void Leave(const PendingPtr& pending, const std::string& why);  // the old file
  void Drop(InodeId inode, HandleId kept_open);
  // Nobody finds the file by the name any more. False: that was so already.
  bool End(const PendingPtr& pending, IsNamed is_named) EXCLUDES_LOCK(mutex_);
  void PostCheck(uint32_t uid, std::function<void()> check) EXCLUDES_LOCK(mutex_);

  const Parts at_;
  DescriptorLooks looks_;
  std::atomic<size_t> pending_count_{0}, sent_back_count_{0}, moved_count_{0};
  Mutex mutex_;
  std::map<Key, PendingPtr> by_name_ GUARDED_BY(mutex_);
  std::unordered_map<InodeId, PendingPtr> by_inode_ GUARDED_BY(mutex_);
  std::map<uint32_t, size_t> by_user_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, SentBack> sent_back_ GUARDED_BY(mutex_);
  // Names of which the kernel is told to ask each time, as a thread is to look them up again for its rename.
  struct Moved {
    uint32_t thread = 0;
    Clock::time_point until;
  };
  std::map<std::pair<InodeId, std::string>, Moved> moved_ GUARDED_BY(mutex_);
  std::unique_ptr<TaskQueue> checks_ GUARDED_BY(mutex_);  // of formats, one at a time; null: none was yet
  // One for each task of it; there are no more than files under way, and those that threads make at this moment.
  Turns<std::function<void()>> to_check_ GUARDED_BY(mutex_){2 * kPendingMax, 1};
};

}  // namespace cairnfs::fs
