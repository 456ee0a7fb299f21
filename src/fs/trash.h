// Trash: what was removed stays restorable for a while (docs/decisions/trash.md). Says what goes there, shows it to who
// may see it, gives it its name back, and empties it: what has expired, and the oldest when somebody needs room.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

class Totals;

// How long what retention removes stays there.
inline constexpr std::chrono::hours kRetentionTrash{24};

struct TrashItem {
  meta::TrashEntry entry;
  std::string path;  // where it lay, below the root; "#", an inode and a name where the caller may not know more
};

// All functions: any thread. Those with a context may wait for the shared store.
class Trash {
 public:
  struct Parts {  // all outlive it
    meta::Namespace& names;
    SyncRounds& rounds;
    const FsOptions& options;
    bool is_shared = false;  // other hosts remove, restore and empty too
  };
  struct Hooks {
    // A removed inode has no link any more: it is to go, as after unlink(2).
    std::function<void(const meta::Attr&)> removed;
    // Waits until the records of removed inodes are deleted.
    std::function<void()> await_removed;
    // Whether this host is the one that empties what has expired.
    std::function<bool()> empties_expired;
  };
  explicit Trash(const Parts& parts);
  ~Trash() { Stop(); }
  void Start(Hooks hooks);  // before any call that empties
  void StopExpiring();      // what expires stays; for who needs room it is emptied yet
  void Stop();              // nothing is emptied any more, and who is at it is done soon
  void SetReadOnly(bool read_only);
  Status CheckMayChange() const;  // kPermission: it is mounted read_only

  // What is to happen to what this user removes under that name. nullopt: it is gone for good.
  std::optional<meta::TrashParams> For(uint32_t uid, std::string_view name) const;
  // What lies below a directory that is to go to the trash as a whole. Takes as long as there is much. kNotEmpty: the
  // user does not own every directory of it, so it has to be removed one by one, with the user's own rights.
  // kUnavailable: enough of them are being measured, this user's or all.
  Result<meta::TrashParams::Held> Measure(const Context& context, uint32_t uid, InodeId directory);
  void NoteAdded(uint64_t bytes);

  struct Page {
    std::vector<TrashItem> items;
    std::string next;  // after which the next page begins; empty: there is none
  };
  // `after`: Page::next of the one before; empty: the first. kInvalidArgument: it is none.
  // What the caller may see: what lay in a directory of the caller's, or was the caller's; root all. The oldest first.
  Result<Page> List(const Context& context, const Credentials& caller, const std::string& after);
  // kNotFound: there is none that the caller may see.
  Result<TrashItem> Find(const Context& context, const Credentials& caller, InodeId id);
  // Takes it, or all that the caller may see, out of reach, and has it removed. How much. kNotFound as Find.
  struct Emptied {
    uint64_t entries = 0, bytes = 0;
  };
  Result<Emptied> Empty(const Context& context, const Credentials& caller, std::optional<InodeId> id);
  void NoteRestored(const meta::TrashEntry& entry);

  // For who needs room: empties the oldest, at least an eighth of all, by bytes and by entries, and returns once that
  // is removed, or after half a minute of it. False: there was nothing, or Stop was called.
  bool EmptyOldest();
  // For who finds no room in the quota: removes what is to go already, and, if nothing was, the oldest directories that
  // count for it, of at least so many bytes if there are. Returns as EmptyOldest does. What lies there under no
  // directory counts for none. Once `is_freed` says so, nothing more goes: others have made room meanwhile.
  bool EmptyOldestUnder(const Context& context, InodeId quota, uint64_t bytes, const std::function<bool()>& is_freed);
  bool IsStopped() const { return stop_.stop_requested(); }
  // Whether it may hold something, or has something that goes yet; a look tells. Does not wait.
  bool HoldsAny() const;
  uint64_t entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }  // as allocated: what chunks are shared is counted for each file
  // How many of so many bytes that are stored emptying it may give back. Which of its chunks other files share is known
  // to no one without reading all records, so it is taken to share as much as all files do.
  uint64_t BytesStored(Totals& totals, uint64_t stored_bytes) const;

 private:
  void Run();
  bool HasToLook() const;  // what is known to be empty, and filled by this host alone, need not be read again
  // The path of a directory, and a slash; its number where the caller may not know that.
  std::string PlaceFor(const Context& context, const Credentials& caller, InodeId directory);
  Result<meta::TrashParams::Held> MeasureNow(const Context& context, uint32_t uid, InodeId directory);
  Status EmptyExpired(const Context& context);
  Result<uint64_t> DoomOldest(const Context& context);  // how many
  Result<std::vector<meta::TrashEntry>> FindOldestUnder(const Context& context, InodeId quota, uint64_t bytes);
  // Takes `first` out of the trash for good, and removes all that is to go, as Doom and Clear do.
  Status ClearSoon(const Context& context, const std::vector<meta::TrashEntry>& first, Emptied& doomed,
                   Emptied& cleared) EXCLUDES_LOCK(clearing_);
  void Wake();
  // Adds to `doomed`, also where it fails.
  Status Doom(const Context& context, const std::vector<meta::TrashEntry>& entries, Emptied& doomed);
  // Removes what lies below doomed directories, until there are none, or those that are left fail: the first error
  // then, unless they are damaged. Adds what goes to `cleared`, also where it fails. kInterrupted: not all, as the
  // context has expired or it took long: whoever has a working directory there may go on making some.
  Status Clear(const Context& context, Emptied& cleared) REQUIRES_LOCK(clearing_);
  Status ClearOne(const Context& context, InodeId directory, Emptied& cleared);
  Status ClearInBackground(const Context& context) EXCLUDES_LOCK(clearing_);
  void NoteGone(uint64_t entries, uint64_t bytes);

  const Parts at_;
  Hooks hooks_;
  std::atomic<bool> is_read_only_;
  std::atomic<uint64_t> entries_{0}, bytes_{0};  // as the last look found it, and what came and went here since
  std::atomic<bool> is_counted_{false};          // there was one
  std::atomic<bool> has_doomed_{false};          // directories, as far as this host knows
  std::atomic<Clock::time_point> found_empty_at_{Clock::time_point(-std::chrono::hours(1))};
  // How often something was put there, and before the last look: what came since, that may have missed.
  std::atomic<uint64_t> added_{0}, added_before_look_{0};
  std::stop_source stop_, stop_expiring_;
  size_t damaged_told_ = 0;  // entries, to the log; of the thread alone
  Mutex clearing_;           // one at a time
  Mutex mutex_;
  CondVar wake_;
  bool is_woken_ GUARDED_BY(mutex_) = false;
  std::map<uint32_t, unsigned> measuring_ GUARDED_BY(mutex_);  // directories, by uid
  std::thread thread_;
};

}  // namespace cairnfs::fs
