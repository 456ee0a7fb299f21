#include "fs/dirty_files.h"

#include <algorithm>
#include <cassert>
#include <unordered_set>
#include <utility>

#include "base/failpoint.h"

namespace cairnfs::fs {
namespace {

Failpoint round_drained("fs.round_drained", Failpoint::Kind::kKill);

// A file that stays open for writing is left out of background rounds until this many of its chunks are unpublished.
constexpr size_t kPinsMax = 8192;

// What a round stores on its own thread, however many files it is of.
constexpr uint64_t kStoredHereBytesMax = 32 * kKiB;

// Of a record with as many extents as it can hold; each has a digest, and four numbers that are mostly short.
constexpr uint64_t kRecordBytesMax = 64 + kInlineExtentsMax * 48;

// The size that a record may have now: bytes beyond the last record's size count only up to the first one that no
// extent covers and that was written, so that a crash never shows a file longer than its durable bytes. Where older
// bytes of the range are in the extents, those are what the sync point covers. Up to the size at the freeze, what is
// not stored was written after it: there the file was as the extents have it, or a hole.
uint64_t DurableSize(const Content& content) {
  std::optional<uint64_t> limit;
  uint64_t floor = content.published_size;
  auto consider = [&](uint64_t begin, uint64_t end) {
    begin = std::max(begin, floor);
    if (limit) end = std::min(end, *limit);
    if (begin >= end) return;
    uint64_t position = begin;
    content.extents.ForEach(begin, end - begin, [&](const Extent& extent) {
      if (extent.offset <= position) position = extent.end();
    });
    if (position < end) limit = position;
  };
  for (const auto& range : content.lost) consider(range.begin, range.end);
  floor = std::max(floor, content.round_size);
  content.overlay.ForEachUnstored(consider);
  for (const auto& [id, chunk] : content.flying) consider(chunk->offset, chunk->offset + chunk->size);
  return limit ? std::min(content.size, *limit) : content.size;
}

Status WaitDrained(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  Content& content = *inode->content;
  for (;;) {
    if (content.flying.empty() || content.flying.begin()->first > content.drain_target) return {};
    auto landed = content.landed.find(content.flying.begin()->first);
    if (landed != content.landed.end() && landed->second.failure) {
      return landed->second.failure->WithContext("bytes of inode " + std::to_string(inode->id.value));
    }
    inode->changed_state.Wait(inode->mutex);
  }
}

// By their unpublished bytes.
void SortBySize(std::vector<InodePtr>& files) {
  std::vector<std::pair<uint64_t, InodePtr>> sized;
  for (InodePtr& inode : files) {
    MutexLock lock(inode->mutex);
    sized.emplace_back(inode->content ? inode->content->UnsavedBytes() : 0, inode);
  }
  std::stable_sort(sized.begin(), sized.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  files.clear();
  for (auto& [bytes, inode] : sized) files.push_back(std::move(inode));
}

}  // namespace

void DirtyFiles::Add(const InodePtr& inode) {
  assert(!inode->content->changed);
  inode->content->changed = true;
  inode->content->changes++;
  table_.Hold(inode->id);
  Requeue(inode);
}

void DirtyFiles::Requeue(const InodePtr& inode) {
  count_++;
  MutexLock lock(mutex_);
  dirty_.push_back(inode);
}

uint64_t DirtyFiles::RecordBytesMax() const { return count_ * kRecordBytesMax; }

void DirtyFiles::ClearTaken() {
  count_ -= taken_.size();
  MutexLock lock(mutex_);
  taken_.clear();
}

bool DirtyFiles::empty() const {
  MutexLock lock(mutex_);
  return dirty_.empty() && freeze_points_.empty();
}

bool DirtyFiles::IsReady(const Inode& inode) {
  const Content& content = *inode.content;
  return content.must_publish || inode.write_open_count == 0 || content.pins.size() > kPinsMax;
}

void DirtyFiles::AddFreezePoint() {
  std::vector<InodePtr> dirty, taken;
  {
    MutexLock lock(mutex_);
    dirty = dirty_;
    taken = taken_;
  }
  std::unordered_set<InodePtr> closed;
  for (const InodePtr& inode : dirty) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed || !IsReady(*inode)) continue;
    closed.insert(inode);
  }
  // What was closed since the round took its file over comes after that.
  std::vector<InodePtr> files;
  for (const InodePtr& inode : taken) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed || !inode->content->must_publish) continue;
    table_.Hold(inode->id);
    files.push_back(inode);
  }
  count_ += files.size();
  MutexLock lock(mutex_);
  const auto is_open = [&closed](const InodePtr& inode) { return !closed.contains(inode); };
  const auto first_closed = std::stable_partition(dirty_.begin(), dirty_.end(), is_open);
  files.insert(files.end(), first_closed, dirty_.end());
  dirty_.erase(first_closed, dirty_.end());
  for (const InodePtr& inode : files) inode->freeze_points++;
  freeze_points_.push_back(std::move(files));
}

void DirtyFiles::DropFreezePoint(size_t index) {
  MutexLock lock(mutex_);
  assert(index < freeze_points_.size());
  const auto files = freeze_points_.begin() + static_cast<ptrdiff_t>(index);
  const bool is_last = index + 1 == freeze_points_.size();
  auto& next = is_last ? dirty_ : *(files + 1);
  next.insert(next.begin(), files->begin(), files->end());
  for (const InodePtr& inode : *files) inode->freeze_points -= is_last ? 1 : 0;
  freeze_points_.erase(files);
}

std::vector<InodeId> DirtyFiles::Dirty() const {
  MutexLock lock(mutex_);
  std::vector<InodeId> inodes;
  for (const InodePtr& inode : dirty_) inodes.push_back(inode->id);
  return inodes;
}

bool DirtyFiles::Selects(const Selection& selection, const Inode& inode) {
  if (selection.among && !selection.among->contains(inode.id)) return false;
  return selection.which != Which::kClosed || IsReady(inode);
}

std::vector<InodePtr> DirtyFiles::TakeOver(const Selection& selection) {
  std::vector<InodePtr> dirty, left_out, gone;
  {
    MutexLock lock(mutex_);
    assert((selection.which == Which::kToPoint) == !freeze_points_.empty());
    if (selection.which == Which::kToPoint) {
      dirty = std::move(freeze_points_.front());
      freeze_points_.pop_front();
      for (const InodePtr& inode : dirty) inode->freeze_points--;
    } else {
      dirty.swap(dirty_);
    }
  }
  left_.clear();
  if (selection.bytes_max != UINT64_MAX) SortBySize(dirty);
  uint64_t taken_bytes = 0;
  for (const InodePtr& inode : dirty) {
    MutexLock lock(inode->mutex);
    // Dropped meanwhile, because its session was lost; perhaps changed again since, and then twice in the list.
    if (!inode->content || !inode->content->changed || inode->content->in_round) {
      gone.push_back(inode);
      continue;
    }
    Content& content = *inode->content;
    const bool is_selected = Selects(selection, *inode);
    const uint64_t bytes = content.UnsavedBytes();
    const bool fits = taken_bytes == 0 || taken_bytes + bytes <= selection.bytes_max;
    if (table_.IsGone(inode)) {
      // It went before this freeze: nobody is to see it any more.
      streams_.Discard(inode);
      content.pins.clear();
      content.changed = false;
      gone.push_back(inode);
    } else if (is_selected && fits) {
      taken_bytes += bytes;
      content.in_round = true;
      content.round_size = content.size;
      content.must_publish = false;
      taken_.push_back(inode);
    } else {
      if (is_selected) left_.insert(inode->id);
      left_out.push_back(inode);
    }
  }
  count_ -= gone.size();
  MutexLock lock(mutex_);
  dirty_.insert(dirty_.end(), left_out.begin(), left_out.end());
  has_left_out_ = !dirty_.empty() || !freeze_points_.empty();
  return gone;
}

// A file for which there was no space, and which was deleted since, holds nobody up any more.
bool DirtyFiles::DiscardIfGone(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (!table_.IsGone(inode)) return false;
    streams_.Discard(inode);
    inode->content->pins.clear();
    inode->content->changed = inode->content->in_round = false;
    inode->changed_state.NotifyAll();
  }
  table_.Unhold(inode);
  return true;
}

std::vector<DirtyFiles::Undrained> DirtyFiles::Drain() {
  uint64_t here_bytes_max = kStoredHereBytesMax;
  if (goes_first()) {
    // The one that is asked for last is first then.
    for (auto inode = taken_.rbegin(); inode != taken_.rend(); ++inode) {
      streams_.Drain(*inode, here_bytes_max, Streams::Turn::kFirst);
    }
  } else {
    for (const InodePtr& inode : taken_) streams_.Drain(inode, here_bytes_max, Streams::Turn::kInOrder);
  }
  // Bytes and recipes that have no space must not hold up the names: among them are the deletions that make space.
  std::vector<Undrained> undrained;
  std::vector<InodePtr> kept;
  for (const InodePtr& inode : taken_) {
    Status drained = WaitDrained(inode);
    if (!drained.ok() && DiscardIfGone(inode)) {
      count_--;
      continue;
    }
    kept.push_back(inode);
    if (drained.ok()) continue;
    shortage = drained.error();
    bytes_lacked = true;
    undrained.push_back({inode, drained.error()});
    MutexLock lock(inode->mutex);
    inode->content->round_size = 0;
    inode->content->must_publish = true;  // by the next round, whoever has it open
  }
  {
    MutexLock lock(mutex_);
    taken_.swap(kept);
  }
  round_drained.Pass();
  return undrained;
}

Result<meta::FileRecord> DirtyFiles::MakeRecord(const InodePtr& inode) {
  Content& content = *inode->content;
  if (!content.loss_told && inode->error.last()) loss = inode->error.last();
  content.loss_told = true;
  const uint64_t durable_size = DurableSize(content);  // before holes are filled
  ChunkSink sink{chunks_, content.owner, content.pins};
  uint64_t replaced_bytes = merges_.Merge(content, durable_size, sink);
  auto recipe = content.extents.Store(sink, replaced_bytes);
  if (replaced_bytes > 0) streams_.NoteReplaced(replaced_bytes);
  if (!recipe.ok()) {
    // The file stays as it was recorded last, and comes again: no other waits for it.
    streams_.NoteRecipeError(inode, recipe.error());
    bytes_lacked = true;
    content.in_round = false;
    content.must_publish = true;
    Requeue(inode);
    inode->changed_state.NotifyAll();
    return recipe.error();
  }
  Streams::ForgetRecipeError(inode);
  meta::FileRecord record;
  record.size = durable_size;
  record.allocated_bytes = content.extents.allocated_bytes();
  record.mtime = content.mtime;
  record.ctime = content.ctime;
  record.quota = content.quota;
  record.recipe = recipe->Encode();
  return record;
}

// Of one that is removed, whoever has it open counts what it has; what lies in the trash counts not at all.
std::optional<kv::KvWrite> UsageWrite(const Inode& inode, const meta::FileRecord& record) {
  if (record.quota.value != 0 && !inode.unlinked && !inode.in_trash) return meta::UsageOf(inode.id, record);
  if (!inode.content->quota_is_set && record.quota.value == 0) return std::nullopt;
  return kv::KvWrite{meta::UsageKey(inode.id), std::nullopt};
}

void DirtyFiles::Release(const InodePtr& inode) {
  {
    MutexLock lock(inode->mutex);
    if (inode->content) inode->content->unrecorded = false;
    if (inode->content && inode->open_count == 0 && !inode->content->changed && inode->content->idle()) {
      streams_.RemoveRange(inode, 0, kFileSizeMax);
      inode->content.reset();
      table_.contents_dropped++;
    }
  }
  table_.Unhold(inode);
}

void DirtyFiles::NoteFailed(InodeId inode) {
  MutexLock lock(mutex_);
  failed_.insert(inode);
}

// Nullopt: it is published or dropped since, and forgotten here.
std::optional<Error> DirtyFiles::WhyFailed(InodeId id) {
  const InodePtr inode = table_.Find(id);
  if (inode) {
    MutexLock lock(inode->mutex);
    if (inode->content && inode->content->changed && inode->content->publish_error) {
      return inode->content->publish_error;
    }
    MutexLock list(mutex_);
    failed_.erase(id);
    return std::nullopt;
  }
  MutexLock list(mutex_);
  failed_.erase(id);
  return std::nullopt;
}

std::map<InodeId, Error> DirtyFiles::Failed() {
  std::set<InodeId> known;
  {
    MutexLock lock(mutex_);
    known = failed_;
  }
  std::map<InodeId, Error> files;
  for (InodeId id : known) {
    if (auto why = WhyFailed(id)) files.emplace(id, *std::move(why));
  }
  return files;
}

}  // namespace cairnfs::fs
