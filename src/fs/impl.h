// The inside of FileSystem, shared by its source files: the parts, the tables, and the helpers that more than one
// theme needs. The functions are grouped by theme: names.cc, files.cc, content.cc, reading.cc, ranges.cc,
// room.cc, directories.cc, xattrs.cc, permissions.cc, commit.cc, shared_files.cc, shared_changes.cc, sessions.cc,
// status.cc; filesystem.cc begins and ends it.
#pragma once

#include <deque>
#include <set>
#include <span>
#include <unordered_map>

#include "base/clock.h"
#include "base/task_queue.h"
#include "fs/blocking_calls.h"
#include "fs/checker.h"
#include "fs/cluster_host.h"
#include "fs/collector.h"
#include "fs/covering.h"
#include "fs/error_names.h"
#include "fs/filesystem.h"
#include "fs/inode.h"
#include "fs/metadata_room.h"
#include "fs/orphans.h"
#include "fs/processes.h"
#include "fs/record_totals.h"
#include "fs/streams.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

// An open file.
struct Handle {
  InodePtr inode;
  OpenFlags flags;
  uint64_t session = 0;      // of the host when it was opened
  uint64_t store_state = 0;  // and ClusterHost's

  Mutex mutex;
  uint64_t error_seen GUARDED_BY(mutex) = 0;
  bool atime_checked GUARDED_BY(mutex) = false;
  uint64_t next_offset GUARDED_BY(mutex) = 0;     // where the last read ended
  uint64_t read_ahead_end GUARDED_BY(mutex) = 0;  // up to where chunks were asked for
  uint64_t read_ahead_window GUARDED_BY(mutex) = 0;
  // Who wrote through it: their closes wait. 0: some process that is not known. Among other hosts.
  std::set<pid_t> writers GUARDED_BY(mutex);
  std::set<uint32_t> writer_threads GUARDED_BY(mutex);
};
using HandlePtr = std::shared_ptr<Handle>;

struct DirectoryHandle {
  InodeId inode;
  Mutex mutex;
  std::shared_ptr<const DirectoryListing> listing GUARDED_BY(mutex);  // null: not read yet
};

// Things by id, in shards.
template <typename T>
class IdTable {
 public:
  HandleId Add(std::shared_ptr<T> item) {
    HandleId id = next_.fetch_add(1);
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    shard.items.emplace(id, std::move(item));
    return id;
  }
  std::shared_ptr<T> Find(HandleId id) {
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    auto found = shard.items.find(id);
    return found == shard.items.end() ? nullptr : found->second;
  }
  std::shared_ptr<T> Take(HandleId id) {
    Shard& shard = shards_[id % kShards];
    MutexLock lock(shard.mutex);
    auto found = shard.items.find(id);
    if (found == shard.items.end()) return nullptr;
    std::shared_ptr<T> item = std::move(found->second);
    shard.items.erase(found);
    return item;
  }

 private:
  static constexpr size_t kShards = 16;
  struct Shard {
    Mutex mutex;
    std::unordered_map<HandleId, std::shared_ptr<T>> items GUARDED_BY(mutex);
  };
  std::atomic<HandleId> next_{1};
  std::array<Shard, kShards> shards_;
};

class FileSystem::Impl {
 public:
  Impl(const Parts& the_parts, const FsOptions& the_options, uint64_t owed_bytes);
  ~Impl();
  void End();  // ends all threads but the rounds'; waits for the reads in flight

  // --- content (content.cc) ---
  // Reads the inode's record if its content is not in memory. False when that would have to wait for chunks and
  // `may_wait` is not set.
  Result<bool> LoadContent(const InodePtr& inode, bool may_wait) REQUIRES_LOCK(inode->mutex);
  // Once nobody has the file open, and its record tells all there is to know.
  void DropContentIfUnused(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void Touch(Content& content);                                         // mtime and ctime are now
  void MarkChanged(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);  // REQUIRES: an Operation is held
  // Lays what is in memory over attributes from the namespace.
  bool Overlay(meta::Attr& attr);  // false: there is nothing in memory
  // Attributes from the namespace with what is in memory laid over them, as of one moment.
  Result<meta::Attr> ReadAttr(const std::function<Result<meta::Attr>()>& read);
  // Makes a change that is no write to a file's content, once nothing of it is in flight or owed to a round; `change`
  // is called with the inode's lock and an Operation held, and may wait for chunks.
  // `empties`: the change leaves no byte of the old content, which need not be readable. On one host.
  void ChangeWhenQuiet(const InodePtr& inode, std::function<Status(Content&)> change, Done<void> done,
                       bool empties = false);
  // The same, blocking. `session`: the change fails unless this host's session with the cluster is that one still; 0 on
  // one host.
  Status ChangeQuietly(const InodePtr& inode, const std::function<Status(Content&)>& change, bool empties,
                       uint64_t session);
  // One attempt: nullopt when it is not quiet.
  std::optional<Status> TryChange(const InodePtr& inode, const std::function<Status(Content&)>& change, bool may_wait,
                                  bool empties, uint64_t session);
  Status Truncate(const InodePtr& inode, Content& content, uint64_t size) REQUIRES_LOCK(inode->mutex);
  // Makes [offset, offset + length) a hole.
  Status Punch(const InodePtr& inode, Content& content, uint64_t offset, uint64_t length) REQUIRES_LOCK(inode->mutex);
  // How many bytes of the range the file has neither stored nor accepted.
  Result<uint64_t> BytesMissingIn(Content& content, uint64_t begin, uint64_t end);
  void LoadPages(const InodePtr& inode, uint64_t offset, uint64_t length);
  Result<uint64_t> FindSought(const InodePtr& inode, uint64_t offset, Seek what);
  // The error that this handle has not been told yet.
  static Status TakeError(const InodePtr& inode, Handle& handle) REQUIRES_LOCK(inode->mutex);
  static Status TakeErrorLocked(Handle& handle);  // takes the inode's lock itself
  HandleId AddHandle(const InodePtr& inode, const OpenFlags& flags) REQUIRES_LOCK(inode->mutex);
  void OnPressure(std::chrono::milliseconds without_release);
  void GiveBackBuffers(std::chrono::milliseconds without_release);

  // --- set-id bits and file capabilities (set_id.cc) ---
  static uint32_t WithoutSetId(const meta::Attr& attr, const Caller& caller);  // permission bits as its write leaves it
  // Takes away what a change of the content by the caller ends: file capabilities, whoever it is, and set-id bits.
  // Before the change: one that could not be followed by this is refused. Asks the store where MayHavePrivileges.
  Status KillPrivileges(const InodePtr& inode, bool kills_set_id, const Caller& caller);
  static bool MayHavePrivileges(const InodePtr& inode, bool kills_set_id);
  Status KillSetId(const InodePtr& inode, const Caller& caller);
  Status KillCapability(const InodePtr& inode);
  void NotePrivilegesGiven(InodeId id);  // after capabilities were set
  void NoteModeSet(InodeId id);          // after a chmod
  static uint64_t PrivilegesGiven(const InodePtr& inode);
  // The kernel may believe in set-id bits that the file has no more.
  Result<bool> MayBelieveOldSetId(const InodePtr& inode);
  Status CheckMayExecute(InodeId id, const Caller& caller);  // errors as of Open
  void NoteNameRemoved(const meta::Attr& attr);              // before the answer goes out

  // --- writing (files.cc) ---
  bool MarksPages(const InodePtr& inode);
  void AnswerOnceMarked(const InodePtr& inode, std::function<void()> answer);
  // True: the caller is to call streams->BeginCut.
  Result<bool> AcceptWrite(const WriteRequest& request, const HandlePtr& handle, const InodePtr& inode);
  // Bytes of the file were accepted and the disk failed before they were durable: not silent at their close. One host.
  Status CheckDisk(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void LosePages(const WriteRequest& request, const InodePtr& inode, const Error& why);
  // Where an append goes. Among other hosts.
  uint64_t PlaceAppend(const InodePtr& inode, const WriteRequest& request) REQUIRES_LOCK(inode->mutex);
  bool AcceptPages(const InodePtr& inode, uint64_t offset, const io::Slice& data) REQUIRES_LOCK(inode->mutex);
  void ReserveAndWrite(WriteRequest request, const HandlePtr& handle, const InodePtr& inode, Done<size_t> done);
  void NoteUnderPages(const InodePtr& inode, uint64_t begin, uint64_t end) REQUIRES_LOCK(inode->mutex);
  void ForgetOldWrites(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void FinishWrite(const WriteRequest& request, const HandlePtr& handle, const InodePtr& inode, Done<size_t> done);
  void FinishPlainWrite(const WriteRequest& request, const HandlePtr& handle, const InodePtr& inode, Done<size_t> done);
  void GiveUpWrite(const WriteRequest& request, const InodePtr& inode, const Error& why, const Done<size_t>& done);

  // --- room (room.cc); all may take seconds near a full disk ---
  Status ReserveOrWait(uint64_t bytes);
  void CollectAndWait();
  // Tries once more to store accepted bytes that found no room. Why they wait on, if it is known that they do.
  std::optional<Error> RetryWithoutRoom();
  void ProbeRoom();  // for WhyNoBufferComes

  // --- reading (reading.cc) ---
  struct ReadPlan;
  void ReadForExec(
      const std::shared_ptr<ReadPlan>& plan);  // kBusy: set-id bits are gone that the kernel may believe in
  void StartRead(const std::shared_ptr<ReadPlan>& plan);
  // What is to be done first for the read, or, when it is kFetch, puts its parts into the plan.
  enum class ReadStep { kFetch, kSeeOthers, kLoad, kFailLost };
  ReadStep PlanRead(ReadPlan& plan);
  void FetchParts(const std::shared_ptr<ReadPlan>& plan);
  void FinishRead(const std::shared_ptr<ReadPlan>& plan);   // every part is there, or failed
  void LoadForRead(const std::shared_ptr<ReadPlan>& plan);  // blocking
  void FailRead(const std::shared_ptr<ReadPlan>& plan, Error error);
  void FailLoad(const std::shared_ptr<ReadPlan>& plan, const Error& error);
  // Calls `done`, which must not block, once all chunks could be read: from now on they are at hand. Waits for hosts
  // that do not answer, without a lock or a thread; kInterrupted once the caller is being killed.
  void AwaitChunks(const std::vector<Digest>& digests, const Caller& caller, Done<void> done);
  // The waits of one request for hosts that do not answer. One that answers may lack what came meanwhile, so there may
  // be several: not too many, and not for ever.
  class HostWaits {
   public:
    bool MayWait();

   private:
    unsigned count_ = 0;
    std::optional<Clock::time_point> since_;
  };
  void ReadAhead(Handle& handle, const InodePtr& inode, uint64_t offset, size_t size);
  void PrefetchRange(const InodePtr& inode, uint64_t from, uint64_t to);
  void CheckAtime(Handle& handle);

  // --- ranges (ranges.cc) ---
  // For extents that are about to be named by `to`, and pinned.
  Status CoverCopies(const InodePtr& from, const InodePtr& to, const std::vector<Extent>& extents);
  Result<size_t> CopyNow(const InodePtr& from, uint64_t from_offset, const InodePtr& to, uint64_t to_offset,
                         uint64_t length, uint64_t session);
  Result<std::vector<Extent>> StoredExtents(const InodePtr& inode, uint64_t offset, uint64_t& length,
                                            std::vector<store::ChunkPin>* pins);

  // --- names (names.cc) ---
  Result<meta::Attr> LinkNow(InodeId inode, InodeId new_parent, std::string_view new_name);
  Status PrepareForNewName(InodeId id);
  Status PrepareForNewNames(std::span<const InodeId> files);
  bool MayFindNoRoom(std::span<const InodeId> files);
  void RenameFile(const meta::RenameParams& params, const std::vector<InodeId>& files, const Caller& caller,
                  Done<void> done);
  void RenameWhenAdmitted(const meta::RenameParams& params, const std::vector<InodeId>& files, Done<void> done);
  void RenameFileDurably(const meta::RenameParams& params, const std::vector<InodeId>& files, const Caller& caller,
                         Done<void> done);
  void RenameDirectory(const meta::RenameParams& params, const Caller& caller, Done<void> done);
  Result<bool> CommitRename(const meta::RenameParams& params);  // whether it replaced something
  Status FinishRename(const meta::RenameParams& params, bool replaced, const Status& durable);
  void NoteRemoved(const meta::Attr& attr);
  Result<meta::Attr> LookUpInode(InodeId id);  // adds one to its lookup count; kNotFound without a link, too
  void NoteFreed(uint64_t bytes);              // that a collection may find
  // Files with bytes that were accepted and could not be stored, until they are written again or removed.
  void NoteLost(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void ForgetLostInode(InodeId id);
  std::set<InodeId> LostInodes();
  // Paths below `directory` of those of the inodes that lie there. Reads the names of all directories below it.
  Result<std::map<InodeId, std::string>> FindNames(InodeId directory, std::set<InodeId> inodes);
  Status CheckNothingLost(const meta::RenameParams& params);  // kIo names a file below the source

  // What of the request is in the inode's record: all but the size and a regular file's time of change.
  static meta::AttrChanges ChangesOf(const SetAttrRequest& request, const meta::Attr& before, Timestamp now,
                                     const Caller& caller);

  // A sync point whose caller may give up; kUnavailable when it took too long.
  void RequestUnlessCancelled(const Caller& caller, Done<void> done, SyncRounds::Scope scope = SyncRounds::Scope::kAll);
  // `done` is called once: with what the returned function is given, with kInterrupted once the caller is being killed,
  // or at the deadline with what `late` says then, whichever comes first.
  SyncRounds::Answer UnlessCancelled(const Caller& caller, Clock::time_point deadline, std::function<Error()> late,
                                     Done<void> done);
  SyncRounds::Answer UnlessKilled(const Caller& caller, Done<void> done);  // without a deadline
  Error TookTooLong() const;                                               // the sync point; what it waits for
  void WatchWaits();
  // xattrs.cc
  bool IsPending(InodeId id, uint32_t mode);
  Result<std::string> DurabilityOf(InodeId id);
  struct ChunkTotals {
    uint64_t count = 0, bytes = 0;
  };
  // Of the distinct chunks of a file, those of its recipe among them. Waits.
  Result<ChunkTotals> ChunksOf(const InodePtr& inode);
  Result<std::string> LevelOf(InodeId id);
  Status SetLevel(InodeId id, std::optional<std::string_view> name);  // nullopt: takes it away
  // For whom the chunks of a user's files are stored.
  chunking::Owner OwnerOf(uint32_t uid) const { return {parts.dedup == meta::Dedup::kOwner ? uid : 0}; }
  Result<chunking::Owner> FindOwner(InodeId id);  // content.cc
  void NoteOwner(InodeId id, uint32_t uid);
  void CountInodes();
  uint64_t UnrecordedBytes(uint64_t& dirty_bytes);  // status.cc
  void CountShared();

  // --- among other hosts; `host` is null on one host. What may block is for threads that may wait. ---
  // shared_files.cc
  std::unique_ptr<Content> MakeContent(chunking::Owner owner) const;
  // Whether what waits for the answer is to give up: nobody waits for it any more, or the server stops and the store
  // may be gone for good.
  bool GivesUpOn(const Content& content) const;
  // Whether the state may hold what this host has sent to be published, with or without what others wrote after it.
  bool AwaitsAnswer(const InodePtr& inode, const meta::FileState& state) const REQUIRES_LOCK(inode->mutex);
  // The state, or a later one that can be told from what this host publishes; waits for the answer.
  Result<meta::FileState> AfterAnswer(const InodePtr& inode, const Caller& caller, meta::Namespace::WithMarks marks,
                                      Result<meta::FileState> state);
  // Brings the content in memory to what the store has, with this host's changes laid over it. False when that would
  // have to wait for the answer to a publish, and `may_wait` is not set.
  struct RefreshOptions {
    bool may_wait = false;
    bool writes = false;  // marks of the file are read too
  };
  Result<bool> Refresh(const InodePtr& inode, const Caller& caller, RefreshOptions how);
  Status Adopt(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex);
  Status LoadShared(const InodePtr& inode, const meta::FileState& state) REQUIRES_LOCK(inode->mutex);
  bool OverlayShared(meta::Attr& attr);  // false: older than what this host has published, read it again
  void ForgetTruncation(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void OpenShared(InodeId id, const OpenFlags& flags, Done<HandleId> done, const Caller& caller);
  struct Opening {
    InodePtr inode;
    Caller caller;
    bool writes = false;
  };
  void LoadForOpen(const Opening& opening, HostWaits waits, Done<void> done);
  // As for who opens the file now: what others have published is in the content. On another thread.
  void SeeOthers(const InodePtr& inode, const Caller& caller, Done<void> done);
  // The same where something was noticed of them since; else at once.
  void WhenCurrent(const InodePtr& inode, const Caller& caller, Done<void> done);
  // Whether others have published what the content has not.
  bool IsBehind(const InodePtr& inode, uint64_t revision) REQUIRES_LOCK(inode->mutex);
  // For an open file that is read: takes over, beside the reads and now and then, what others have published. Reads do
  // not wait for that.
  void LookAgain(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  bool AdoptPublished(const InodePtr& inode, const meta::FileState& state);  // whether there was anything
  void NoteEnd(const InodePtr& inode, uint64_t before, uint64_t now) REQUIRES_LOCK(inode->mutex);
  // Of those that loading a file begins with, the next that cannot be read as they are.
  std::vector<Digest> PagesToOpen(const meta::FileState& state);
  struct ChangeKind {
    bool empties = false;    // as ChangeWhenQuiet
    bool removes = false;    // bytes: what was closed before is durable first
    bool publishes = false;  // others see it once the answer is given
    uint64_t session = 0;    // of the open file that it goes through; 0: through none, and the host's is taken
  };
  struct SharedChange {
    InodePtr inode;
    std::function<Status(Content&)> change;
    ChangeKind kind;
    Caller caller;
    uint64_t session = 0;
  };
  // shared_changes.cc
  void ChangeShared(const InodePtr& inode, std::function<Status(Content&)> change, Done<void> done,
                    const ChangeKind& kind, const Caller& caller);
  // One attempt, on what others have made of the file: nullopt when it would have to wait for the answer to a publish,
  // or for a round, and `may_wait` is not set.
  std::optional<Status> ChangeCurrent(const SharedChange& one, bool may_wait);
  void FinishChange(const SharedChange& one, Status changed, Done<void> done);
  // Who closes a descriptor: each dup, fork and exec sends a close.
  enum class Closer {
    kOther,         // did not write through it, and who did is still there
    kWriter,        // waits for the publish; also who is left once those who wrote are gone
    kKilledWriter,  // ends by a signal, and does not wait
  };
  static Closer JudgeCloser(Handle& handle, const Caller& caller);
  // A call on the file itself asks for all of it: its publish takes the mark away. A sync point of another does not.
  static void NoteAskedFor(const InodePtr& inode);
  void AskForMarked();  // at a stop: of all files, whoever has them open
  static void NoteWriter(Handle& handle, const Caller& caller);
  // Puts this host's mark of a file that is changed. Waits for the store.
  Status MarkUnpublished(const InodePtr& inode);
  // Of a file that was to be published by a round that ended so; the session under which it was written.
  Status CheckOutcome(const InodePtr& inode, uint64_t session, Status round);
  // After a round for what is closed: why the file is not published, if so.
  Status CheckPublished(const InodePtr& inode);
  // Whether all of the file is published at level `local`: what other files wait for is no matter then.
  bool IsDurableHere(const InodePtr& inode) const;
  // After a sync point: what the round that made it did not make durable of this file.
  Status CheckSynced(Handle& handle) const;
  Status CheckSession(const Handle& handle) const;  // kIo: the one that it was opened under is lost
  // Waits for a session of this host's, if there is none; no longer than who asks has patience (kv::Patience).
  Status AwaitSession() const;
  // Whether another host was told that this one has the deleted file not open, and so may not open it.
  bool IsRefused(InodeId id);
  // kIo: the store went back since it was opened, and the inode's number may be another file's now.
  Status CheckSameStore(const Handle& handle) const;
  Status CheckSameSession(uint64_t session) const;  // kIo: it is not this one any more
  // Once what was closed before is durable, or the caller is being killed: on a thread that may wait, as PostFor.
  void AfterClosed(const Caller& caller, Done<void> then);
  // `task` on a thread that may wait for other hosts, for no longer than until the caller is being killed; then
  // `refused` is told where it has not begun.
  void PostFor(const Caller& caller, std::function<void()> task, Done<void> refused);
  // The same for what may wait for copies, for the answer to a publish, or for a round. On one host for what waits for
  // a round.
  void PostToWait(const Caller& caller, std::function<void()> task, Done<void> refused);
  // commit.cc
  void RenameShared(const meta::RenameParams& names, const Caller& caller, Done<void> done);
  void CommitShared(const meta::RenameParams& params, const Caller& caller, const std::vector<meta::Attr>& sources,
                    uint64_t session, Done<void> done);
  // For no longer than a commit waits, and until the caller is being killed or the server stops.
  Covering CoveringFor(const Caller& caller);
  // Which of the inodes lie below the sources, or are among them: also of those with more than one name.
  Result<std::set<InodeId>> LyingBelow(const std::vector<meta::Attr>& sources, const std::vector<InodeId>& inodes);
  // A sentence for each file below them, or of them, whose bytes some host has lost or failed to publish.
  Result<std::vector<std::string>> FindUnpublished(const std::vector<meta::Attr>& sources);
  Status CheckNoneLeftBehind();               // status.cc: the error of a file of this host that could not be published
  Status CheckPublishedBelow(InodeId inode);  // kIo: what FindUnpublished says
  // For the log, the status and the rank gate. Returns the causes in one line.
  std::string NoteFailedCommit(const meta::RenameParams& params, std::vector<std::string> causes);
  // Of a rename that was refused for lack of copies: a sentence for each file of this host below the sources, or of
  // them, that is not published and lacks some. Few of many; none where that cannot be found out, or for other reasons.
  std::vector<std::string> LackingCopies(const Error& why, const std::vector<meta::Attr>& sources);
  // Ends a rename that waited in vain for what is to be durable before: says why, to the caller and to who asks later;
  // to the latter also of which files.
  void RefuseRename(const meta::RenameParams& params, const Error& why, const Done<void>& done,
                    const std::vector<std::string>& files = {});
  Result<std::string> DurabilityShared(InodeId id);
  // sessions.cc
  Status StartShared();
  Status StartSession();
  void StopShared();
  void LoseSession();
  class Answers;  // to other hosts
  std::vector<bool> HoldOrphans(const std::vector<InodeId>& inodes);

  Parts parts;
  FsOptions options;  // as it was started with
  std::atomic<bool> read_only, update_atime;
  // Declared before the threads that use them; destroyed after.
  InodeTable table;
  IdTable<Handle> handles;
  IdTable<DirectoryHandle> directories;
  RecordTotals record_totals;
  std::stop_source stop;  // of what goes on by itself
  std::atomic<uint64_t> write_bytes_total{0}, read_bytes_total{0}, open_files{0};
  std::atomic<int64_t> inode_count{0};             // exact once CountInodes is through
  std::atomic<int64_t> vain_collection_ms{-1000};  // steady clock: when a collection last made too little room
  // How often something was freed; and before that collection.
  std::atomic<uint64_t> free_count{0}, free_count_at_vain_collection{0};
  // Accepted bytes found no room when they were last tried.
  std::atomic<bool> found_no_room{false};
  std::atomic<Clock::time_point> no_room_at{};  // the last of them
  struct RoomProbe {
    Mutex mutex;
    bool is_running GUARDED_BY(mutex) = false;
    std::optional<Error> why GUARDED_BY(mutex);  // what the last one found
    uint64_t free_count GUARDED_BY(mutex) = 0;   // before it
    Clock::time_point began_at GUARDED_BY(mutex), ended_at GUARDED_BY(mutex);
  };
  RoomProbe room_probe;
  std::atomic<uint64_t> reads_running{0};  // until the last thread has let go of them
  std::atomic<bool> pressure_posted{false};
  std::atomic<bool> any_set_id_told{false};  // some answer to the kernel told set-id bits of a file
  std::atomic<unsigned> looks_under_way{0};  // LookAgain
  std::atomic<std::chrono::milliseconds> pressure_without_release{};  // the longest told since the last pass

  Mutex lost_mutex;  // taken after an inode's
  std::set<InodeId> lost_inodes GUARDED_BY(lost_mutex);

  struct Wait {
    // Held while `cancelled` is asked, so that the request, which ends with the answer, is there as long.
    Mutex mutex;
    bool answered GUARDED_BY(mutex) = false;
    std::function<bool()> cancelled;
    Clock::time_point deadline;
    std::function<Error()> late;
    Done<void> done;
  };
  Mutex waits_mutex;
  CondVar waits_wake;
  std::vector<std::shared_ptr<Wait>> waits GUARDED_BY(waits_mutex);
  bool waits_stopping GUARDED_BY(waits_mutex) = false;
  bool waits_watched GUARDED_BY(waits_mutex) = false;  // the watcher looks at them soon without being woken

  struct SessionGuard {
    Mutex mutex;  // held while a loss is worked on
    Impl* impl GUARDED_BY(mutex) = nullptr;
  };
  std::shared_ptr<SessionGuard> session_guard;
  Mutex failed_commits_mutex;
  std::deque<CommitFailure> failed_commits GUARDED_BY(failed_commits_mutex);
  std::atomic<uint64_t> shared_bytes{0};       // of all records, as of the last count
  std::atomic<int64_t> shared_counted_ms{-1};  // steady clock: when that began; -1: never

  std::unique_ptr<ClusterHost> host;
  // Operations that wait for the shared store. What may take longer, because it waits for a round, is for round_waits:
  // however much of that there is, the others go on. Rounds have a thread of their own.
  std::unique_ptr<BlockingCalls> blocking;
  std::unique_ptr<BlockingCalls> round_waits;  // changes, copies and renames, which wait for rounds too
  std::unique_ptr<TaskQueue> workers;          // cut, hash, store
  std::unique_ptr<TaskQueue> waiters;          // operations that wait for workers, chunks or rounds
  std::unique_ptr<MetadataRoom> metadata_room;
  std::unique_ptr<TaskQueue> space_waiters;  // writes that wait for space: those that need none pass them by
  std::unique_ptr<ErrorNames> error_names;
  std::atomic<bool> waits_ended{false};  // the server stops: what may never come is not waited for
  std::unique_ptr<Streams> streams;
  std::unique_ptr<SyncRounds> rounds;
  std::unique_ptr<Collector> collector;
  std::unique_ptr<Checker> checker;
  std::unique_ptr<Orphans> orphans;
  std::unique_ptr<cluster::PeerHandler> answers;
  std::thread wait_watcher;
};

}  // namespace cairnfs::fs
