#include "fs/marks.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kMarksPerTransaction = 32;

}  // namespace

Marks::Batch Marks::Prepare(std::span<const InodePtr> files, uint64_t session, After after) {
  Batch batch{{}, session, after, {}};
  {
    MutexLock lock(mutex_);
    batch.transaction.operation_id = fmt::format("mark/{}/{}/{}", host_.self(), session, ++operations_);
  }
  host_.AddSessionCompare(batch.transaction, session);
  for (const InodePtr& inode : files) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed) continue;
    SharedContent& shared = inode->content->shared();
    const bool is_needed = after == After::kNothing || !shared.is_marked;
    if (shared.session != session || !is_needed) continue;
    shared.marks_in_doubt++;
    batch.transaction.IfExists(meta::InodeKey(inode->id));
    host_.AddMark(batch.transaction, inode->id, session, shared.failure.value_or(""));
    batch.files.push_back(inode);
  }
  return batch;
}

// Once it is known what became of the transaction. Where the session has gone meanwhile, its files were dropped.
void Marks::Conclude(const Batch& batch, const Result<uint64_t>& revision) {
  for (const InodePtr& inode : batch.files) {
    MutexLock lock(inode->mutex);
    Content* content = inode->content.get();
    if (content == nullptr || !content->changed || content->shared().session != batch.session) continue;
    SharedContent& shared = content->shared();
    if (shared.marks_in_doubt > 0) shared.marks_in_doubt--;
    if (revision.ok()) shared.is_marked = true;
    if (batch.after == After::kPublish) content->must_publish = shared.is_asked_for = true;
  }
}

Result<uint64_t> Marks::Commit(const Context& context, Batch batch) {
  Result<uint64_t> revision = kv_.Commit(context, batch.transaction);
  if (IsInDoubt(revision)) {
    MutexLock lock(mutex_);
    in_doubt_.push_back(std::move(batch));
  } else {
    Conclude(batch, revision);
  }
  return revision;
}

Status Marks::Put(const Context& context, std::span<const InodePtr> files) {
  const uint64_t session = host_.session();
  if (session == 0) return {};
  for (size_t begin = 0, step = kMarksPerTransaction; begin < files.size();) {
    const auto some = files.subspan(begin, std::min(step, files.size() - begin));
    const Result<uint64_t> revision = Commit(context, Prepare(some, session, After::kNothing));
    if (IsInDoubt(revision)) return revision.error().WithContext("marks of unpublished files");
    // One of them was removed: each alone.
    const bool is_one = !revision.ok() && revision.error().code == ErrorCode::kConflict && step > 1;
    if (is_one) {
      step = 1;
      continue;
    }
    begin += step;
  }
  return {};
}

Status Marks::PutUntilPublished(const Context& context, const InodePtr& inode) {
  const uint64_t session = host_.session();
  if (session == 0) return NoSession();
  Batch batch = Prepare(std::span(&inode, 1), session, After::kPublish);
  if (batch.files.empty()) return {};
  const Result<uint64_t> revision = Commit(context, std::move(batch));
  return revision.ok() ? Status() : Status(revision.error());
}

Status Marks::ResolveDoubt() {
  std::vector<Batch> batches;
  {
    MutexLock lock(mutex_);
    batches.swap(in_doubt_);
  }
  Status first;
  for (Batch& batch : batches) {
    // What was dropped with its session can run no more: whether it did is nobody's concern.
    if (batch.session != host_.session()) continue;
    const Result<uint64_t> revision = Commit({}, std::move(batch));
    if (first.ok() && IsInDoubt(revision)) first = revision.error().WithContext("marks of unpublished files");
  }
  return first;
}

bool Marks::in_doubt() const {
  MutexLock lock(mutex_);
  return !in_doubt_.empty();
}

}  // namespace cairnfs::fs
