// SharedPublisher: the rounds of a filesystem among other hosts. Names need no round: each of their transactions is
// durable and visible when it returns. What was closed, or is asked for, is drained, its chunks are synced, and its
// records are published, several to a transaction.
//
// A transaction compares for each file the record that its content is based on, that the inode is there, and the
// session under which the bytes were accepted. When another host has published the file meanwhile, its record is taken
// over with this host's own ranges laid over it, and the publish is tried again. Bytes of a session that is gone are
// dropped: nobody may publish them.
//
// Where the item has bytes that end set-id bits or capabilities it compares that the file has none, or those alone that
// they leave. Where another host gave it some meanwhile, they are taken away, and the publish is tried again.
//
// It also compares the epoch of the collection that this host has begun. Where there is a newer one, that is begun,
// what the records name is asked for anew, and the publish is tried again (docs/cluster/collection.md).
//
// A file whose bytes were closed and that no mark tells of yet is marked before its chunks are waited for; the publish
// takes the mark away. Where it fails the mark tells why.
#pragma once

#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "fs/marks.h"
#include "fs/publish_items.h"
#include "fs/publisher.h"

namespace cairnfs::fs {

class SharedPublisher final : public Publisher {
 public:
  struct Parts {  // all outlive it
    kv::KvStore& kv;
    meta::Namespace& names;
    store::ChunkStore& chunks;
    ClusterHost& host;
    Streams& streams;
    InodeTable& table;
    DirtyFiles& files;
    Marks& marks;
  };
  explicit SharedPublisher(const Parts& parts) : at_(parts), items_(parts.host, parts.streams, parts.files) {}

  void BeginOperation() override {}
  void EndOperation() override {}
  Admission Admit(NameChange) const override { return Admission::kAtOnce; }
  bool AdmitsWhileFailing(NameChange) const override { return true; }
  bool HasUnflushedNames() const override { return false; }
  uint64_t UnwrittenBytes() const override { return 0; }  // they go where the names are kept, and are judged there
  bool MayRunOnCaller() const override { return false; }  // it waits for other hosts
  bool IsDiskFailure(const Error&) const override { return false; }
  bool TakesAnyFiles() const override { return true; }
  bool is_open() const override { return is_open_; }

  Status ResolveDoubt() override;
  void Open(const DirtyFiles::Selection& selection) override;
  Status Finish(const Round& round) override;
  void Stop() override {}

 private:
  // The publish of a file ends by what becomes of the transaction that it is in:
  //   it ran                                Complete
  //   a compare failed                      Reconcile, and tried alone in the same round
  //   a key cannot be read                  the same; where it was alone Fail
  //   the records have no room              each is tried alone; where it was alone Fail
  //   the session is gone                   Drop: nobody may publish it any more
  //   refused for another reason            Requeue
  //   it may have run, or may run yet       in_doubt_; ResolveDoubt finds out before the next round, and what is
  //                                         not sent by then is requeued
  // Until it is known what became of it nothing of its files may be published, which would be laid over what others
  // wrote after these.
  struct InDoubt {
    kv::Transaction transaction;
    uint64_t session = 0;
    std::vector<PublishItem> items;
  };
  Status MarkClosed();
  void TellFailures();
  void Prepare(const InodePtr& inode, std::vector<PublishItem>& items);
  // Where the base may have been replaced and its pages collected: before they are needed. What fails here fails when
  // the file is published.
  void CompareBase(const InodePtr& inode);
  Status Publish(const Context& context, std::vector<PublishItem> items);
  Status PublishAt(const Context& context, Durability level, std::vector<PublishItem> items);
  // All chunks that were put until now, but for a round that goes first: then those of the items.
  Result<ClusterHost::Unreadable> SyncChunks(const Context& context, Durability level,
                                             const std::vector<PublishItem>& items);
  void FailUnreadable(const cluster::ClusterChunkStore::Unreadable& unreadable, std::vector<PublishItem>& items);
  // Publishes those that nothing stands against; appends to `conflicts` those that are to be tried again. Ends with the
  // first transaction that is in doubt. The first error.
  enum class Batching { kFull, kOneByOne };
  Status CommitBatches(std::span<PublishItem> items, Batching batching, std::vector<PublishItem>& conflicts);
  // Once it is known what became of the transaction.
  void Conclude(std::vector<PublishItem>& items, const Result<uint64_t>& revision, std::vector<PublishItem>& conflicts);
  // After a conflict: takes away what the bytes of the item end and another host gave to the file.
  Status EndPrivileges(const PublishItem& item, const meta::FileState& state);
  // After a conflict: takes over what another host published. nullopt: nothing is left to publish, or it cannot be,
  // which is noted.
  Result<std::optional<PublishItem>> Reconcile(PublishItem item);

  const Parts at_;

  PublishItems items_;
  uint64_t epoch_ = 0;                // that was begun before the chunks of this attempt were synced
  std::optional<InDoubt> in_doubt_;   // no round goes on before it is resolved
  std::atomic<bool> is_open_{false};  // set by the thread that runs the round
};

}  // namespace cairnfs::fs
