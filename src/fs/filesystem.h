// FileSystem: what a file and a commit mean. The FUSE front end calls it; it knows no libfuse types.
//
// Functions that return a Result do not wait for the disk longer than a metadata read takes and may be called on a
// thread that receives requests. Functions that take a Done callback may take long; they call it exactly once, perhaps
// before they return, perhaps later on a thread of the filesystem. All functions may be called from any thread at once.
//
// Where other hosts share the namespace (Parts::cluster) a metadata read is a round trip over the network, or several.
// So all functions but Names::Forget, Write, Read, Release, Fsync and Maintenance::Sync belong on a thread that may
// wait (RunBlocking). Names::Lookup and Names::GetAttr with a context that is over (Context::Over) do not wait: they
// fail with kUnavailable where the answer is not in memory.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/context.h"
#include "base/result.h"
#include "base/types.h"
#include "chunking/chunker.h"
#include "coherence/file_locks.h"
#include "fs/directory_listing.h"
#include "io/buffer_pool.h"
#include "kv/local_store.h"
#include "kv/name_room.h"
#include "meta/namespace.h"
#include "meta/refused_commit.h"
#include "store/local_chunk_store.h"

namespace cairnfs::cluster {
class ClusterChunkStore;
class Membership;
class Peers;
}  // namespace cairnfs::cluster
namespace cairnfs::coherence {
class ClusterLocks;
}  // namespace cairnfs::coherence
namespace cairnfs::kv {
class SharedKvStore;
}  // namespace cairnfs::kv

namespace cairnfs::fs {

using HandleId = uint64_t;

template <typename T>
using Done = std::function<void(Result<T>)>;

struct Caller {
  uint32_t uid = 0, gid = 0;
  uint32_t pid = 0;
  // Over once the caller is being killed (a pending SIGKILL): nobody waits for the operation any more.
  Context context;
  // Whether it is in the group, or may do what members may. To be asked until the answer. Empty: taken for a no.
  std::function<bool(uint32_t gid)> is_in_group = {};
  // The thread that calls may wait for the disk: a sync of little is done on it, without a second thread.
  bool lends_thread = false;
};

// Who asks for something that no file operation of the kernel stands for.
struct Credentials {
  uint32_t uid = 0, gid = 0;
  std::vector<uint32_t> groups;  // supplementary
};

using kv::NameChange;

struct OpenFlags {
  bool read = false, write = false, truncate = false;
  bool sync = false;          // O_SYNC or O_DSYNC: each write is a sync point
  bool no_atime = false;      // reads leave the time of access alone
  bool executes = false;      // the kernel opens it for exec
  bool from_disk = false;     // what is stored is read from the disk, also where it is in memory
  bool kills_set_id = false;  // with `truncate`: the opener may not leave set-id bits
  bool may_pass = false;      // the kernel can read the file itself, where it is in memory (fs/open_modes.h)
  bool is_beside = false;     // by the node id beside the file's own
};

struct ReadOptions {
  bool for_page_cache = false;  // the kernel reads for a mapping
  Caller caller;
};

struct SetAttrRequest {
  std::optional<uint32_t> mode, uid, gid;
  std::optional<uint64_t> size;
  std::optional<Timestamp> atime, mtime;
  bool atime_now = false, mtime_now = false;
  bool kill_suid_sgid = false;
  std::optional<HandleId> handle;  // ftruncate through an open file
};

struct FallocateRequest {
  uint64_t offset = 0, length = 0;
  bool keep_size = false, punch_hole = false, zero_range = false;
};

struct FsSpace {
  uint64_t total_bytes = 0, free_bytes = 0, available_bytes = 0;
  uint64_t inodes_total = 0, inodes_free = 0;
  // As everybody may see it: bytes are rounded down to about a thousandth of the whole, so that no small file shows.
  FsSpace Rounded() const;
};

// What a sync point waits for, where there are several nodes.
enum class Durability {
  kLocal,       // this node's disk; the copies follow
  kReplicated,  // as many nodes as the replication factor says
};

struct FsOptions {
  Durability durability = Durability::kReplicated;  // in a cluster
  bool durable_file_rename = false;                 // mount option rename=durable
  bool update_atime = true;                         // like relatime; false: noatime, read-only mounts
  unsigned worker_threads = 0;                      // cutting, hashing, storing; 0: as many as cores, 2 at least
  unsigned waiting_threads = 16;                    // operations that wait on chunks
  uint64_t freeze_step_bytes = 8 * kMiB;            // on one host: a freeze point after so many bytes of closed files
  unsigned flush_interval_ms = 1000;                // a sync round at least this often while something is not durable
  unsigned commit_wait_seconds_max = 600;  // a directory rename waits no longer; then it fails with kUnavailable
  unsigned metadata_wait_ms = 600'000;     // in a cluster: how long what needs a session waits for the next one
  size_t read_ahead_bytes = 64 * kMiB;
  uint64_t collect_after_bytes = 64 * kMiB;  // freed bytes that make the background collector start
  uint64_t collect_bytes_per_second_max = 256 * kMiB;
  unsigned collect_delay_ms = 3000;         // after the last deletion
  unsigned orphan_sweep_every_ms = 60'000;  // in a cluster: deleted files that a dead host left are looked for
  bool collect_by_itself = true;            // false: only when asked to (a check of what is damaged)
  uint64_t trash_ms = 0;                    // how long what calls remove stays restorable; 0: it is gone
  bool read_only = false;                   // nothing is collected, not when asked to either
};

// Through the mount, since start.
struct FsTraffic {
  uint64_t write_bytes_total = 0, read_bytes_total = 0;
  uint64_t unsaved_bytes = 0;    // of those written, not durable on this host's disk now
  uint64_t unwritten_bytes = 0;  // of those, the disk has nothing yet: falls while a round runs, not at its end
};

// Chunks of this host that files need, and those that nothing names any more, as of a moment.
struct LiveCount {
  store::LiveTotals totals;
  Clock::time_point at;
};

// Files that the kernel reads itself, from memory (FUSE passthrough).
struct PassthroughStatus {
  std::string why_not;            // it reads none; empty: it does
  uint64_t files = 0, bytes = 0;  // in memory now; bytes that the pool does without
  uint64_t opens_total = 0;       // answered so
  uint64_t filled_total = 0, failed_total = 0;
};

struct FsStatus {
  uint64_t logical_bytes = 0;                   // sum of file sizes (without holes), what is not durable yet included
  uint64_t inode_count = 0;                     // of every type; too few while a start still counts those that it found
  std::optional<uint64_t> metadata_room_bytes;  // that users other than root may take; nullopt: an etcd has the names
  uint64_t dirty_bytes = 0;                     // written and not durable yet
  uint64_t open_files = 0;
  uint64_t write_bytes_total = 0, read_bytes_total = 0;  // through the mount, since start
  uint64_t sync_rounds_total = 0, sync_points_total = 0;
  size_t pool_buffers = 0, pool_buffers_free = 0, pool_buffers_touched = 0;
  uint64_t trash_entries = 0, trash_bytes = 0;  // bytes as allocated: what chunks are shared is counted for each file
  bool collecting = false;
  bool collection_failed = false;  // the last one did
  std::string last_error;          // empty: none
  bool failing = false;            // nothing becomes durable at present: the last sync round could not be finished
  // While the filesystem stops.
  struct Stop {
    std::string waits_for;  // why copies cannot be made; empty: they can
    std::chrono::seconds left_max{};
  };
  std::optional<Stop> stop;
  PassthroughStatus passthrough;
  store::StoreStats store;
  // As the last collection left it, or CountLive found it. nullopt: neither was since the start, or several hosts.
  std::optional<LiveCount> live;
};

// What a user's entries take in the metadata, before compression.
struct MetadataOwner {
  uint32_t uid = 0;
  uint64_t bytes = 0;  // those of extended attributes included
  uint64_t xattr_bytes = 0;
  uint64_t inode_count = 0;
};

struct CollectionStatus {
  bool running = false;
  std::string phase;          // "mark", "sweep", "done", "idle", "failed: why"
  uint64_t inodes_total = 0;  // about so many there are
  uint64_t inodes_marked = 0, chunks_seen = 0, chunks_total = 0, chunks_freed = 0, bytes_freed = 0;
  uint64_t segments_compacted = 0, segments_freed = 0, bytes_moved = 0;
  uint64_t runs_total = 0;
  uint64_t vain_looks_total = 0;  // at whether one is due by itself, and none was
};

struct CheckReport {
  static constexpr size_t kProblemsMax = 1000, kDamagedFilesMax = 1000;
  uint64_t files = 0, directories = 0, chunks = 0, bytes = 0;
  uint64_t unreferenced_chunks = 0;        // in the index, named by no record: the next collection frees them
  uint64_t problem_count = 0;              // 0: clean. A chunk is one problem, however many files name it
  std::vector<std::string> problems;       // the first kProblemsMax, as sentences
  uint64_t repaired_count = 0;             // problems that were: another node's copy replaced this node's
  std::vector<std::string> repaired;       // the first kProblemsMax, as sentences
  uint64_t damaged_file_count = 0;         // that cannot be read as a whole
  std::vector<std::string> damaged_files;  // paths below the root of the first kDamagedFilesMax; "#" and the inode
                                           // number where no name leads to one
};

// How far the check is that runs.
struct CheckProgress {
  std::string phase;                         // what it is at, in words; empty: none runs
  uint64_t bytes_done = 0, bytes_total = 0;  // of chunks, which are most of its work
};

class OpenFiles;
class Writer;
class Reader;
class Names;
class Attributes;
class Directories;
class Maintenance;
class Policies;
class QuotaSettings;
class Tickets;
class Trash;
class AtomicFiles;
class BackingFiles;

class FileSystem {
 public:
  struct ClusterParts {  // all outlive the filesystem
    cluster::Membership& membership;
    cluster::Peers& peers;
    cluster::ClusterChunkStore& chunks;
    coherence::ClusterLocks& locks;
    kv::KvStore& store;                     // the fenced one, which remembers nothing
    kv::SharedKvStore& shared;              // below it
    kv::NameRoomUser* hosted = nullptr;     // where this host has names on its disk: it keeps room there
    std::chrono::milliseconds lease{5000};  // of each session
  };
  struct Parts {  // all outlive the filesystem
    io::BufferPool& pool;
    // Of one of several it compares the host's session in each commit (coherence::MakeFencedStore), and `names` is
    // remote on it. The filesystem ends its open files when the session is lost, and then has the membership rejoin.
    kv::KvStore& kv;
    kv::LocalKvStore* local_kv = nullptr;  // of one host: `kv`
    std::vector<kv::KvEngine*> engines;    // whose tables a check verifies: this node's, and others on its disk
    meta::Namespace& names;
    store::ChunkStore& chunks;  // of one host `local_chunks`, else those of `cluster`
    store::LocalChunkStore& local_chunks;
    chunking::ChunkParams chunk_params;
    meta::Dedup dedup = meta::Dedup::kMount;
    std::optional<ClusterParts> cluster = {};  // none: one host
    // In a cluster: bytes of all nodes that are up, as many as fit in so many copies; nullopt: not known yet. May wait
    // for the shared store.
    struct Space {
      uint64_t total_bytes = 0, available_bytes = 0;
      uint64_t missing_copies = 0;    // of which these nodes know
      bool has_silent_nodes = false;  // that may know of more
    };
    std::function<std::optional<Space>()> cluster_space = {};
    // In a cluster whose commits may lack copies: whether some are known to be missing. May wait for the shared store.
    std::function<bool()> lacks_copies = {};
  };
  // Removes orphans of an earlier process (not in a cluster), starts the threads.
  static Result<std::unique_ptr<FileSystem>> Start(const Parts& parts, const FsOptions& options);
  // Makes everything durable and stops the threads. The error of the last sync. No call may be in progress or follow,
  // but EndBy, and Maintenance::GetStatus, GetTraffic, GetSpace and ListUnsaved, until `on_synced` has returned, which
  // is given that error: nothing is waited for any more. Waits for copies on other nodes for
  // FsOptions::commit_wait_seconds_max at most.
  Status Stop(const std::function<void(const Status&)>& on_synced = {});
  // The process is to end then, and Stop may not have come to its end: from now on what is closed becomes durable
  // first. Any thread.
  void EndBy(Clock::time_point time);
  ~FileSystem();
  struct Impl;  // fs/wiring.h

  // Whether all names change through this mount, so that what its kernel was told of one stays true. Not where other
  // hosts share the namespace.
  bool owns_names() const;
  // Runs the task on a thread that may wait; at once on this one where no call waits for another host. Any thread. The
  // second is for a caller that can be killed, and is then not to wait for a thread any more (fs/blocking_calls.h).
  // Calls that tell `done` and have to wait for another host, or for a round, give that thread back.
  void RunBlocking(std::function<void()> task);
  void RunBlocking(const Caller& caller, std::function<void()> task, Done<void> refused);
  // The same, never on this thread: for what may wait for a round, or read much.
  void RunToWait(const Caller& caller, std::function<void()> task, Done<void> refused);

  // What calls of the themes take and give.
  struct Created {
    meta::Attr attr;
    HandleId handle;
  };
  struct WriteRequest {
    HandleId handle = 0;  // 0: page writeback after the last handle of the inode went (never in practice)
    InodeId inode;
    uint64_t offset = 0;  // of an O_APPEND write on one host too: the kernel holds the file's size still meanwhile
    io::Slice data;       // the payload; the filesystem keeps the buffer as long as it needs it
    bool sync = false;    // this write is a sync point
    bool append = false;  // goes to the end of the file, which another host may have moved
    bool direct = false;  // O_DIRECT: one large asynchronous write may come in pieces, in any order
    bool from_page_cache = false;
    bool kill_suid_sgid = false;
    // Of a sync point, and with `append` in a cluster, which first reads what other hosts have published: who waits.
    // With `kill_suid_sgid`: is_in_group.
    Caller caller;
  };
  struct ReadResult {
    std::vector<io::Slice> slices;
    size_t size = 0;
  };
  enum class Seek { kData, kHole };

  // The calls of each theme.
  OpenFiles& open_files();
  Writer& writer();
  Reader& reader();
  Names& names();
  Attributes& attributes();
  Directories& directories();
  Maintenance& maintenance();
  Policies& policies();
  Tickets& tickets();
  Trash& trash();
  AtomicFiles& atomic_files();
  QuotaSettings& quotas();
  BackingFiles& backing_files();  // for the front end, where the kernel reads files itself

  // For who has waited since `waits_since` for a buffer of the pool to take a write with, while none came free for
  // `without_release`: why none comes, once accepted bytes that find no room hold them all. Has it tried first, beside,
  // whether they find some. Does not wait; to be asked again and again.
  std::optional<Error> WhyNoBufferComes(std::chrono::milliseconds without_release, Clock::time_point waits_since);
  // Where the front end brings its lock requests, if the kernel does not keep the locks.
  coherence::FileLocks& locks() const;
  // Ends, with errors, requests that wait for others: locks, reads of what is on hosts that do not answer, and moves
  // and links that wait for copies. None waits from now on. For the front end, once it takes no more requests.
  void EndWaits();
  // kIo: the host's session under which the file was opened is lost, and every lock with it. The front end asks before
  // a lock is asked for and once it is granted.
  Status CheckSession(HandleId handle) const;
  // Somebody was granted a lock through the open file: what other hosts have synced or closed of it by now is read from
  // now on. Once the session is lost, reads through it fail: they may be meant to be under that lock.
  void NoteLocked(HandleId handle);
  // To be called before a lock is given up: calls `then` once whoever gets it next finds what was written under it, as
  // after a close. Perhaps on another thread, and then `then` must not block. Once the caller is being killed it does
  // not wait on.
  void PublishBeforeUnlock(HandleId handle, std::function<void()> then, const Caller& caller = {});

 private:
  explicit FileSystem(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cairnfs::fs
