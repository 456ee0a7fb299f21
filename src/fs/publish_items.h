// PublishItems: files that are being published among other hosts, and what becomes of each. An item is prepared with
// the file's lock, sent with others in one transaction, and ends by one of Complete, Requeue, Fail and Drop.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fs/cluster_host.h"
#include "fs/dirty_files.h"

namespace cairnfs::fs {

struct PublishItem {
  InodePtr inode;
  std::optional<meta::FileRecord> record;  // nullopt: nothing was written, and the mark alone goes
  uint64_t base_revision = 0, session = 0;
  std::shared_ptr<std::atomic<uint64_t>> new_bytes;  // of the content, as Content::new_bytes
  uint64_t new_bytes_taken = 0;                      // of these, in the record
  std::optional<kv::KvWrite> usage;                  // goes with the record
  Durability level = Durability::kReplicated;
  std::optional<Kills> kills;           // what the bytes of the record take away; nullopt: it has no new ones
  uint64_t judged_revision = 0;         // with kSetIdToo: Inode::judged_revision
  bool marks = false, unmarks = false;  // this host's mark is put, or taken away
  std::string failure;                  // that the mark tells
  std::vector<meta::Mark> clears;       // dead marks that are taken away
  std::vector<store::ChunkPin> pins;
  std::vector<Digest> past_end;  // chunks that the record has past its end, whose pins stay with the content

  // Appends the chunks that the record may name and that the last record did not.
  void AddNamed(std::vector<Digest>& digests) const {
    digests.insert(digests.end(), past_end.begin(), past_end.end());
    for (const store::ChunkPin& pin : pins) digests.push_back(pin.digest());
  }
};

// How many of the items, which are not empty, go into one transaction: those of one session, within the limits.
size_t CountOfBatch(std::span<const PublishItem> items, const kv::KvLimits& limits);

// Ends the publish of the file, whose bytes can never be published: nothing in memory counts any more.
void DropUnpublished(Streams& streams, const InodePtr& inode, const Error& why) REQUIRES_LOCK(inode->mutex);

// All functions: the thread that runs the round.
class PublishItems {
 public:
  // All outlive it.
  PublishItems(ClusterHost& host, Streams& streams, DirtyFiles& files)
      : host_(host), streams_(streams), files_(files) {}

  // An error: the file is requeued. REQUIRES (unchecked): the content stays what it is until the record is published,
  // but for what is accepted meanwhile.
  Result<PublishItem> Prepare(const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // As if it had not been prepared.
  static void Withdraw(PublishItem& item, Content& content);
  // `epoch`: that of before the chunks of the items were synced.
  // Their chunks have their copies: it is known which were new.
  kv::Transaction TransactionOf(std::span<PublishItem> items, uint64_t epoch);
  static void NoteSent(const PublishItem& item) { Note(item, &SharedContent::is_sent, true); }
  static void NoteRefused(const PublishItem& item) { Note(item, &SharedContent::is_sent, false); }
  static void NoteInDoubt(const PublishItem& item) { Note(item, &SharedContent::is_in_doubt, true); }

  void Complete(PublishItem& item, uint64_t revision);
  // To the next round, after this error. kInterrupted is none: other files go first, and nobody is told.
  void Requeue(PublishItem& item, const Error& why);
  void RequeueAll(std::span<PublishItem> items, const Error& why);
  void RequeueUnprepared(const InodePtr& inode, const Error& why);
  // To the next round; others need not wait for it.
  void Fail(PublishItem& item, const Error& why);
  // Nobody may publish it any more. Bytes that were accepted under a later session stay.
  enum class Who { kEverybody, kWhoHasItOpen };  // who is to be told
  void Drop(const InodePtr& inode, uint64_t session, const Error& why, Who told = Who::kEverybody);
  // False when it was dropped since with its session; what there is by now was accepted under another one, and is for a
  // round of its own.
  static bool IsCurrent(const PublishItem& item, const Content& content);

  // Of a closed file that could not be published, to be told by its mark at the end of the round.
  void NoteFailure(const InodePtr& inode, const Error& why) REQUIRES_LOCK(inode->mutex);
  void NoteShortage(const InodePtr& inode, const Error& why) REQUIRES_LOCK(inode->mutex);
  std::vector<InodePtr> TakeFailed();

 private:
  static void Note(const PublishItem& item, bool SharedContent::*state, bool is_so);
  // Whether there is more to publish.
  bool CompleteContent(const InodePtr& inode, const PublishItem& item, uint64_t revision) REQUIRES_LOCK(inode->mutex);

  ClusterHost& host_;
  Streams& streams_;
  DirtyFiles& files_;
  uint64_t operations_ = 0;       // names transactions
  std::vector<InodePtr> failed_;  // by this round, and their marks do not tell it yet
};

}  // namespace cairnfs::fs
