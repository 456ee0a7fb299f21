#include "fs/shared_publisher.h"

#include <sys/stat.h>

#include <cassert>
#include <iterator>
#include <utility>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr int kConflictsMax = 100;
constexpr char kNotPublished[] = "bytes of the file that were not published are lost";

// A transaction was refused for what stands under the keys of one of its files: the others can be published.
bool IsOfOneFile(ErrorCode code) { return code == ErrorCode::kConflict || code == ErrorCode::kCorrupt; }

// No room for the records: those that get no longer can be published alone.
bool IsNoSpace(const Result<uint64_t>& revision) {
  return !revision.ok() && revision.error().code == ErrorCode::kNoSpace;
}

}  // namespace

Status SharedPublisher::ResolveDoubt() {
  CAIRNFS_RETURN_IF_ERROR(at_.marks.ResolveDoubt());
  if (!in_doubt_) return {};
  // What was dropped with its session can run no more: whether it did is nobody's concern.
  const bool is_dropped = in_doubt_->session != at_.host.session();
  const Result<uint64_t> revision =
      is_dropped ? MakeError(ErrorCode::kStale, kNotPublished) : at_.kv.Commit({}, in_doubt_->transaction);
  if (IsInDoubt(revision)) return revision.error().WithContext("records of files");
  InDoubt resolved = *std::exchange(in_doubt_, std::nullopt);
  std::vector<PublishItem> conflicts;
  Conclude(resolved.items, revision, conflicts);
  // The round that follows finds out why.
  if (!conflicts.empty()) items_.RequeueAll(conflicts, revision.error());
  return {};
}

void SharedPublisher::Open(const DirtyFiles::Selection& selection) {
  if (at_.files.empty()) return;
  is_open_ = true;
  for (const InodePtr& inode : at_.files.TakeOver(selection)) at_.table.Unhold(inode);
}

// Before chunks are waited for: should this host end meanwhile, others know that the file is not what was closed.
Status SharedPublisher::MarkClosed() {
  std::vector<InodePtr> unmarked;
  for (const InodePtr& inode : at_.files.taken()) {
    MutexLock lock(inode->mutex);
    const Content& content = *inode->content;
    const bool is_closed = content.changed && !content.must_reload() && content.shared().is_closed;
    if (is_closed && !content.shared().is_marked && HasUnpublishedBytes(content)) unmarked.push_back(inode);
  }
  return at_.marks.Put({}, unmarked);
}

void SharedPublisher::TellFailures() {
  if (in_doubt_ || at_.marks.in_doubt()) return;  // by a later round
  const std::vector<InodePtr> failed = items_.TakeFailed();
  if (Status told = at_.marks.Put({}, failed); !told.ok()) {
    spdlog::warn("other hosts do not know yet that files could not be published: {}", told.error().message);
  }
}

void SharedPublisher::CompareBase(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (!inode->content->changed || !inode->content->shared().must_compare) return;
  }
  const uint64_t epoch = at_.host.epoch();
  const auto state = at_.names.ReadFile({}, inode->id);
  if (!state.ok()) return;
  MutexLock lock(inode->mutex);
  Content& content = *inode->content;
  if (!content.changed || content.must_reload()) return;
  SharedContent& shared = content.shared();
  const bool is_newer = state->record_revision > shared.base_revision;
  if (state->inode.nlink > 0) inode->in_trash = false;  // another host may have restored it
  if (is_newer && !Rebase(content, state->record, state->record_revision, at_.chunks).ok()) return;
  if (is_newer) at_.streams.DropStoredFronts(inode);
  if (epoch != at_.host.epoch()) return;  // what was read may be older than that
  shared.must_compare = false;
  shared.compared_revision = state->record_revision;
}

void SharedPublisher::Prepare(const InodePtr& inode, std::vector<PublishItem>& items) {
  uint64_t session = 0;
  {
    MutexLock lock(inode->mutex);
    const Content& content = *inode->content;
    session = content.shared().session;
    const bool is_lost = !content.changed || content.must_reload() || session != at_.host.session();
    if (!is_lost) {
      auto item = items_.Prepare(inode);
      if (item.ok()) items.push_back(std::move(*item));
      if (!item.ok()) items_.NoteShortage(inode, item.error());
      return;
    }
  }
  items_.Drop(inode, session, SessionLost(kNotPublished));
}

Status SharedPublisher::Finish(const Round& round) {
  assert(is_open_);
  if (Status marked = MarkClosed(); !marked.ok()) {
    // Whoever changes such a file does not wait for the answer.
    for (const InodePtr& inode : at_.files.taken()) items_.RequeueUnprepared(inode, marked.error());
    at_.files.ClearTaken();
    return marked;
  }
  for (const InodePtr& inode : at_.files.taken()) CompareBase(inode);
  for (const DirtyFiles::Undrained& undrained : at_.files.Drain()) {
    MutexLock lock(undrained.inode->mutex);
    items_.NoteFailure(undrained.inode, undrained.why);
  }
  std::vector<PublishItem> items;
  for (const InodePtr& inode : at_.files.taken()) Prepare(inode, items);
  at_.files.ClearTaken();
  const Status published = Publish(round.context, std::move(items));
  TellFailures();
  is_open_ = in_doubt_.has_value() || at_.marks.in_doubt();
  return published;
}

// What needs this node's disk alone does not wait for other nodes.
Status SharedPublisher::Publish(const Context& context, std::vector<PublishItem> items) {
  if (items.empty()) return {};
  std::vector<InodeId> inodes;
  for (const PublishItem& item : items) inodes.push_back(item.inode->id);
  auto levels = at_.host.levels().Of({}, inodes);
  if (!levels.ok()) {
    items_.RequeueAll(items, levels.error());
    return levels.error();
  }
  std::vector<PublishItem> local, replicated;
  for (size_t i = 0; i < items.size(); i++) {
    items[i].level = (*levels)[i];
    (items[i].level == Durability::kLocal ? local : replicated).push_back(std::move(items[i]));
  }
  const Status here = PublishAt(context, Durability::kLocal, std::move(local));
  if (in_doubt_) {
    if (!here.ok()) items_.RequeueAll(replicated, here.error());
    return here;
  }
  const Status everywhere = PublishAt(context, Durability::kReplicated, std::move(replicated));
  return here.ok() ? everywhere : here;
}

// Chunks that cannot be read back keep only their own files from being published.
void SharedPublisher::FailUnreadable(const cluster::ClusterChunkStore::Unreadable& unreadable,
                                     std::vector<PublishItem>& items) {
  std::erase_if(items, [&](PublishItem& item) {
    std::vector<Digest> named;
    item.AddNamed(named);
    for (const Digest& digest : named) {
      const auto found = unreadable.find(digest);
      if (found == unreadable.end()) continue;
      items_.Fail(item, found->second);
      return true;
    }
    return false;
  });
}

Result<ClusterHost::Unreadable> SharedPublisher::SyncChunks(const Context& context, Durability level,
                                                            const std::vector<PublishItem>& items) {
  if (!at_.files.goes_first()) return at_.host.SyncReadableChunks(context, level);
  std::vector<Digest> named;
  for (const PublishItem& item : items) item.AddNamed(named);
  return at_.host.SyncOnly(context, level, named);
}

Status SharedPublisher::PublishAt(const Context& context, Durability level, std::vector<PublishItem> items) {
  Status first;
  for (int attempt = 0; !items.empty(); attempt++) {
    const uint64_t epoch_before = epoch_;
    const Status begun = attempt == 0 ? Status() : at_.host.BeginEpoch({});
    if (!begun.ok()) {
      items_.RequeueAll(items, begun.error());
      return begun;
    }
    epoch_ = at_.host.epoch();
    const bool may_be_of_one = attempt > 0 && epoch_ == epoch_before;
    const auto unreadable = SyncChunks(context, level, items);
    if (!unreadable.ok()) {
      items_.RequeueAll(items, unreadable.error());
      return unreadable.error();
    }
    FailUnreadable(*unreadable, items);
    std::vector<PublishItem> conflicts;
    Status committed = CommitBatches(items, may_be_of_one ? Batching::kOneByOne : Batching::kFull, conflicts);
    if (first.ok()) first = committed;
    items.clear();
    bool is_away = in_doubt_.has_value();
    for (PublishItem& item : conflicts) {
      if (is_away) {
        items_.Requeue(item, first.error());
        continue;
      }
      if (attempt == kConflictsMax) {
        items_.Fail(item, MakeError(ErrorCode::kBusy, "another host publishes the file all the time"));
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
    items_.RequeueAll(items, first.error());
    break;
  }
  return first;
}

Status SharedPublisher::CommitBatches(std::span<PublishItem> items, Batching batching,
                                      std::vector<PublishItem>& conflicts) {
  Status first;
  const kv::KvLimits limits = at_.kv.limits();
  while (!items.empty()) {
    const size_t count = batching == Batching::kFull ? CountOfBatch(items, limits) : 1;
    std::vector<PublishItem> batch(std::make_move_iterator(items.begin()),
                                   std::make_move_iterator(items.begin() + static_cast<ptrdiff_t>(count)));
    items = items.subspan(count);
    for (const PublishItem& item : batch) PublishItems::NoteSent(item);
    kv::Transaction transaction = items_.TransactionOf(batch, epoch_);
    auto revision = at_.kv.Commit({}, transaction);
    if (IsNoSpace(revision) && count > 1) {
      const Status alone = CommitBatches(batch, Batching::kOneByOne, conflicts);
      if (first.ok()) first = alone;
      if (!in_doubt_) continue;
      items_.RequeueAll(items, alone.error());
      return first;
    }
    const bool has_failed = !revision.ok() && !IsOfOneFile(revision.error().code) && !IsNoSpace(revision);
    if (has_failed && first.ok()) first = revision.error().WithContext("records of files");
    if (IsInDoubt(revision)) {
      for (const PublishItem& item : batch) PublishItems::NoteInDoubt(item);
      in_doubt_ = InDoubt{std::move(transaction), batch.front().session, std::move(batch)};
      // The store is away, and each of the others would wait for it as long.
      items_.RequeueAll(items, revision.error());
      return first;
    }
    Conclude(batch, revision, conflicts);
  }
  return first;
}

void SharedPublisher::Conclude(std::vector<PublishItem>& items, const Result<uint64_t>& revision,
                               std::vector<PublishItem>& conflicts) {
  for (PublishItem& item : items) {
    if (revision.ok()) {
      items_.Complete(item, *revision);
    } else if (revision.error().code == ErrorCode::kStale) {
      // First: who waits for the file must not find nothing left to publish, and the session alive.
      at_.host.EndSession(item.session);
      items_.Drop(item.inode, item.session, SessionLost(kNotPublished));
    } else if (IsNoSpace(revision) || (revision.error().code == ErrorCode::kCorrupt && items.size() == 1)) {
      items_.Fail(item, revision.error());
    } else if (IsOfOneFile(revision.error().code)) {
      PublishItems::NoteRefused(item);
      conflicts.push_back(std::move(item));
    } else {
      items_.Requeue(item, revision.error());
    }
  }
}

// Before the publish, which then compares the record that this leaves.
Status SharedPublisher::EndPrivileges(const PublishItem& item, const meta::FileState& state) {
  if (!item.kills) return {};
  const InodePtr& inode = item.inode;
  if (state.has_capability) {
    const Status removed = at_.names.RemoveXattr({}, inode->id, meta::kCapabilityXattr);
    if (!removed.ok() && removed.error().code != ErrorCode::kNoData) return removed;
  }
  constexpr uint32_t kSetIdBits = S_ISUID | S_ISGID;
  bool must_clear = (state.inode.mode & kSetIdBits) != 0 && item.kills == Kills::kSetIdToo;
  uint64_t revision = state.inode_revision;
  {
    MutexLock lock(inode->mutex);
    must_clear = must_clear && revision != inode->judged_revision;
  }
  if (must_clear) {
    meta::AttrChanges changes;
    changes.mode_cleared = kSetIdBits;
    CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.names.SetAttr({}, inode->id, changes));
    revision = attr.inode_revision;
  } else if ((state.inode.mode & kSetIdBits) != 0) {
    return {};
  }
  MutexLock lock(inode->mutex);
  inode->NoteJudged(revision);
  return {};
}

Result<std::optional<PublishItem>> SharedPublisher::Reconcile(PublishItem item) {
  const InodePtr& inode = item.inode;
  auto state = at_.names.ReadFile({}, inode->id, meta::Namespace::WithMarks::kYes);
  if (!state.ok() && state.error().code == ErrorCode::kCorrupt) {
    items_.Fail(item, state.error());
    return std::optional<PublishItem>();
  }
  if (!state.ok() && state.error().code != ErrorCode::kNotFound) {
    items_.Requeue(item, state.error());
    return state.error();
  }
  if (!state.ok()) {
    const Error why = MakeError(ErrorCode::kStale, "the file was removed on another host");
    items_.Drop(inode, item.session, why, PublishItems::Who::kWhoHasItOpen);
    return std::optional<PublishItem>();
  }
  if (item.session != at_.host.session()) {
    items_.Drop(inode, item.session, SessionLost(kNotPublished));
    return std::optional<PublishItem>();
  }
  if (Status ended = EndPrivileges(item, *state); !ended.ok()) {
    items_.Requeue(item, ended.error());
    return ended.error();
  }
  Status rebased;
  {
    MutexLock lock(inode->mutex);
    Content& content = *inode->content;
    if (PublishItems::IsCurrent(item, content)) {
      PublishItems::Withdraw(item, content);
      at_.host.NoteMarks(*state, content.shared());
      if (state->inode.nlink > 0) inode->in_trash = false;  // another host may have restored it
      if (state->record_revision != content.shared().base_revision) {
        rebased = Rebase(content, state->record, state->record_revision, at_.chunks);
        if (rebased.ok()) at_.streams.DropStoredFronts(inode);
      }
      if (rebased.ok()) {
        auto again = items_.Prepare(inode);
        if (again.ok()) return std::optional(std::move(*again));
        items_.NoteShortage(inode, again.error());  // it is in the list of the next round
        return std::optional<PublishItem>();
      }
    }
  }
  if (rebased.ok()) {
    items_.Requeue(item, SessionLost(kNotPublished));
  } else {
    items_.Fail(item, rebased.error().WithContext("what another host has written of the file cannot be read"));
  }
  return std::optional<PublishItem>();
}

}  // namespace cairnfs::fs
