#include "fs/publish_items.h"

#include <algorithm>
#include <iterator>
#include <unordered_set>
#include <utility>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kOperationsOfFile = 5;      // compares and writes of one file, beside dead marks and its quota
constexpr size_t kOperationsOfDeadMark = 2;  // of each
constexpr size_t kBatchBytesMax = 512 * kKiB;

// What a record has past its end nobody else sees, and whoever publishes next leaves it out: it stays this host's own,
// and keeps its pins.
void KeepPastEnd(PublishItem& item, Content& content) {
  const uint64_t record_size = item.record->size;
  if (record_size >= content.size) return;
  SharedContent& shared = content.shared();
  std::unordered_set<Digest, DigestHash> kept;
  content.extents.ForEach(record_size, content.size - record_size, [&](const Extent& extent) {
    shared.own.ranges.Add(extent.offset, extent.end());
    kept.insert(extent.digest);
  });
  const auto is_published = [&](const store::ChunkPin& pin) { return !kept.contains(pin.digest()); };
  const auto past_end = std::stable_partition(item.pins.begin(), item.pins.end(), is_published);
  content.pins.insert(content.pins.end(), std::make_move_iterator(past_end), std::make_move_iterator(item.pins.end()));
  item.pins.erase(past_end, item.pins.end());
  item.past_end.assign(kept.begin(), kept.end());
  shared.publishing.ranges.Remove(shared.own.ranges);
  shared.own.size_min = content.size;
}

}  // namespace

size_t CountOfBatch(std::span<const PublishItem> items, const kv::KvLimits& limits) {
  const size_t bytes_max = std::min(kBatchBytesMax, limits.transaction_bytes_max / 2);
  size_t operations = 2, bytes = 0, count = 0;  // the session, the epoch
  for (; count < items.size(); count++) {
    const PublishItem& item = items[count];
    operations += kOperationsOfFile + (item.usage ? 1 : 0) + kOperationsOfDeadMark * item.clears.size();
    bytes += (item.record ? item.record->recipe.size() : 0) + kPageBytes * (1 + item.clears.size());
    const bool fits = operations <= limits.operations_per_transaction_max - 2 && bytes <= bytes_max;
    if (count > 0 && (!fits || item.session != items.front().session)) break;
  }
  return count;
}

void DropUnpublished(Streams& streams, const InodePtr& inode, const Error& why) {
  Content& content = *inode->content;
  SharedContent& shared = content.shared();
  streams.Discard(inode);
  Streams::ForgetRecipeError(inode);
  content.pins.clear();
  content.lost.clear();
  content.quota_is_set = false;
  content.new_bytes = std::make_shared<std::atomic<uint64_t>>(0);
  shared.own = {};
  shared.EndPublishing();
  shared.is_marked = shared.stays_marked = shared.is_closed = shared.has_pages = shared.is_asked_for = false;
  shared.marks_in_doubt = 0;
  shared.unawaited.reset();
  shared.failure.reset();
  shared.unpublished_kills.reset();
  shared.is_void = true;
  content.changed = content.must_publish = false;
  content.accepted_bytes = 0;
  content.publish_error.reset();
  if (inode->open_count > 0) streams.SetError(inode, why);
  inode->changed_state.NotifyAll();
}

Result<PublishItem> PublishItems::Prepare(const InodePtr& inode) {
  Content& content = *inode->content;
  SharedContent& shared = content.shared();
  PublishItem item;
  item.inode = inode;
  const bool is_unwritten =
      shared.own.empty() && !HasUnpublishedBytes(content) && content.lost.empty() && !content.quota_is_set;
  if (!is_unwritten) {
    CAIRNFS_ASSIGN_OR_RETURN(item.record, files_.MakeRecord(inode));
  }
  item.base_revision = shared.base_revision;
  item.session = shared.session;
  item.pins = std::move(content.pins);
  content.pins.clear();
  shared.publishing = std::move(shared.own);
  shared.own = {};
  shared.own.size_min = content.UnstoredEnd();
  if (item.record) {
    KeepPastEnd(item, content);
    item.record->unique_bytes = content.unique_bytes;
    item.new_bytes = content.new_bytes;
    item.usage = UsageWrite(*inode, *item.record);
    item.kills = shared.unpublished_kills;
    item.judged_revision = inode->judged_revision;
  }
  shared.publishing_chunks.clear();
  for (const store::ChunkPin& pin : item.pins) shared.publishing_chunks.push_back(pin.digest());
  // What was closed before the round began is in the record, unless it could not be stored.
  const bool has_all_closed = !content.must_publish && content.lost.empty();
  const bool is_done = inode->write_open_count == 0 || shared.is_asked_for;  // else it is being written
  const bool is_lost = shared.is_closed && !content.lost.empty();
  if (is_lost) item.failure = "bytes of the file could not be stored and are lost";
  item.marks = shared.stays_marked || is_lost;
  const bool may_unmark = shared.is_marked && shared.marks_in_doubt == 0 && has_all_closed && is_done;
  item.unmarks = !item.marks && may_unmark;
  if (item.record && ReplaceAll(shared.publishing, item.record->size)) {
    std::copy_if(shared.others_marks.begin(), shared.others_marks.end(), std::back_inserter(item.clears),
                 [&](const meta::Mark& mark) { return !host_.Lives(mark); });
  }
  return item;
}

void PublishItems::Withdraw(PublishItem& item, Content& content) {
  SharedContent& shared = content.shared();
  shared.own.Add(shared.publishing);
  shared.EndPublishing();
  std::move(item.pins.begin(), item.pins.end(), std::back_inserter(content.pins));
  item.pins.clear();
}

bool PublishItems::IsCurrent(const PublishItem& item, const Content& content) {
  return content.changed && content.shared().session == item.session;
}

// Adds what was new of it to a record that has what was so before.
static void CountNew(PublishItem& item) {
  meta::FileRecord& record = *item.record;
  const uint64_t counted = item.new_bytes->load();
  record.unique_bytes = std::min(record.unique_bytes + (counted - item.new_bytes_taken), record.allocated_bytes);
  item.new_bytes_taken = counted;
  if (item.usage && item.usage->value) item.usage = meta::UsageOf(item.inode->id, record);
}

kv::Transaction PublishItems::TransactionOf(std::span<PublishItem> items, uint64_t epoch) {
  kv::Transaction transaction;
  transaction.may_lengthen = true;
  transaction.operation_id = fmt::format("publish/{}/{}/{}", host_.self(), items.front().session, ++operations_);
  host_.AddSessionCompare(transaction, items.front().session);
  host_.AddEpochCompare(transaction, epoch);
  for (PublishItem& item : items) {
    const InodeId id = item.inode->id;
    if (item.record) CountNew(item);
    // What a stranger wrote is never seen with set-id bits, nor anybody's bytes with capabilities, that another host
    // gave to the file meanwhile.
    if (item.kills == Kills::kSetIdToo) {
      transaction.IfRevision(meta::InodeKey(id), item.judged_revision);
    } else {
      transaction.IfExists(meta::InodeKey(id));
    }
    if (item.kills) transaction.IfAbsent(meta::XattrKey(id, meta::kCapabilityXattr));
    if (item.record) {
      transaction.IfRevision(meta::FileKey(id), item.base_revision).Put(meta::FileKey(id), item.record->Encode());
      if (item.usage) transaction.writes.push_back(*item.usage);
    }
    if (item.marks) host_.AddMark(transaction, id, item.session, item.failure);
    if (item.unmarks) transaction.Delete(meta::MarkKey(id, host_.self(), item.session));
    for (const meta::Mark& dead : item.clears) transaction.IfRevision(dead.key, dead.revision).Delete(dead.key);
  }
  return transaction;
}

void PublishItems::Note(const PublishItem& item, bool SharedContent::*state, bool is_so) {
  const InodePtr& inode = item.inode;
  MutexLock lock(inode->mutex);
  if (!IsCurrent(item, *inode->content)) return;
  (inode->content->shared()).*state = is_so;
  inode->changed_state.NotifyAll();
}

// Where the store is away nobody is to be told, and where the session is gone the mark says enough.
void PublishItems::NoteFailure(const InodePtr& inode, const Error& why) {
  SharedContent& shared = inode->content->shared();
  if (!shared.is_closed || shared.failure == why.message) return;
  shared.failure = why.message;
  failed_.push_back(inode);
}

void PublishItems::NoteShortage(const InodePtr& inode, const Error& error) {
  NoteFailure(inode, error);
  files_.shortage = error.WithContext("recipe of inode " + std::to_string(inode->id.value));
}

std::vector<InodePtr> PublishItems::TakeFailed() { return std::exchange(failed_, {}); }

void PublishItems::Requeue(PublishItem& item, const Error& why) {
  const InodePtr& inode = item.inode;
  bool is_dropped = false;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    content.in_round = false;
    is_dropped = !IsCurrent(item, content);
    if (is_dropped) {
      item.pins.clear();
    } else {
      Withdraw(item, content);
      const bool is_cut_short = why.code == ErrorCode::kInterrupted;
      content.must_publish |= !is_cut_short || content.shared().is_asked_for;
      if (!is_cut_short) NoteFailure(inode, why);
      files_.Requeue(inode);
    }
    inode->changed_state.NotifyAll();
  }
  if (is_dropped) files_.Release(inode);
}

void PublishItems::RequeueAll(std::span<PublishItem> items, const Error& why) {
  for (PublishItem& item : items) Requeue(item, why);
}

void PublishItems::RequeueUnprepared(const InodePtr& inode, const Error& why) {
  PublishItem item;
  item.inode = inode;
  {
    MutexLock lock(inode->mutex);
    item.session = inode->content->shared().session;
  }
  Requeue(item, why);
}

void PublishItems::Fail(PublishItem& item, const Error& why) {
  const InodePtr& inode = item.inode;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (IsCurrent(item, content)) {
      if (!content.publish_error || content.publish_error->code != why.code) {
        spdlog::error("inode {}: cannot be published: {}", inode->id.value, why.message);
        // Where others are only quicker, or there is no room, nothing is lost: the next round tries again.
        const bool may_be_lost = why.code != ErrorCode::kBusy && why.code != ErrorCode::kNoSpace;
        if (may_be_lost) streams_.SetError(inode, why);
      }
      content.publish_error = why;
      files_.NoteFailed(inode->id);
    }
  }
  Requeue(item, why);
}

void PublishItems::Drop(const InodePtr& inode, uint64_t session, const Error& why, Who told) {
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (content.changed && content.shared().session == session) {
      const auto level = told == Who::kEverybody || inode->open_count > 0 ? spdlog::level::err : spdlog::level::debug;
      spdlog::log(level, "inode {}: what was not published is dropped: {}", inode->id.value, why.message);
      if (told == Who::kEverybody) streams_.NoteDropped(inode);
      DropUnpublished(streams_, inode, why);
    }
    content.in_round = false;
    inode->changed_state.NotifyAll();
  }
  files_.Release(inode);
}

bool PublishItems::CompleteContent(const InodePtr& inode, const PublishItem& item, uint64_t revision) {
  Content& content = *inode->content;
  SharedContent& shared = content.shared();
  content.publish_error.reset();
  shared.EndPublishing();
  shared.published_locally = item.level == Durability::kLocal;
  if (item.record) {
    // Also where the content was rebased on a later record meanwhile: the next look at that finds it newer.
    shared.base_revision = revision;
    inode->published_revision = std::max(inode->published_revision.load(), revision);
    content.published_size = item.record->size;
    content.unique_bytes = item.record->unique_bytes;
    *item.new_bytes -= item.new_bytes_taken;
    content.quota_is_set = false;
  }
  if (item.marks || item.unmarks) shared.is_marked = item.marks;
  if (item.unmarks && !content.must_publish) shared.is_asked_for = false;  // else it was asked for again
  shared.stays_marked = false;
  shared.failure.reset();
  for (const meta::Mark& dead : item.clears) {
    std::erase_if(shared.others_marks, [&](const meta::Mark& mark) { return mark.key == dead.key; });
  }
  const bool is_mark_due = shared.marks_in_doubt > 0 || (shared.is_marked && content.must_publish);
  content.changed = !shared.own.empty() || HasUnpublishedBytes(content) || is_mark_due;
  content.accepted_bytes = 0;
  if (content.changed) {
    shared.own.ranges.ForEach([&](uint64_t begin, uint64_t end) { content.accepted_bytes += end - begin; });
    content.accepted_bytes += content.DirtyBytes();
    files_.Requeue(inode);
  } else {
    shared.is_closed = shared.has_pages = false;
    shared.unpublished_kills.reset();
    shared.unawaited.reset();
    // Others may write there from now on: bytes that are published are not kept to be cut anew.
    streams_.DropStoredRuns(inode);
  }
  return content.changed;
}

void PublishItems::Complete(PublishItem& item, uint64_t revision) {
  const InodePtr& inode = item.inode;
  if (item.level == Durability::kLocal) host_.NoteReferenced(item.pins);
  if (item.usage && item.usage->value) {
    // What was forgotten meanwhile stays so.
    uint64_t last = files_.counted_revision;
    while (last < revision && !files_.counted_revision.compare_exchange_weak(last, revision)) {
    }
  }
  item.pins.clear();
  bool is_changed = false;
  {
    MutexLock lock(inode->mutex);
    inode->content->in_round = false;
    // Else it was dropped while the answer was on its way.
    if (IsCurrent(item, *inode->content)) is_changed = CompleteContent(inode, item, revision);
    inode->changed_state.NotifyAll();
  }
  if (!is_changed) files_.Release(inode);
}

}  // namespace cairnfs::fs
