#include "fs/backing_files.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "fs/backing_fill.h"
#include "fs/waits.h"

namespace cairnfs::fs {
namespace {

constexpr uint64_t kPressureBytes = 8 * kMiB;

}  // namespace

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

Status BackingFiles::Begin(const Kernel& kernel) {
  std::unique_ptr<TaskQueue> fills;
  try {
    fills = std::make_unique<TaskQueue>("fill", 1, TaskQueue::Priority::kBackground);
  } catch (const std::system_error& error) {
    return MakeError(ErrorCode::kUnavailable, error.what());
  }
  is_begun_ = true;
  MutexLock lock(mutex_);
  why_not_.clear();
  kernel_.emplace(kernel);
  fills_ = std::move(fills);
  return {};
}

void BackingFiles::NoteOff(std::string why) {
  MutexLock lock(mutex_);
  why_not_ = std::move(why);
}

void BackingFiles::End() {
  stop_.request_stop();
  std::unique_ptr<TaskQueue> fills;
  {
    MutexLock lock(mutex_);
    if (kernel_) why_not_ = "it is unmounted";
    kernel_.reset();
    fills = std::move(fills_);
  }
  fills.reset();
  AwaitFills();
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
  // The kernel may let go of the file a moment later: then it goes once its memory is wanted.
  if (inode->backing->is_behind() && !inode->backing->IsUsed()) inode->backing.reset();
}

void BackingFiles::NoteChanging(const InodePtr& inode) {
  if (inode->backing && !inode->backing->IsUsed()) inode->backing.reset();
}

Status BackingFiles::CheckWorth(const InodePtr& inode) const {
  const Content& content = *inode->content;
  if (content.changed) return MakeError(ErrorCode::kBusy, "the file has bytes that are not in its record");
  if (content.size < kSizeMin) return MakeError(ErrorCode::kNotSupported, "the file is small");
  if (content.extents.allocated_bytes() < content.size / 2) {
    return MakeError(ErrorCode::kNotSupported, "the file is more holes than bytes");
  }
  // Stores of its writers into a shared mapping would be seen late.
  if (inode->opened_for_update) {
    return MakeError(ErrorCode::kNotSupported, "the file was opened for reading and writing");
  }
  return {};
}

bool BackingFiles::BeginFill(InodeId id) {
  MutexLock lock(mutex_);
  if (!kernel_ || filling_.size() >= kFillsMax) return false;
  return filling_.insert(id).second;
}

void BackingFiles::EndFill(InodeId id) {
  MutexLock lock(mutex_);
  filling_.erase(id);
  fill_ended_.NotifyAll();
}

void BackingFiles::AwaitFills() {
  MutexLock lock(mutex_);
  while (!filling_.empty()) fill_ended_.Wait(mutex_);
}

void BackingFiles::FillSoon(InodeId id, uint32_t uid) {
  if (!BeginFill(id)) return;
  auto fill = [this, uid, held = std::make_shared<Held>(parts_, id)] {
    const Status filled = FillHeld(Context(), held->inode(), uid);
    EndFill(held->inode()->id);
    if (!filled.ok())
      spdlog::debug("inode {} stays with the daemon: {}", held->inode()->id.value, filled.error().message);
  };
  MutexLock lock(mutex_);
  if (fills_) return fills_->Post(std::move(fill));
  filling_.erase(id);
  fill_ended_.NotifyAll();
}

bool BackingFiles::PostFill(std::function<void()> task) {
  MutexLock lock(mutex_);
  if (!fills_) return false;
  fills_->Post(std::move(task));
  return true;
}

Status BackingFiles::Fill(const Context& context, InodeId id, uint32_t uid) {
  if (!kernel()) return MakeError(ErrorCode::kNotSupported, "the kernel reads no files past the daemon");
  if (!BeginFill(id)) return MakeError(ErrorCode::kBusy, "the file is being filled, or too many are");
  const Held held(parts_, id);
  const Status filled = FillHeld(context, held.inode(), uid);
  EndFill(id);
  return filled;
}

Status BackingFiles::FillHeld(const Context& context, const InodePtr& inode, uint32_t uid) {
  const auto kernel = this->kernel();
  if (!kernel) return CallerIsGone();
  Wanted wanted{.uid = uid};
  {
    MutexLock lock(inode->mutex);
    if (inode->backing && inode->backing->is_behind() && !inode->backing->IsUsed()) inode->backing.reset();
    if (inode->backing && inode->backing->is_behind()) {
      return MakeError(ErrorCode::kBusy, "who has it open reads older bytes of it past the daemon");
    }
    if (inode->backing) return {};
    CAIRNFS_RETURN_IF_ERROR(parts_.load(context, inode));
    if (Status worth = CheckWorth(inode); !worth.ok()) {
      if (worth.error().code == ErrorCode::kNotSupported) inode->ForgetReads();
      return worth;
    }
    wanted.size = inode->content->size;
  }
  const Status filled = FillAndInstall(context.WithStop(stop_.get_token()), inode, *kernel, wanted);
  (filled.ok() ? filled_total_ : failed_total_)++;
  MutexLock lock(inode->mutex);
  inode->ForgetReads();  // also after a failure: it is tried again once the file was read through again
  return filled;
}

Status BackingFiles::FillAndInstall(const Context& context, const InodePtr& inode, const Kernel& kernel,
                                    const Wanted& wanted) {
  CAIRNFS_RETURN_IF_ERROR(AdmitOne(kernel.files_max));
  CAIRNFS_ASSIGN_OR_RETURN(io::MemoryLoan loan, Borrow(wanted.size, wanted.uid));
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<io::BackingFile> file, kernel.memory.MakeFile());
  BackingFill fill(parts_.chunks, inode, *file);
  CAIRNFS_RETURN_IF_ERROR(fill.Run(context));
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<Backing> backing, Backing::Make({.file = std::move(file),
                                                                            .loan = std::move(loan),
                                                                            .size = wanted.size,
                                                                            .uid = wanted.uid,
                                                                            .pool = parts_.pool,
                                                                            .registry = kernel.registry,
                                                                            .count = count_}));
  {
    MutexLock inode_lock(inode->mutex);
    if (!fill.IsCurrent(inode) || fill.size() != wanted.size) {
      return MakeError(ErrorCode::kBusy, "the file was changed meanwhile");
    }
    MutexLock lock(mutex_);
    if (!kernel_) return CallerIsGone();
    inode->backing = std::move(backing);
    std::erase_if(listed_, [](const auto& item) { return item.second.expired(); });
    listed_.insert_or_assign(inode->id, inode);
  }
  kernel.registry.ForgetAttributes(inode->id);
  return {};
}

Status BackingFiles::AdmitOne(uint64_t files_max) {
  while (count_ >= files_max) {
    if (!RetireOne()) return MakeError(ErrorCode::kNoSpace, "as many files are in use as may be in memory");
  }
  return {};
}

uint64_t BackingFiles::RoomOf(uint32_t uid) const {
  const uint64_t room = parts_.pool.lendable_bytes();
  return uid == 0 ? room : room / kUserDivisor;
}

uint64_t BackingFiles::BytesOf(uint32_t uid) const {
  uint64_t bytes = 0;
  for (const InodePtr& inode : Listed()) {
    MutexLock lock(inode->mutex);
    if (inode->backing && inode->backing->uid() == uid) bytes += inode->backing->bytes();
  }
  return bytes;
}

Result<io::MemoryLoan> BackingFiles::Borrow(uint64_t bytes, uint32_t uid) {
  io::BufferPool& pool = parts_.pool;
  const uint64_t room = pool.lendable_bytes() - pool.lendable_bytes() / kGrowthDivisor;
  const Error full = MakeError(ErrorCode::kNoSpace, "the pool has no memory to lend for it");
  if (bytes > std::min(room, RoomOf(uid))) return full;
  while (BytesOf(uid) + bytes > RoomOf(uid)) {
    if (!RetireOne(uid)) return MakeError(ErrorCode::kNoSpace, "files of its user that are in use have their share");
  }
  const auto borrow = [&]() -> std::optional<io::MemoryLoan> {
    if (uint64_t{pool.lent_count()} * io::BufferPool::kBufferBytes + bytes > room) return std::nullopt;
    return pool.Borrow(bytes);
  };
  auto loan = borrow();
  if (!loan) {
    parts_.make_room(bytes);
    loan = borrow();
  }
  while (!loan && RetireOne()) loan = borrow();
  if (loan) return *std::move(loan);
  return full;
}

bool BackingFiles::RetireOne(std::optional<uint32_t> uid) {
  std::vector<std::pair<Clock::time_point, InodePtr>> unopened;
  for (InodePtr& inode : Listed()) {
    if (!inode->mutex.TryLock()) continue;
    const Backing* backing = inode->backing.get();
    const bool may_go = backing != nullptr && backing->open_count() == 0 && (!uid || backing->uid() == *uid);
    const auto used_at = may_go ? backing->used_at() : Clock::time_point();
    inode->mutex.Unlock();
    if (may_go) unopened.emplace_back(used_at, std::move(inode));
  }
  std::sort(unopened.begin(), unopened.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [used_at, inode] : unopened) {
    if (!inode->mutex.TryLock()) continue;
    std::unique_ptr<Backing> retired;  // its memory goes without the lock, which takes a while
    if (inode->backing && !inode->backing->IsUsed()) retired = std::move(inode->backing);
    inode->mutex.Unlock();
    if (retired) return true;
  }
  return false;
}

void BackingFiles::NotePressure() {
  if (parts_.pool.lent_count() == 0 || is_pressure_posted_.exchange(true)) return;
  parts_.post([this] {
    is_pressure_posted_ = false;
    // What is in use takes from what the cache of chunks counted on.
    if (!RetireOne()) parts_.make_room(kPressureBytes);
  });
}

PassthroughStatus BackingFiles::status() const {
  PassthroughStatus status{.why_not = {},
                           .files = count_,
                           .bytes = uint64_t{parts_.pool.lent_count()} * io::BufferPool::kBufferBytes,
                           .opens_total = opens_total_,
                           .filled_total = filled_total_,
                           .failed_total = failed_total_};
  MutexLock lock(mutex_);
  status.why_not = why_not_;
  return status;
}

}  // namespace cairnfs::fs
