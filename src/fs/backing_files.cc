#include "fs/backing_files.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fs/backing_fill.h"
#include "fs/waits.h"

namespace cairnfs::fs {

class BackingFiles::Held {
 public:
  Held(const Parts& parts, InodeId id) : parts_(parts), inode_(parts.table.Hold(id)) {
    MutexLock lock(inode_->mutex);
    inode_->open_count++;
  }
  ~Held() {
    {
      MutexLock lock(inode_->mutex);
      inode_->open_count--;
      parts_.drop_if_unused(inode_);
    }
    parts_.table.Unhold(inode_);
  }
  Held(const Held&) = delete;
  const InodePtr& inode() const { return inode_; }

 private:
  const Parts& parts_;
  const InodePtr inode_;
};

void BackingFiles::Begin(const Kernel& kernel) {
  is_begun_ = true;
  MutexLock lock(mutex_);
  kernel_.emplace(kernel);
  fills_ = std::make_unique<TaskQueue>("fill", 1, TaskQueue::Priority::kBackground);
}

void BackingFiles::End() {
  stop_.request_stop();
  std::unique_ptr<TaskQueue> fills;
  {
    MutexLock lock(mutex_);
    kernel_.reset();
    fills = std::move(fills_);
  }
  fills.reset();
  for (const InodePtr& inode : Listed()) {
    MutexLock lock(inode->mutex);
    inode->backing.reset();
  }
  MutexLock lock(mutex_);
  listed_.clear();
}

std::optional<BackingFiles::Kernel> BackingFiles::kernel() const {
  MutexLock lock(mutex_);
  return kernel_;
}

std::vector<InodePtr> BackingFiles::Listed() const {
  std::vector<InodePtr> inodes;
  MutexLock lock(mutex_);
  for (const auto& [id, listed] : listed_) {
    if (InodePtr inode = listed.lock()) inodes.push_back(std::move(inode));
  }
  return inodes;
}

BackingId BackingFiles::NoteOpened(const InodePtr& inode) {
  if (!inode->backing || inode->backing->is_behind()) return 0;
  inode->backing->NoteOpened();
  opens_total_++;
  return inode->backing->id();
}

void BackingFiles::NoteReleased(const InodePtr& inode) {
  if (!inode->backing) return;  // after End
  inode->backing->NoteReleased();
  if (inode->backing->is_behind() && !inode->backing->IsUsed()) inode->backing.reset();
}

void BackingFiles::NoteChanging(const InodePtr& inode) {
  if (inode->backing && !inode->backing->IsUsed()) inode->backing.reset();
}

Status BackingFiles::CheckWorth(const InodePtr& inode) const {
  if (!inode->content) return MakeError(ErrorCode::kBusy, "the file's content is not in memory");
  if (inode->content->size >= kSizeMin) return {};
  return MakeError(ErrorCode::kNotSupported, "the file is small");
}

bool BackingFiles::BeginFill(InodeId id) {
  MutexLock lock(mutex_);
  if (!kernel_ || filling_.size() >= kFillsMax) return false;
  return filling_.insert(id).second;
}

void BackingFiles::EndFill(InodeId id) {
  MutexLock lock(mutex_);
  filling_.erase(id);
}

void BackingFiles::FillSoon(InodeId id) {
  if (!BeginFill(id)) return;
  auto fill = [this, held = std::make_shared<Held>(parts_, id)] {
    const Status filled = FillHeld(Context(), held->inode());
    EndFill(held->inode()->id);
    if (!filled.ok())
      spdlog::debug("inode {} stays with the daemon: {}", held->inode()->id.value, filled.error().message);
  };
  MutexLock lock(mutex_);
  if (fills_) return fills_->Post(std::move(fill));
  filling_.erase(id);
}

Status BackingFiles::Fill(const Context& context, InodeId id) {
  if (!kernel()) return MakeError(ErrorCode::kNotSupported, "the kernel reads no files past the daemon");
  if (!BeginFill(id)) return MakeError(ErrorCode::kBusy, "the file is being filled, or too many are");
  const Held held(parts_, id);
  const Status filled = FillHeld(context, held.inode());
  EndFill(id);
  return filled;
}

Status BackingFiles::FillHeld(const Context& context, const InodePtr& inode) {
  const auto kernel = this->kernel();
  if (!kernel) return CallerIsGone();
  uint64_t size = 0;
  {
    MutexLock lock(inode->mutex);
    if (inode->backing && inode->backing->is_behind() && !inode->backing->IsUsed()) inode->backing.reset();
    if (inode->backing && inode->backing->is_behind()) {
      return MakeError(ErrorCode::kBusy, "who has it open reads older bytes of it past the daemon");
    }
    if (inode->backing) return {};
    CAIRNFS_RETURN_IF_ERROR(CheckWorth(inode));
    size = inode->content->size;
  }
  const Status filled = FillAndInstall(context.WithStop(stop_.get_token()), inode, *kernel, size);
  (filled.ok() ? filled_total_ : failed_total_)++;
  return filled;
}

Status BackingFiles::FillAndInstall(const Context& context, const InodePtr& inode, const Kernel& kernel,
                                    uint64_t size) {
  CAIRNFS_ASSIGN_OR_RETURN(io::MemoryLoan loan, Borrow(size));
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<io::BackingFile> file, kernel.memory.MakeFile());
  BackingFill fill(parts_.chunks, inode, *file);
  CAIRNFS_RETURN_IF_ERROR(fill.Run(context));
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<Backing> backing, Backing::Make({.file = std::move(file),
                                                                            .loan = std::move(loan),
                                                                            .size = size,
                                                                            .pool = parts_.pool,
                                                                            .registry = kernel.registry}));
  MutexLock inode_lock(inode->mutex);
  if (!fill.IsCurrent(inode) || fill.size() != size) {
    return MakeError(ErrorCode::kBusy, "the file was changed meanwhile");
  }
  MutexLock lock(mutex_);
  if (!kernel_) return CallerIsGone();
  inode->backing = std::move(backing);
  std::erase_if(listed_, [](const auto& item) { return item.second.expired(); });
  listed_.insert_or_assign(inode->id, inode);
  return {};
}

Result<io::MemoryLoan> BackingFiles::Borrow(uint64_t bytes) {
  auto loan = parts_.pool.Borrow(bytes);
  if (!loan && bytes <= parts_.pool.lendable_bytes()) {
    parts_.make_room(bytes);
    loan = parts_.pool.Borrow(bytes);
    while (!loan && RetireOne()) loan = parts_.pool.Borrow(bytes);
  }
  if (loan) return *std::move(loan);
  return MakeError(ErrorCode::kNoSpace, "the pool has no memory to lend for it");
}

bool BackingFiles::RetireOne() {
  std::vector<std::pair<Clock::time_point, InodePtr>> unopened;
  for (InodePtr& inode : Listed()) {
    MutexLock lock(inode->mutex);
    if (!inode->backing || inode->backing->open_count() > 0) continue;
    const auto used_at = inode->backing->used_at();
    lock.Unlock();
    unopened.emplace_back(used_at, std::move(inode));
  }
  std::sort(unopened.begin(), unopened.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [used_at, inode] : unopened) {
    MutexLock lock(inode->mutex);
    if (!inode->backing || inode->backing->IsUsed()) continue;
    inode->backing.reset();
    return true;
  }
  return false;
}

bool BackingFiles::IsBacked(InodeId id) {
  if (!is_begun_) return false;
  const InodePtr inode = parts_.table.Find(id);
  if (!inode) return false;
  MutexLock lock(inode->mutex);
  return inode->backing != nullptr;
}

BackingFiles::Counts BackingFiles::counts() const {
  Counts counts{.filled_total = filled_total_, .failed_total = failed_total_, .opens_total = opens_total_};
  for (const InodePtr& inode : Listed()) {
    MutexLock lock(inode->mutex);
    if (!inode->backing) continue;
    counts.files++;
    counts.bytes += inode->backing->bytes();
  }
  return counts;
}

}  // namespace cairnfs::fs
