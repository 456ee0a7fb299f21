#include "fs/backing.h"

#include <algorithm>
#include <cassert>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

// What a file that grows borrows at a time.
constexpr uint64_t kGrowthBytes = 8 * kMiB;

Error NoMemoryToGrow() { return MakeError(ErrorCode::kNoSpace, "the pool has no memory for what it grows by"); }

}  // namespace

Result<std::unique_ptr<Backing>> Backing::Make(Parts parts) {
  CAIRNFS_ASSIGN_OR_RETURN(const BackingId id, parts.registry.Register(parts.file->fd()));
  return std::unique_ptr<Backing>(new Backing(std::move(parts), id));
}

Backing::~Backing() {
  parts_.registry.Unregister(id_);
  parts_.count--;
}

void Backing::NoteOpened() {
  open_count_++;
  used_at_ = Clock::Now();
}

void Backing::NoteReleased() {
  assert(open_count_ > 0);
  open_count_--;
}

bool Backing::IsUsed() {
  if (open_count_ > 0) return true;
  const auto used = parts_.file->IsUsed();
  if (used.ok()) return *used;
  spdlog::warn("whether a file in memory is mapped cannot be told: {}", used.error().message);
  return true;
}

// A file that shrank keeps what it has borrowed.
bool Backing::Grow(uint64_t size) {
  parts_.size = std::max(parts_.size, size);
  if (parts_.size <= parts_.loan.bytes()) return true;
  const uint64_t missing = parts_.size - parts_.loan.bytes();
  auto more = parts_.pool.Borrow(std::max(missing, kGrowthBytes));
  if (!more) more = parts_.pool.Borrow(missing);
  if (!more) return false;
  parts_.loan.Add(*std::move(more));
  return true;
}

void Backing::FallBehind(const Error& why) {
  if (std::exchange(is_behind_, true) || !IsUsed()) return;
  spdlog::warn("a file that is read past the daemon was changed, and the change is not seen there: {}", why.message);
}

void Backing::NoteWritten(uint64_t offset, ByteSpan data) {
  if (is_behind_) return;
  if (!Grow(offset + data.size())) {
    return FallBehind(NoMemoryToGrow());
  }
  if (const Status written = parts_.file->Write(offset, data); !written.ok()) FallBehind(written.error());
}

void Backing::NoteTruncated(uint64_t size) {
  if (is_behind_) return;
  parts_.size = std::min(parts_.size, size);
  // A longer file has a hole. The memory for a page of it is taken once somebody writes it, or reads it by a mapping.
  if (!Grow(size)) return FallBehind(NoMemoryToGrow());
  if (const Status cut = parts_.file->Truncate(size); !cut.ok()) FallBehind(cut.error());
}

void Backing::NotePunched(uint64_t begin, uint64_t end) {
  if (is_behind_ || begin >= end) return;
  if (const Status punched = parts_.file->Punch(begin, end - begin); !punched.ok()) FallBehind(punched.error());
}

}  // namespace cairnfs::fs
