// The rounds of a filesystem among other hosts: what was closed, or is asked for, is drained, its chunks are synced,
// and its records are published, several to a transaction.
//
// A transaction compares for each file the record that its content is based on, that the inode is there, and the
// session under which the bytes were accepted. When another host has published the file meanwhile, its record is taken
// over with this host's own ranges laid over it, and the publish is tried again. Bytes of a session that is gone are
// given up: nobody may publish them.
//
// A file whose bytes were closed and that no mark tells of yet is marked before its chunks are waited for; the publish
// takes the mark away. Where it fails the mark tells why.
#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <utility>

#include "base/log.h"
#include "fs/cluster_host.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kOperationsOfFile = 4;      // compares and writes of one file, beside dead marks
constexpr size_t kOperationsOfDeadMark = 2;  // of each
constexpr size_t kMarksPerTransaction = 32;
constexpr size_t kBatchBytesMax = 512 * kKiB;
constexpr int kConflictsMax = 100;
constexpr char kNotPublished[] = "bytes of the file that were not published are lost";

// Whether it is not known if the transaction ran. Where the session is gone that does not matter.
bool IsUnknown(const Result<uint64_t>& revision) {
  return !revision.ok() && revision.error().code != ErrorCode::kStale && kv::MayHaveRun(revision.error().code);
}

// A transaction was refused for what stands under the keys of one of its files: the others can be published.
bool IsOfOneFile(ErrorCode code) { return code == ErrorCode::kConflict || code == ErrorCode::kCorrupt; }

}  // namespace

// What a record has past its end nobody else sees, and whoever publishes next leaves it out: it stays this host's own.
static void KeepPastEnd(Content& content, uint64_t record_size) {
  if (record_size >= content.size) return;
  SharedContent& shared = content.shared();
  content.extents.ForEach(record_size, content.size - record_size,
                          [&](const Extent& extent) { shared.own.ranges.Add(extent.offset, extent.end()); });
  shared.publishing.ranges.Remove(shared.own.ranges);
  shared.own.size_min = content.size;
}

// REQUIRES: the content stays what it is until the record is published, but for what is accepted meanwhile.
Result<SyncRounds::SharedItem> SyncRounds::Prepare(const InodePtr& inode) {
  Content& content = *inode->content;
  SharedContent& shared = content.shared();
  SharedItem item;
  item.inode = inode;
  const bool is_unwritten = shared.own.empty() && !HasUnpublishedBytes(content) && content.lost.empty();
  if (!is_unwritten) {
    CAIRNFS_ASSIGN_OR_RETURN(item.record, MakeRecord(inode));
  }
  item.base_revision = shared.base_revision;
  item.session = shared.session;
  item.pins = std::move(content.pins);
  content.pins.clear();
  shared.publishing_chunks.clear();
  for (const store::ChunkPin& pin : item.pins) shared.publishing_chunks.push_back(pin.digest());
  shared.publishing = std::move(shared.own);
  shared.own = {};
  shared.own.size_min = content.UnstoredEnd();
  if (item.record) KeepPastEnd(content, item.record->size);
  // What was closed before the round began is in the record, unless it could not be stored.
  const bool has_all_closed = !content.must_publish && content.lost.empty();
  const bool is_done = inode->write_open_count == 0 || shared.is_asked_for;  // else it is being written
  const bool is_lost = shared.is_closed && !content.lost.empty();
  if (is_lost) item.failure = "bytes of the file could not be stored and are lost";
  item.marks = shared.stays_marked || is_lost;
  item.unmarks = !item.marks && shared.is_marked && has_all_closed && is_done;
  if (item.record && ReplaceAll(shared.publishing, item.record->size)) {
    std::copy_if(shared.others_marks.begin(), shared.others_marks.end(), std::back_inserter(item.clears),
                 [&](const meta::Mark& mark) { return !host_->Lives(mark); });
  }
  return item;
}

void SyncRounds::Withdraw(SharedItem& item, Content& content) {
  SharedContent& shared = content.shared();
  shared.own.Add(shared.publishing);
  shared.EndPublishing();
  std::move(item.pins.begin(), item.pins.end(), std::back_inserter(content.pins));
  item.pins.clear();
}

bool SyncRounds::IsStillOwed(const SharedItem& item, const Content& content) {
  return content.changed && content.shared().session == item.session;
}

// To be told by the file's mark at the end of the round. Where the store is away nobody is to be told, and where the
// session is gone the mark says enough.
void SyncRounds::NoteFailure(const InodePtr& inode, const Error& why) {
  SharedContent& shared = inode->content->shared();
  if (!shared.is_closed || shared.failure == why.message) return;
  shared.failure = why.message;
  failed_.push_back(inode);
}

void SyncRounds::GiveBack(SharedItem& item, const Error& why) {
  const InodePtr& inode = item.inode;
  bool is_forsaken = false;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    content.owed = false;
    is_forsaken = !IsStillOwed(item, content);
    if (is_forsaken) {
      item.pins.clear();
    } else {
      Withdraw(item, content);
      content.must_publish = true;
      NoteFailure(inode, why);
      MutexLock list(mutex_);
      changed_.push_back(inode);
    }
    inode->changed_state.NotifyAll();
  }
  if (is_forsaken) LetGo(inode);
}

void SyncRounds::GiveBackAll(std::span<SharedItem> items, const Error& why) {
  for (SharedItem& item : items) GiveBack(item, why);
}

void SyncRounds::LeaveBehind(SharedItem& item, const Error& why) {
  const InodePtr& inode = item.inode;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (IsStillOwed(item, content)) {
      if (!content.publish_error || content.publish_error->code != why.code) {
        spdlog::error("inode {}: cannot be published: {}", inode->id.value, why.message);
        // Where others are only quicker nothing is lost: the next round tries again.
        const bool may_be_lost = why.code != ErrorCode::kBusy;
        if (may_be_lost) streams_.SetError(inode, why);
      }
      content.publish_error = why;
      MutexLock list(mutex_);
      left_behind_.insert(inode->id);
    }
  }
  GiveBack(item, why);
}

// Nullopt: it is not any more, and forgotten.
std::optional<Error> SyncRounds::WhyLeftBehind(InodeId id) {
  if (InodePtr inode = table_.Find(id)) {
    MutexLock lock(inode->mutex);
    if (inode->content && inode->content->changed && inode->content->publish_error) {
      return inode->content->publish_error;
    }
    MutexLock list(mutex_);
    left_behind_.erase(id);
    return std::nullopt;
  }
  MutexLock list(mutex_);
  left_behind_.erase(id);
  return std::nullopt;
}

std::map<InodeId, Error> SyncRounds::LeftBehind() {
  std::set<InodeId> known;
  {
    MutexLock lock(mutex_);
    known = left_behind_;
  }
  std::map<InodeId, Error> files;
  for (InodeId id : known) {
    if (auto why = WhyLeftBehind(id)) files.emplace(id, *std::move(why));
  }
  return files;
}

void SyncRounds::Forsake(Streams& streams, const InodePtr& inode, const Error& why) {
  Content& content = *inode->content;
  SharedContent& shared = content.shared();
  streams.Discard(inode);
  Streams::ForgetRecipeError(inode);
  content.pins.clear();
  content.lost.clear();
  shared.own = {};
  shared.EndPublishing();
  shared.is_marked = shared.stays_marked = shared.is_closed = shared.has_pages = shared.is_asked_for = false;
  shared.failure.reset();
  shared.is_void = true;
  content.changed = content.must_publish = false;
  content.publish_error.reset();
  if (inode->open_count > 0) streams.SetError(inode, why);
  inode->changed_state.NotifyAll();
}

void SyncRounds::Abandon(const InodePtr& inode, uint64_t session, const Error& why, bool is_needed) {
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (content.changed && content.shared().session == session) {
      const auto level = is_needed || inode->open_count > 0 ? spdlog::level::err : spdlog::level::debug;
      spdlog::log(level, "inode {}: what was not published is given up: {}", inode->id.value, why.message);
      Forsake(streams_, inode, why);
    }
    content.owed = false;
    inode->changed_state.NotifyAll();
  }
  LetGo(inode);
}

void SyncRounds::Complete(SharedItem& item, uint64_t revision) {
  const InodePtr& inode = item.inode;
  if (item.level == Durability::kLocal) host_->OweCopies(item.pins);
  item.pins.clear();
  bool is_changed = false;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    SharedContent& shared = content.shared();
    content.owed = false;
    if (IsStillOwed(item, content)) {  // else it was forsaken while the answer was on its way
      content.publish_error.reset();
      shared.EndPublishing();
      shared.published_locally = item.level == Durability::kLocal;
      if (item.record) {
        // Also where the content was rebased on a later record meanwhile: the next look at that finds it newer.
        shared.base_revision = revision;
        inode->published_revision = std::max(inode->published_revision.load(), revision);
        content.published_size = item.record->size;
      }
      if (item.marks || item.unmarks) shared.is_marked = item.marks;
      if (item.unmarks && !content.must_publish) shared.is_asked_for = false;  // else it was asked for again
      shared.stays_marked = false;
      shared.failure.reset();
      for (const meta::Mark& dead : item.clears) {
        std::erase_if(shared.others_marks, [&](const meta::Mark& mark) { return mark.key == dead.key; });
      }
      is_changed = !shared.own.empty() || HasUnpublishedBytes(content) || (shared.is_marked && content.must_publish);
      if (!is_changed) shared.is_closed = shared.has_pages = false;
      content.changed = is_changed;
      if (is_changed) {
        MutexLock list(mutex_);
        changed_.push_back(inode);
      } else {
        // Others may write there from now on: bytes that are published are not kept to be cut anew.
        streams_.DropStoredRuns(inode);
      }
    }
    inode->changed_state.NotifyAll();
  }
  if (!is_changed) LetGo(inode);
}

kv::Transaction SyncRounds::TransactionOf(std::span<const SharedItem> items) {
  kv::Transaction transaction;
  transaction.operation_id = fmt::format("publish/{}/{}/{}", host_->self(), items.front().session, ++operations_);
  host_->AddSessionCompare(transaction, items.front().session);
  for (const SharedItem& item : items) {
    const InodeId id = item.inode->id;
    transaction.IfExists(meta::InodeKey(id));
    if (item.record) {
      transaction.IfRevision(meta::FileKey(id), item.base_revision).Put(meta::FileKey(id), item.record->Encode());
    }
    if (item.marks) host_->AddMark(transaction, id, item.session, item.failure);
    if (item.unmarks) transaction.Delete(meta::MarkKey(id, host_->self(), item.session));
    for (const meta::Mark& dead : item.clears) transaction.IfRevision(dead.key, dead.revision).Delete(dead.key);
  }
  return transaction;
}

void SyncRounds::Note(const SharedItem& item, bool SharedContent::*state, bool is_so) {
  const InodePtr& inode = item.inode;
  MutexLock lock(inode->mutex);
  if (!IsStillOwed(item, *inode->content)) return;
  (inode->content->shared()).*state = is_so;
  inode->changed_state.NotifyAll();
}

Status SyncRounds::CommitBatches(std::vector<SharedItem>& items, bool one_by_one, std::vector<SharedItem>& conflicts) {
  Status first;
  const kv::KvLimits limits = kv_.limits();
  for (size_t begin = 0, end; begin < items.size(); begin = end) {
    size_t operations = 1, bytes = 0;
    for (end = begin; end < items.size(); end++) {
      const SharedItem& item = items[end];
      operations += kOperationsOfFile + kOperationsOfDeadMark * item.clears.size();
      bytes += (item.record ? item.record->recipe.size() : 0) + kPageBytes * (1 + item.clears.size());
      const bool fits = operations <= limits.operations_per_transaction_max - 2 &&
                        bytes <= std::min(kBatchBytesMax, limits.transaction_bytes_max / 2) && !one_by_one;
      if (end > begin && (!fits || item.session != items[begin].session)) break;
    }
    std::vector<SharedItem> batch(std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(begin)),
                                  std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(end)));
    for (const SharedItem& item : batch) Note(item, &SharedContent::is_sent, true);
    kv::Transaction transaction = TransactionOf(batch);
    auto revision = kv_.Commit(transaction);
    const bool has_failed = !revision.ok() && !IsOfOneFile(revision.error().code);
    if (has_failed && first.ok()) first = revision.error().WithContext("records of files");
    if (IsUnknown(revision)) {
      for (SharedItem& item : batch) Note(item, &SharedContent::is_unanswered, true);
      unsettled_ = Unsettled{std::move(transaction), batch.front().session, std::move(batch)};
      // The store is away, and each of the others would wait for it as long.
      GiveBackAll(std::span<SharedItem>(items).subspan(end), revision.error());
      return first;
    }
    Conclude(batch, revision, conflicts);
  }
  return first;
}

void SyncRounds::Conclude(std::vector<SharedItem>& items, const Result<uint64_t>& revision,
                          std::vector<SharedItem>& conflicts) {
  for (SharedItem& item : items) {
    if (revision.ok()) {
      Complete(item, *revision);
    } else if (revision.error().code == ErrorCode::kStale) {
      // First: who waits for the file must not find nothing left to publish, and the session alive.
      host_->EndSession(item.session);
      Abandon(item.inode, item.session, SessionLost(kNotPublished));
    } else if (revision.error().code == ErrorCode::kCorrupt && items.size() == 1) {
      LeaveBehind(item, revision.error());
    } else if (IsOfOneFile(revision.error().code)) {
      Note(item, &SharedContent::is_sent, false);
      conflicts.push_back(std::move(item));
    } else {
      GiveBack(item, revision.error());
    }
  }
}

Status SyncRounds::Settle() {
  if (!unsettled_) return {};
  // What was given up with its session can run no more: whether it did is nobody's concern.
  const bool is_given_up = unsettled_->session != host_->session();
  const Result<uint64_t> revision =
      is_given_up ? MakeError(ErrorCode::kStale, kNotPublished) : kv_.Commit(unsettled_->transaction);
  if (IsUnknown(revision)) return revision.error().WithContext("records of files");
  Unsettled settled = *std::exchange(unsettled_, std::nullopt);
  std::vector<SharedItem> conflicts;
  Conclude(settled.items, revision, conflicts);
  // The round that follows finds out why.
  if (!conflicts.empty()) GiveBackAll(conflicts, revision.error());
  return {};
}

Result<std::optional<SyncRounds::SharedItem>> SyncRounds::Reconcile(SharedItem item) {
  const InodePtr& inode = item.inode;
  auto state = names_.ReadFile(inode->id, meta::Namespace::WithMarks::kYes);
  if (!state.ok() && state.error().code == ErrorCode::kCorrupt) {
    LeaveBehind(item, state.error());
    return std::optional<SharedItem>();
  }
  if (!state.ok() && state.error().code != ErrorCode::kNotFound) {
    GiveBack(item, state.error());
    return state.error();
  }
  if (!state.ok()) {
    const Error why = MakeError(ErrorCode::kStale, "the file was removed on another host");
    Abandon(inode, item.session, why, /*is_needed=*/false);
    return std::optional<SharedItem>();
  }
  if (item.session != host_->session()) {
    Abandon(inode, item.session, SessionLost(kNotPublished));
    return std::optional<SharedItem>();
  }
  Status rebased;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (IsStillOwed(item, content)) {
      Withdraw(item, content);
      host_->NoteMarks(*state, content.shared());
      if (state->record_revision != content.shared().base_revision) {
        rebased = Rebase(content, state->record, state->record_revision, chunks_);
        if (rebased.ok()) streams_.DropStoredFronts(inode);
      }
      if (rebased.ok()) {
        auto again = Prepare(inode);
        if (again.ok()) return std::optional(std::move(*again));
        NoteShortage(inode, again.error());  // it is in the list of the next round
        return std::optional<SharedItem>();
      }
    }
  }
  if (rebased.ok()) {
    GiveBack(item, SessionLost(kNotPublished));
  } else {
    LeaveBehind(item, rebased.error().WithContext("what another host has written of the file cannot be read"));
  }
  return std::optional<SharedItem>();
}

void SyncRounds::NoteShortage(const InodePtr& inode, const Error& error) {
  NoteFailure(inode, error);
  shortage_ = error.WithContext("recipe of inode " + std::to_string(inode->id.value));
}

// What needs this node's disk alone does not wait for other nodes.
Status SyncRounds::PublishShared(std::vector<SharedItem> items) {
  if (items.empty()) return {};
  std::vector<InodeId> inodes;
  for (const SharedItem& item : items) inodes.push_back(item.inode->id);
  auto levels = host_->levels().Of(inodes);
  if (!levels.ok()) {
    GiveBackAll(items, levels.error());
    return levels.error();
  }
  std::vector<SharedItem> local, replicated;
  for (size_t i = 0; i < items.size(); i++) {
    items[i].level = (*levels)[i];
    (items[i].level == Durability::kLocal ? local : replicated).push_back(std::move(items[i]));
  }
  const Status here = PublishAt(Durability::kLocal, std::move(local));
  if (unsettled_) {
    if (!here.ok()) GiveBackAll(replicated, here.error());
    return here;
  }
  const Status everywhere = PublishAt(Durability::kReplicated, std::move(replicated));
  return here.ok() ? everywhere : here;
}

Status SyncRounds::PublishAt(Durability level, std::vector<SharedItem> items) {
  Status first;
  for (int attempt = 0; !items.empty(); attempt++) {
    const auto unreadable = host_->SyncReadableChunks(level);
    if (!unreadable.ok()) {
      GiveBackAll(items, unreadable.error());
      return unreadable.error();
    }
    std::erase_if(items, [&](SharedItem& item) {
      for (const store::ChunkPin& pin : item.pins) {
        const auto found = unreadable->find(pin.digest());
        if (found == unreadable->end()) continue;
        LeaveBehind(item, found->second);
        return true;
      }
      return false;
    });
    std::vector<SharedItem> conflicts;
    Status committed = CommitBatches(items, attempt > 0, conflicts);
    if (first.ok()) first = committed;
    items.clear();
    bool is_away = unsettled_.has_value();
    for (SharedItem& item : conflicts) {
      if (is_away) {
        GiveBack(item, first.error());
        continue;
      }
      if (attempt == kConflictsMax) {
        LeaveBehind(item, MakeError(ErrorCode::kBusy, "another host publishes the file all the time"));
        continue;
      }
      auto again = Reconcile(std::move(item));
      if (again.ok() && *again) {
        (*again)->level = level;
        items.push_back(std::move(**again));
      }
      if (!again.ok() && first.ok()) first = again.error();
      is_away = !again.ok() && again.error().code == ErrorCode::kUnavailable;
    }
    if (!is_away) continue;
    GiveBackAll(items, first.error());
    break;
  }
  return first;
}

// The transaction that marks these files; `files` are left that need it still.
kv::Transaction SyncRounds::MarkTransaction(std::span<const InodePtr> files, uint64_t session) {
  kv::Transaction transaction;
  transaction.operation_id = fmt::format("mark/{}/{}/{}", host_->self(), session, ++operations_);
  host_->AddSessionCompare(transaction, session);
  for (const InodePtr& inode : files) {
    MutexLock lock(inode->mutex);
    const bool is_of_session = inode->content && inode->content->shared().session == session;
    if (!is_of_session || !inode->content->changed) continue;
    SharedContent& shared = inode->content->shared();
    shared.is_marked = true;  // perhaps: it is taken away in any case
    transaction.IfExists(meta::InodeKey(inode->id));
    host_->AddMark(transaction, inode->id, session, shared.failure.value_or(""));
  }
  return transaction;
}

Status SyncRounds::MarkFiles(std::span<const InodePtr> files) {
  const uint64_t session = host_->session();
  if (session == 0 || unsettled_) return {};
  for (size_t begin = 0, step = kMarksPerTransaction; begin < files.size();) {
    kv::Transaction transaction = MarkTransaction(files.subspan(begin, std::min(step, files.size() - begin)), session);
    const Result<uint64_t> revision = kv_.Commit(transaction);
    if (IsUnknown(revision)) {
      unsettled_ = Unsettled{std::move(transaction), session, {}};
      return revision.error().WithContext("marks of unpublished files");
    }
    // One of them was removed: each alone. Any other error is that of the publish too, which tells it.
    const bool is_one = !revision.ok() && revision.error().code == ErrorCode::kConflict && step > 1;
    if (is_one) {
      step = 1;
      continue;
    }
    begin += step;
  }
  return {};
}

// Before chunks are waited for: should this host end meanwhile, others know that the file is not what was closed.
Status SyncRounds::MarkClosed() {
  std::vector<InodePtr> unmarked;
  for (const InodePtr& inode : owed_) {
    MutexLock lock(inode->mutex);
    const Content& content = *inode->content;
    const bool is_owed = content.changed && !content.must_reload() && content.shared().is_closed;
    if (is_owed && !content.shared().is_marked && HasUnpublishedBytes(content)) unmarked.push_back(inode);
  }
  return MarkFiles(unmarked);
}

void SyncRounds::TellFailures() {
  if (unsettled_) return;  // by a later round
  const std::vector<InodePtr> failed = std::exchange(failed_, {});
  if (Status told = MarkFiles(failed); !told.ok()) {
    spdlog::warn("other hosts do not know yet that files could not be published: {}", told.error().message);
  }
}

// Before any of them was prepared.
void SyncRounds::GiveBackOwed(const Error& why) {
  for (const InodePtr& inode : owed_) {
    SharedItem item;
    item.inode = inode;
    {
      MutexLock lock(inode->mutex);
      item.session = inode->content->shared().session;
    }
    GiveBack(item, why);
  }
  owed_.clear();
}

Status SyncRounds::FinishShared() {
  if (Status marked = MarkClosed(); !marked.ok()) {
    GiveBackOwed(marked.error());  // whoever changes such a file does not wait for the answer
    return marked;
  }
  DrainOwed();
  std::vector<SharedItem> items;
  for (const InodePtr& inode : owed_) {
    Result<SharedItem> item = SharedItem();
    bool is_abandoned = false;
    uint64_t session = 0;
    {
      MutexLock lock(inode->mutex);
      const Content& content = *inode->content;
      session = content.shared().session;
      is_abandoned = !content.changed || content.must_reload() || session != host_->session();
      if (!is_abandoned) item = Prepare(inode);
    }
    if (is_abandoned) {
      Abandon(inode, session, SessionLost(kNotPublished));
    } else if (item.ok()) {
      items.push_back(std::move(*item));
    } else {
      MutexLock lock(inode->mutex);
      NoteShortage(inode, item.error());
    }
  }
  owed_.clear();
  const Status published = PublishShared(std::move(items));
  TellFailures();
  open_ = unsettled_.has_value();
  if (published.ok()) rounds_total_++;
  return published;
}

}  // namespace cairnfs::fs
