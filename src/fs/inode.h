// Inode: one inode that the kernel knows, is open, or has bytes that are not durable; and the table of them.
//
// Lock order: the gate of the sync rounds (sync_rounds.h), then Inode::mutex, then InodeTable's shards, the list of
// changed inodes and the locks of other rooms. Never two inodes' locks at once, except CopyRange, which takes them in
// order of inode number.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "fs/backing.h"
#include "fs/chunk_saver.h"
#include "fs/extent_map.h"
#include "fs/file_error.h"
#include "fs/open_modes.h"
#include "fs/overlay.h"
#include "fs/publish_state.h"
#include "fs/range_set.h"
#include "fs/saves.h"
#include "fs/shared_content.h"
#include "meta/namespace.h"
#include "meta/quota_records.h"

namespace cairnfs::fs {

// What is known of a regular file's bytes. Exists once the file was opened, or changed.
struct Content {
  Content(const chunking::ChunkParams& params, std::unique_ptr<PublishState> state)
      : publish(std::move(state)), overlay(params) {}
  explicit Content(const chunking::ChunkParams& params) : Content(params, std::make_unique<PublishState>()) {}

  const std::unique_ptr<PublishState> publish;

  chunking::Owner owner;           // for whom its chunks are stored
  std::optional<uint32_t> writer;  // uid of who wrote last by write(2); nullopt: nobody did since it was opened
  SaveTallyPtr tally;              // of the directory by which it was last written to; null: none is known
  InodeId quota;                   // for which its bytes count; 0: none
  bool quota_is_set = false;       // to another one than its record has
  // How many of its bytes were stored nowhere when they were written: by its record, and since that.
  uint64_t unique_bytes = 0;
  std::shared_ptr<std::atomic<uint64_t>> new_bytes = std::make_shared<std::atomic<uint64_t>>(0);
  uint64_t size = 0;
  Timestamp mtime, ctime;
  ExtentMap extents;
  Overlay overlay;
  std::vector<store::ChunkPin> pins;  // of chunks that extents or pages name, and that no published record names yet

  // Chunks in flight: cut, and not yet applied to `extents`. They are applied in the order of their ids. So `extents`
  // has the bytes as of one moment, and older bytes that took longer never replace newer ones.
  struct Landed {
    ChunkSaver::Saved saved;       // empty without a failure: the bytes are lost
    std::optional<Error> failure;  // no space, or a part of the recipe that is away: the next round tries again
  };
  std::map<uint64_t, std::shared_ptr<FlyingChunk>> flying;
  std::map<uint64_t, Landed> landed;
  uint64_t next_chunk_id = 1;

  // Ranges whose bytes could not be stored and are lost. Reading them is an error until they are written again or cut
  // off.
  struct LostRange {
    uint64_t begin, end;
    uint64_t chunk_id;  // chunks up to this one hold older bytes of it
  };
  std::vector<LostRange> lost;
  bool loss_told = true;               // a round knows of the last loss
  bool no_space_noted = false;         // that a chunk of it found no space is in the log
  uint64_t no_space_through = 0;       // the last chunk that found none
  bool recipe_away_noted = false;      // that a chunk of it waits for its recipe is in the log
  bool recipe_error_noted = false;     // that its recipe could not be stored was told
  std::optional<Error> publish_error;  // why the last round could not publish it, while other files were published

  uint64_t accepted_bytes = 0;    // written or copied since the last record, those that were written over included
  uint64_t published_size = 0;    // of the last record, lowered by truncation since
  uint64_t round_size = 0;        // at the start of the round that runs, which stores all of that; 0: it cannot
  bool changed = false;           // differs from the record last published
  uint64_t changes = 0;           // how often it came to differ from its record
  bool cutting = false;           // a worker looks for cuts, or is about to
  bool must_publish = false;      // the next round must take it: it was closed, renamed or synced
  uint64_t flushed_with = 0;      // its record is durable when so many rounds are finished; on one host
  bool failure_noted = false;     // that the disk fails before its bytes are durable is in the log
  bool unrecorded = false;        // published, but the record cannot be read yet: do not forget the content
  bool in_round = false;          // the round that runs has yet to publish it, as of the round's start
  uint64_t drain_target = 0;      // the round waits until every chunk with an id up to this one is applied
  unsigned barriers_waiting = 0;  // operations that wait until nothing is in flight; no new cuts meanwhile

  bool drop_runs = false;  // under memory pressure: runs that are stored give their buffers back
  // Small holes in which the overlay has zeros, of a file that other hosts may write to: what they write there counts,
  // so no zero is this host's own. Those that the overlay has dropped may still be here.
  RangeSet filled_holes{SIZE_MAX};
  Clock::time_point written_at;  // when bytes were last laid into `overlay`

  bool must_reload() const { return publish->must_reload(); }
  // REQUIRES: publish->is_shared().
  SharedContent& shared() {
    assert(publish->is_shared());
    return static_cast<SharedContent&>(*publish);
  }
  const SharedContent& shared() const { return const_cast<Content*>(this)->shared(); }
  bool quiet() const { return flying.empty() && !in_round; }
  // Whether it would be quiet without the chunks that could not be stored and that nobody tries again at present.
  bool IsQuietButForFailed() const;
  // Bytes of the file without its holes. Counts bytes twice that lie over a part of `extents` that is not loaded.
  uint64_t AllocatedBytes() const;
  uint64_t DirtyBytes() const;  // written and not stored yet
  // What it counts for its quota, what is not stored yet included: of that nobody knows what is new, so all counts.
  meta::QuotaBytes QuotaBytes() const;
  // Adds the new bytes to the unique ones, of which there are no more than `allocated_bytes`.
  void FoldNewBytes(uint64_t allocated_bytes);
  uint64_t UnsavedBytes() const;  // written and not in a record, or lost
  // The end of what is accepted and not stored.
  uint64_t UnstoredEnd() const;
  const Error* Failure() const;  // of a chunk in flight, which is tried again; null: none
  // Whether a chunk that found no space is not stored yet.
  bool LacksSpace() const { return !flying.empty() && flying.begin()->first <= no_space_through; }
  // An error if the file lacks accepted bytes, as far as is known: some are lost, or found no space.
  std::optional<Error> WhyNotWhole() const;
  // Whether it will give buffers back by itself, without more bytes coming.
  bool IsOnItsWay() const { return cutting || flying.size() > landed.size(); }
  bool HasLost(uint64_t begin, uint64_t end) const;
  void AddLost(LostRange range);  // replaces older ranges within it, and joins neighbours
  // The range has bytes again, of chunk `chunk_id`. By default: it was cut off, or all of it is newer.
  void ForgetLost(uint64_t begin, uint64_t end, uint64_t chunk_id = UINT64_MAX);
  // No thread works on it, and nothing of it is in flight or lost.
  bool idle() const { return quiet() && !cutting && barriers_waiting == 0 && lost.empty(); }
};

class Inode {
 public:
  explicit Inode(InodeId inode_id) : id(inode_id) {}
  const InodeId id;

  Mutex mutex;
  CondVar changed_state;  // a chunk was applied, or the record published
  std::unique_ptr<Content> content GUARDED_BY(mutex);
  std::unique_ptr<Backing> backing GUARDED_BY(mutex);  // null: the kernel asks for all of its bytes
  OpenModes modes GUARDED_BY(mutex);
  uint64_t open_count GUARDED_BY(mutex) = 0;
  uint64_t write_open_count GUARDED_BY(mutex) = 0;
  uint64_t write_opens GUARDED_BY(mutex) = 0;        // ever
  bool opened_for_update GUARDED_BY(mutex) = false;  // ever: for reading and writing at once
  uint64_t bytes_read GUARDED_BY(mutex) = 0;         // through the daemon, since it changed or was to be filled
  bool is_read_through GUARDED_BY(mutex) = false;    // that was as much as it has
  void ForgetReads() REQUIRES_LOCK(mutex) {
    bytes_read = 0;
    is_read_through = false;
  }
  bool closed_while_open GUARDED_BY(mutex) = false;  // a descriptor of a file that is open for writing since
  FileError error GUARDED_BY(mutex);

  // How often this host has noticed that another may have published bytes of the file: until now, and until the content
  // in memory was read.
  uint64_t others_noticed GUARDED_BY(mutex) = 0, others_seen GUARDED_BY(mutex) = 0;
  Clock::time_point looked_at GUARDED_BY(mutex);             // last look whether others have changed it
  std::chrono::milliseconds look_after GUARDED_BY(mutex){};  // time from that look to the next
  bool look_under_way GUARDED_BY(mutex) = false;
  // The end of the file here before another host cut it, moved on by later appends. The kernel may still take this for
  // the end, and append there.
  uint64_t others_cut_from GUARDED_BY(mutex) = 0;
  // Gaps before the end, for earlier pieces of large appends whose later pieces came first.
  RangeSet late_appends GUARDED_BY(mutex);

  // Ranges that write(2), copy_file_range(2) and fallocate(2) changed since the kernel last filled its pages of them
  // (docs/decisions/mappings.md).
  RangeSet written_under_pages GUARDED_BY(mutex);
  Clock::time_point written_under_pages_at GUARDED_BY(mutex);  // the last of it

  // Set-id bits and capabilities (privileges.cc).
  uint64_t privileges_given GUARDED_BY(mutex) = 0;  // changes that may have set no_capability or no_set_id wrong
  // Among several hosts: the revision of the I record with which what was accepted here may be published. It has no
  // set-id bits then, or such as whoever wrote may leave (publish_items.cc).
  uint64_t judged_revision GUARDED_BY(mutex) = 0;
  void NoteJudged(uint64_t revision) REQUIRES_LOCK(mutex) { judged_revision = std::max(judged_revision, revision); }
  // Set-id bits that the kernel was told, and may still trust. Set with the lock held.
  std::atomic<uint32_t> told_set_id{0};
  // Threads whose exec was refused since it was last opened for writing and since set-id bits were last told.
  std::vector<uint32_t> refused_execs GUARDED_BY(mutex);
  bool name_removed GUARDED_BY(mutex) = false;  // since the mode was last set

  // Guarded by the table's shard.
  uint64_t lookup_count = 0;
  uint64_t hold_count = 0;  // open files, and the list of changed inodes

  std::atomic<bool> mapped{false};              // the kernel has read into its page cache
  std::atomic<bool> no_capability{false};       // it was seen to have no security.capability
  std::atomic<bool> no_set_id{false};           // it was seen to have no set-id bits
  std::atomic<uint64_t> published_revision{0};  // of the last record that this host published among other hosts
  std::atomic<uint64_t> directory{0};           // in which this host last saw its name; 0: not known
  // What this host's kernel is told with the number. It goes up when a directory is removed to the trash: what the
  // kernel knows of that is dead to it for good, and gives way to a new one once that is restored.
  std::atomic<uint64_t> generation{0};
  std::atomic<bool> made_without_name{false};  // it may have no name yet, and get one
  std::atomic<bool> in_trash{false};           // when it was last looked: what it has counts for no quota then
  std::atomic<bool> unlinked{false};           // set while an Operation is held
  std::atomic<unsigned> freeze_points{0};      // of DirtyFiles that it belongs to
  std::atomic<uint64_t> freed_bytes{0};        // of an unlinked one: what its removal lets a collection find
};

using InodePtr = std::shared_ptr<Inode>;

// Inodes by number. An inode stays as long as it is looked up or held. If it has no link when it goes, `on_orphan` is
// called.
class InodeTable {
 public:
  explicit InodeTable(std::function<void(InodePtr)> on_orphan) : on_orphan_(std::move(on_orphan)) {}

  // Goes up whenever the content of an inode leaves memory. Whoever has read a record and then finds no content
  // compares it, and reads again if it went up.
  std::atomic<uint64_t> contents_dropped{0};

  InodePtr Find(InodeId id);        // null when absent
  InodeId DirectoryOf(InodeId id);  // Inode::directory; 0: it is not known
  InodePtr AddLookup(InodeId id);   // makes it if absent
  InodePtr Hold(InodeId id);        // makes it if absent
  void Unhold(const InodePtr& inode);
  void Forget(InodeId id, uint64_t count);
  // The inode has no link left. If nobody holds it, on_orphan is called at once.
  void MarkUnlinked(InodeId id, uint64_t freed_bytes);
  // Nobody can reach an unlinked inode that is neither open nor known to the kernel.
  bool IsGone(const InodePtr& inode);
  void ForEach(const std::function<void(const InodePtr&)>& visit);
  // Those that are open or changed: few, where many are looked up.
  void ForEachHeld(const std::function<void(const InodePtr&)>& visit);

 private:
  struct Shard {
    Mutex mutex;
    std::unordered_map<InodeId, InodePtr> inodes GUARDED_BY(mutex);
    std::unordered_map<InodeId, InodePtr> held GUARDED_BY(mutex);  // of those, the ones with a hold_count
  };
  static constexpr size_t kShards = 16;
  Shard& ShardOf(InodeId id) { return shards_[id.value % kShards]; }
  // True when the inode was erased and is an orphan.
  bool EraseIfUnused(Shard& shard, const InodePtr& inode) REQUIRES_LOCK(shard.mutex);

  const std::function<void(InodePtr)> on_orphan_;
  std::array<Shard, kShards> shards_;
};

}  // namespace cairnfs::fs
