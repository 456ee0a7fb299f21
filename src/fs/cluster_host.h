// ClusterHost: what this host knows of the others and asks them. The namespace is shared, so is the chunk store; all
// that is left are the sessions of the hosts, and inodes that somebody has open.
#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/cluster_chunk_store.h"
#include "cluster/epochs.h"
#include "cluster/membership.h"
#include "cluster/peers.h"
#include "fs/filesystem.h"
#include "fs/levels.h"
#include "fs/seals.h"
#include "fs/shared_content.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// kIo: what began under a session of this host's cannot be ended. `so` says what that means for the caller.
Error SessionLost(std::string_view so);
// kUnavailable: nothing can begin until there is a session again.
Error NoSession();
// kUnavailable: what this host has published of a file is not known while the store does not answer.
Error PublishInDoubt();

// Of a commit: it is not known whether it ran, or runs yet. Where the session is gone that does not matter.
bool IsInDoubt(const Result<uint64_t>& revision);

class ClusterHost {
 public:
  // `chunks` of the parts: what a round syncs. `durability`: where no directory says otherwise.
  ClusterHost(const FileSystem::ClusterParts& parts, kv::KvStore& kv, meta::Namespace& names, Durability durability);
  // `note` is called in BeginEpoch, before the epoch counts as begun. Set before the first round.
  void OnEpoch(std::function<void()> note) { on_epoch_ = std::move(note); }

  const std::string& self() const { return self_; }  // this node's id, as it stands in keys
  cluster::Membership& membership() { return parts_.membership; }
  cluster::Peers& peers() { return parts_.peers; }
  cluster::ClusterChunkStore& chunks() { return parts_.chunks; }
  Levels& levels() { return levels_; }
  const UnawaitedFiles& unawaited_files() const { return unawaited_files_; }
  // Makes what was put durable, at this level, but for the chunks that it returns, which cannot be read back
  // (ClusterChunkStore).
  using Unreadable = cluster::ClusterChunkStore::Unreadable;
  Result<Unreadable> SyncReadableChunks(const Context& context, Durability level);
  // The same for these chunks alone, ahead of others.
  Result<Unreadable> SyncOnly(const Context& context, Durability level, std::span<const Digest> chunks);
  // This host stops: from now on that waits for copies until `time` at the latest.
  void EndSyncsBy(Clock::time_point time) { syncs_end_.store(time); }
  using SizedChunk = cluster::ClusterChunkStore::Sized;

  // The session of this host, by the revision of its key; 0 between the loss of one and the next. What was changed
  // under an earlier one is never published.
  uint64_t session() const { return session_.load(std::memory_order_acquire); }
  void EndSession() { session_.store(0, std::memory_order_release); }
  bool AwaitSession(const Context& context);  // false: the context expired while there was none
  // As its transactions are refused: if it is this host's still, which takes leave of it soon.
  void EndSession(uint64_t session) { session_.compare_exchange_strong(session, 0); }
  Status BeginSession();  // that of the membership; the error of that
  // Of a file that was published at level `local`: their copies are still to be waited for
  // (ClusterChunkStore::NoteReferenced).
  void NoteReferenced(std::span<const store::ChunkPin> pins);
  // Changes when the store is known to have gone back to an older state.
  uint64_t store_state() const { return parts_.membership.stats().went_back_total; }
  // Compares in `transaction` that the session is the one at this revision.
  void AddSessionCompare(kv::Transaction& transaction, uint64_t session) const {
    transaction.IfRevision(session_key_, session);
  }

  // The epoch of the collection that this host has begun (docs/cluster/collection.md): the revision of its key. A
  // publish compares it, so that what it names was asked for in the present one. Read it before chunks are synced.
  uint64_t epoch() const { return epoch_.load(std::memory_order_acquire); }
  void AddEpochCompare(kv::Transaction& transaction, uint64_t epoch) const {
    transaction.IfRevision(cluster::Epochs::EpochKey(), epoch);
  }
  // Begins the present epoch, where that is not done: whatever is pinned is asked for anew, and open files are compared
  // with the store before they are read again.
  Status BeginEpoch(const Context& context) EXCLUDES_LOCK(epoch_mutex_);
  // Before a session that follows a lost one: others may have collected meanwhile.
  void ForgetEpoch() EXCLUDES_LOCK(epoch_mutex_);
  cluster::Epochs& epochs() { return epochs_; }

  // Takes over which marks the file has of other sessions. `state` was read with the marks.
  void NoteMarks(const meta::FileState& state, SharedContent& shared) const;
  bool IsOwn(const meta::Mark& mark) const { return mark.node == self_; }
  // Whether the session lives that the mark is of: what the view does not know yet lives.
  bool Lives(const meta::Mark& mark) const;
  // Of a mark of another host: waits until that answers, or its session has ended, or outlived the lease for so long
  // that it is taken for alive (three leases and five seconds). kInterrupted: the context expired first.
  Status AwaitWord(const Context& context, const meta::Mark& mark);
  // Adds to the transaction a compare that the session is there which the mark is of.
  static void AddSessionCompare(kv::Transaction& transaction, const meta::Mark& mark);
  // Adds to the transaction the put of this host's mark of the file, under this session.
  void AddMark(kv::Transaction& transaction, InodeId inode, uint64_t session, const std::string& failure = {}) const;
  std::string NameOf(std::string_view node) const;  // for people
  bool IsFirstUp() const;                           // cluster::View::FirstUp

  // Whether this host is the one that applies policies. It becomes it where none is, until its session ends. kStale,
  // and other errors of the session and the store.
  Result<bool> TakeRetention(const Context& context);
  Result<bool> LeaveRetention(const Context& context);  // false: it is not, or no longer

  static constexpr size_t kAskedAtOnce = 1024;  // files; many cost little more than one
  // Of each: whether a process on some other host that is up has it open. kUnavailable: one does not answer.
  Result<std::vector<bool>> HeldElsewhere(const Context& context, const std::vector<InodeId>& inodes);
  // The directories in which processes on other hosts that are up have files open; some more than once. kUnavailable:
  // one of them does not say; names it.
  Result<std::vector<InodeId>> OpenElsewhere(const Context& context);
  // The files that processes of other hosts have open for writing. kUnavailable: a host does not say.
  Result<std::vector<Seals::Writer>> WritersElsewhere(const Context& context, cluster::OpenWhat what);

 private:
  using TakeOpen = std::function<void(const cluster::NodeId& node, InodeId inode)>;
  // Asks again while the host has a session. None of one that has none any more.
  Result<std::vector<InodeId>> AskOne(const Context& context, const cluster::NodeId& node, cluster::OpenWhat what);
  Status AskWhatIsOpen(const Context& context, cluster::OpenWhat what, const TakeOpen& take);
  Result<std::vector<cluster::NodeId>> OthersWithSession(const Context& context);  // as the store has it now

  const FileSystem::ClusterParts parts_;
  kv::KvStore& kv_;
  Levels levels_;
  const UnawaitedFiles unawaited_files_;
  const std::string self_;
  std::string session_key_;  // constant once a session was begun: the same for all of them
  std::atomic<uint64_t> session_{0};
  std::atomic<Clock::time_point> syncs_end_{Clock::time_point::max()};
  cluster::Epochs epochs_;
  std::function<void()> on_epoch_;
  Mutex epoch_mutex_;  // held while an epoch is begun
  std::atomic<uint64_t> epoch_{0};
  Mutex mutex_;
  CondVar session_begun_;
};

}  // namespace cairnfs::fs
