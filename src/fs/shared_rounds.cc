// The rounds of a filesystem among other hosts: what was closed, or is asked for, is drained, its chunks are synced,
// and its records are published, several to a transaction.
//
// A transaction compares for each file the record that its content is based on, that the inode is there, and the
// session under which the bytes were accepted. When another host has published the file meanwhile, its record is taken
// over with this host's own ranges laid over it, and the publish is tried again. Bytes of a session that is gone are
// given up: nobody may publish them.
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

// Of one file: compares and writes that it takes at most beside pending records that are lost.
constexpr size_t kOperationsOfFile = 3;
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
  SharedContent& shared = *content.shared;
  content.extents.ForEach(record_size, content.size - record_size,
                          [&](const Extent& extent) { shared.own.ranges.Add(extent.offset, extent.end()); });
  shared.publishing.ranges.Remove(shared.own.ranges);
  shared.own.size_min = content.size;
}

// REQUIRES: the content stays what it is until the record is published, but for what is accepted meanwhile.
Result<SyncRounds::SharedItem> SyncRounds::Prepare(const InodePtr& inode) {
  Content& content = *inode->content;
  SharedContent& shared = *content.shared;
  SharedItem item;
  item.inode = inode;
  CAIRNFS_ASSIGN_OR_RETURN(item.record, MakeRecord(inode));
  item.base_revision = shared.base_revision;
  item.session = shared.session;
  item.pins = std::move(content.pins);
  content.pins.clear();
  shared.publishing_chunks.clear();
  for (const store::ChunkPin& pin : item.pins) shared.publishing_chunks.push_back(pin.digest());
  shared.publishing = std::move(shared.own);
  shared.own = {};
  shared.own.size_min = content.UnstoredEnd();
  KeepPastEnd(content, item.record.size);
  NotePendingChanges(item, content);
  return item;
}

// As far as is known now: the file may be closed until its record is sent.
void SyncRounds::NotePendingChanges(SharedItem& item, const Content& content) const {
  // What was closed before the round began is in the record, unless it could not be stored.
  const bool has_all_closed = !content.must_publish && content.lost.empty();
  const auto stays = has_all_closed ? std::nullopt : StaysPending(content, item.record.size);
  item.pending = content.shared->PendingChanges(host_->self(), stays);
}

void SyncRounds::Withdraw(SharedItem& item, Content& content) {
  SharedContent& shared = *content.shared;
  shared.own.Add(shared.publishing);
  shared.EndPublishing();
  std::move(item.pins.begin(), item.pins.end(), std::back_inserter(content.pins));
  item.pins.clear();
}

bool SyncRounds::IsStillOwed(const SharedItem& item, const Content& content) {
  return content.changed && content.shared->session == item.session;
}

void SyncRounds::GiveBack(SharedItem& item) {
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
      MutexLock list(mutex_);
      changed_.push_back(inode);
    }
    inode->changed_state.NotifyAll();
  }
  if (is_forsaken) LetGo(inode);
}

void SyncRounds::GiveBackAll(std::span<SharedItem> items) {
  for (SharedItem& item : items) GiveBack(item);
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
        if (may_be_lost && WasClosed(inode)) streams_.NoteClosedLost();
      }
      content.publish_error = why;
      MutexLock list(mutex_);
      left_behind_.insert(inode->id);
    }
  }
  GiveBack(item);
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

bool SyncRounds::WasClosed(const InodePtr& inode) {
  return !inode->unlinked && (inode->write_open_count == 0 || inode->content->shared->pending_revision != 0);
}

void SyncRounds::Forsake(Streams& streams, const InodePtr& inode, const Error& why, bool is_needed) {
  Content& content = *inode->content;
  SharedContent& shared = *content.shared;
  if (is_needed && WasClosed(inode)) streams.NoteClosedLost();
  streams.Discard(inode);
  Streams::ForgetRecipeError(inode);
  content.pins.clear();
  content.lost.clear();
  shared.own = {};
  shared.EndPublishing();
  shared.unanswered_puts.clear();
  shared.pending_revision = 0;
  shared.must_reload = true;
  content.changed = content.must_publish = false;
  content.publish_error.reset();
  if (inode->open_count > 0) streams.SetError(inode, why);
  inode->changed_state.NotifyAll();
}

void SyncRounds::Abandon(const InodePtr& inode, uint64_t session, const Error& why, bool is_needed) {
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (content.changed && content.shared->session == session) {
      const auto level = is_needed || inode->open_count > 0 ? spdlog::level::err : spdlog::level::debug;
      spdlog::log(level, "inode {}: what was not published is given up: {}", inode->id.value, why.message);
      Forsake(streams_, inode, why, is_needed);
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
    SharedContent& shared = *content.shared;
    content.owed = false;
    if (IsStillOwed(item, content)) {  // else it was forsaken while the answer was on its way
      inode->published_revision = std::max(inode->published_revision.load(), revision);
      content.publish_error.reset();
      shared.EndPublishing();
      // Also where the content was rebased on a later record meanwhile: the next look at that finds it newer.
      shared.base_revision = revision;
      shared.published_locally = item.level == Durability::kLocal;
      shared.Apply(host_->self(), item.pending, revision);
      content.published_size = item.record.size;
      is_changed = !shared.own.empty() || content.overlay.HasUnstored() || !content.flying.empty() ||
                   shared.pending_revision != 0;
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
    transaction.IfExists(meta::InodeKey(id))
        .IfRevision(meta::FileKey(id), item.base_revision)
        .Put(meta::FileKey(id), item.record.Encode());
    for (const PendingChange& change : item.pending) AddPendingChange(transaction, id, change);
  }
  return transaction;
}

void SyncRounds::Note(const SharedItem& item, bool SharedContent::*state, bool is_so) {
  const InodePtr& inode = item.inode;
  MutexLock lock(inode->mutex);
  if (!IsStillOwed(item, *inode->content)) return;
  (*inode->content->shared).*state = is_so;
  inode->changed_state.NotifyAll();
}

// A P key tells nothing that is published, or it would count as lost once the host is gone. So of a file either a put
// of the key is under way or a publish, and that takes out of the key what it brings.
Status SyncRounds::SettlePuts(std::span<SharedItem> items) {
  for (const SharedItem& item : items) Note(item, &SharedContent::is_sent, true);
  for (SharedItem& item : items) {
    const InodePtr& inode = item.inode;
    MutexLock lock(inode->mutex);
    while (IsStillOwed(item, *inode->content) && inode->pending_puts > 0) inode->changed_state.Wait(inode->mutex);
    while (IsStillOwed(item, *inode->content) && !inode->content->shared->unanswered_puts.empty()) {
      const UnansweredPut put = inode->content->shared->unanswered_puts.front();
      lock.Unlock();
      const Result<uint64_t> revision = kv_.Commit(put.transaction);
      if (IsUnknown(revision)) return revision.error();
      lock.Lock();
      if (!IsStillOwed(item, *inode->content)) break;
      SharedContent& shared = *inode->content->shared;
      shared.unanswered_puts.erase(shared.unanswered_puts.begin());
      if (revision.ok()) shared.NotePut(host_->self(), *revision, put.record);
    }
    if (IsStillOwed(item, *inode->content)) NotePendingChanges(item, *inode->content);
  }
  return {};
}

Status SyncRounds::CommitBatches(std::vector<SharedItem>& items, bool one_by_one, std::vector<SharedItem>& conflicts) {
  Status first;
  const kv::KvLimits limits = kv_.limits();
  for (size_t begin = 0, end; begin < items.size(); begin = end) {
    size_t operations = 1, bytes = 0;
    for (end = begin; end < items.size(); end++) {
      const SharedItem& item = items[end];
      operations += kOperationsOfFile + item.pending.size();
      bytes += item.record.recipe.size() + kPageBytes * (1 + item.pending.size());
      const bool fits = operations <= limits.operations_per_transaction_max - 2 &&
                        bytes <= std::min(kBatchBytesMax, limits.transaction_bytes_max / 2) && !one_by_one;
      if (end > begin && (!fits || item.session != items[begin].session)) break;
    }
    std::vector<SharedItem> batch(std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(begin)),
                                  std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(end)));
    if (Status settled = SettlePuts(batch); !settled.ok()) {
      if (first.ok()) first = settled.error().WithContext("pending records of files");
      GiveBackAll(batch);
      GiveBackAll(std::span<SharedItem>(items).subspan(end));
      return first;
    }
    kv::Transaction transaction = TransactionOf(batch);
    auto revision = kv_.Commit(transaction);
    const bool has_failed = !revision.ok() && !IsOfOneFile(revision.error().code);
    if (has_failed && first.ok()) first = revision.error().WithContext("records of files");
    if (IsUnknown(revision)) {
      for (SharedItem& item : batch) Note(item, &SharedContent::is_unanswered, true);
      unsettled_ = Unsettled{std::move(transaction), std::move(batch)};
      // The store is away, and each of the others would wait for it as long.
      GiveBackAll(std::span<SharedItem>(items).subspan(end));
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
      Abandon(item.inode, item.session, SessionLost(kNotPublished));
    } else if (revision.error().code == ErrorCode::kCorrupt && items.size() == 1) {
      LeaveBehind(item, revision.error());
    } else if (IsOfOneFile(revision.error().code)) {
      Note(item, &SharedContent::is_sent, false);
      conflicts.push_back(std::move(item));
    } else {
      GiveBack(item);
    }
  }
}

Status SyncRounds::Settle() {
  if (!unsettled_) return {};
  // What was given up with its session can run no more: whether it did is nobody's concern.
  const bool is_given_up = unsettled_->items.front().session != host_->session();
  const Result<uint64_t> revision =
      is_given_up ? MakeError(ErrorCode::kStale, kNotPublished) : kv_.Commit(unsettled_->transaction);
  if (IsUnknown(revision)) return revision.error().WithContext("records of files");
  Unsettled settled = *std::exchange(unsettled_, std::nullopt);
  std::vector<SharedItem> conflicts;
  Conclude(settled.items, revision, conflicts);
  GiveBackAll(conflicts);  // the round that follows finds out why
  return {};
}

Result<std::optional<SyncRounds::SharedItem>> SyncRounds::Reconcile(SharedItem item) {
  const InodePtr& inode = item.inode;
  auto state = names_.ReadFile(inode->id);
  if (!state.ok() && state.error().code == ErrorCode::kCorrupt) {
    LeaveBehind(item, state.error());
    return std::optional<SharedItem>();
  }
  if (!state.ok() && state.error().code != ErrorCode::kNotFound) {
    GiveBack(item);
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
      host_->NotePending(*state, *content.shared);
      if (state->record_revision != content.shared->base_revision) {
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
    GiveBack(item);
  } else {
    LeaveBehind(item, rebased.error().WithContext("what another host has written of the file cannot be read"));
  }
  return std::optional<SharedItem>();
}

// Nobody misses the bytes of a file that is gone on all hosts; owed, they ask for room that everything else waits for.
bool SyncRounds::AbandonRemoved(std::vector<SharedItem>& items) {
  std::vector<InodeId> gone;
  for (const SharedItem& item : items) {
    MutexLock lock(item.inode->mutex);
    if (table_.IsGone(item.inode)) gone.push_back(item.inode->id);
  }
  std::set<InodeId> unheld;
  for (size_t begin = 0; begin < gone.size(); begin += ClusterHost::kAskedAtOnce) {
    const auto first = gone.begin() + static_cast<ptrdiff_t>(begin);
    const auto end = gone.begin() + static_cast<ptrdiff_t>(std::min(gone.size(), begin + ClusterHost::kAskedAtOnce));
    const std::vector<InodeId> asked(first, end);
    // Those that say no open it no more.
    const auto held = host_->HeldElsewhere(asked);
    if (!held.ok()) break;
    for (size_t i = 0; i < asked.size(); i++) {
      if (!(*held)[i]) unheld.insert(asked[i]);
    }
  }
  const auto abandoned = std::erase_if(items, [&](const SharedItem& item) {
    if (!unheld.contains(item.inode->id)) return false;
    Abandon(item.inode, item.session, MakeError(ErrorCode::kStale, "the file was removed"), /*is_needed=*/false);
    return true;
  });
  return abandoned > 0;
}

void SyncRounds::NoteShortage(const InodePtr& inode, const Error& error) {
  shortage_ = error.WithContext("recipe of inode " + std::to_string(inode->id.value));
}

// What needs this node's disk alone does not wait for other nodes.
Status SyncRounds::PublishShared(std::vector<SharedItem> items) {
  if (items.empty()) return {};
  std::vector<InodeId> inodes;
  for (const SharedItem& item : items) inodes.push_back(item.inode->id);
  auto levels = host_->levels().Of(inodes);
  if (!levels.ok()) {
    GiveBackAll(items);
    return levels.error();
  }
  std::vector<SharedItem> local, replicated;
  for (size_t i = 0; i < items.size(); i++) {
    items[i].level = (*levels)[i];
    (items[i].level == Durability::kLocal ? local : replicated).push_back(std::move(items[i]));
  }
  const Status here = PublishAt(Durability::kLocal, std::move(local));
  if (unsettled_) {
    GiveBackAll(replicated);
    return here;
  }
  const Status everywhere = PublishAt(Durability::kReplicated, std::move(replicated));
  return here.ok() ? everywhere : here;
}

Status SyncRounds::PublishAt(Durability level, std::vector<SharedItem> items) {
  Status first;
  for (int attempt = 0; !items.empty(); attempt++) {
    auto unreadable = host_->SyncReadableChunks(level);
    while (!unreadable.ok() && unreadable.error().code == ErrorCode::kNoSpace && AbandonRemoved(items)) {
      if (items.empty()) return first;
      unreadable = host_->SyncReadableChunks(level);
    }
    if (!unreadable.ok()) {
      GiveBackAll(items);
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
        GiveBack(item);
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
    GiveBackAll(items);
    break;
  }
  return first;
}

Status SyncRounds::FinishShared() {
  DrainOwed();
  std::vector<SharedItem> items;
  for (const InodePtr& inode : owed_) {
    Result<SharedItem> item = SharedItem();
    bool is_abandoned = false;
    uint64_t session = 0;
    {
      MutexLock lock(inode->mutex);
      const Content& content = *inode->content;
      session = content.shared->session;
      is_abandoned = !content.changed || content.must_reload() || session != host_->session();
      if (!is_abandoned) item = Prepare(inode);
    }
    if (is_abandoned) {
      Abandon(inode, session, SessionLost(kNotPublished));
    } else if (item.ok()) {
      items.push_back(std::move(*item));
    } else {
      NoteShortage(inode, item.error());
    }
  }
  owed_.clear();
  const Status published = PublishShared(std::move(items));
  open_ = unsettled_.has_value();
  if (published.ok()) rounds_total_++;
  return published;
}

}  // namespace cairnfs::fs
