// Backing: the file in memory that the kernel reads and maps in place of one inode's bytes (FUSE passthrough).
//
// It has the file's bytes at every moment. So what changes the file on this host changes it too, before the change is
// answered, and in the same order: who reads past the daemon sees a write as everybody else does. Where that fails, as
// there is no memory for what the file grows by, it is behind: who has it open goes on with what it has, and nobody
// gets it any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/clock.h"
#include "fs/backing_registry.h"
#include "io/backing_fs.h"
#include "io/buffer_pool.h"

namespace cairnfs::fs {

// Guarded by the lock of its inode, which owns it.
class Backing {
 public:
  struct Parts {
    std::unique_ptr<io::BackingFile> file;  // has all `size` bytes
    io::MemoryLoan loan;                    // of its memory
    uint64_t size = 0;
    uint32_t uid = 0;  // for whom it was filled
    // Outlive it:
    io::BufferPool& pool;
    BackingRegistry& registry;
    std::atomic<uint64_t>& count;  // of those that there are
  };
  // Registers the file. Why the kernel does not take it.
  static Result<std::unique_ptr<Backing>> Make(Parts parts);
  // Takes the file from the kernel. REQUIRES: nobody has it open, or the connection to the kernel has ended. Who maps
  // it keeps its memory.
  ~Backing();
  Backing(const Backing&) = delete;

  // An open that is answered with id(); until its release, or the kernel has not taken the answer.
  void NoteOpened();
  void NoteReleased();
  BackingId id() const { return id_; }
  uint32_t uid() const { return parts_.uid; }
  uint64_t open_count() const { return open_count_; }
  Clock::time_point used_at() const { return used_at_; }  // the last open
  // Whether somebody has it open, or maps it. Where that cannot be told it counts as used.
  bool IsUsed();
  uint64_t bytes() const { return parts_.loan.bytes(); }  // that the pool does without

  // The file was changed.
  void NoteWritten(uint64_t offset, ByteSpan data);
  void NoteTruncated(uint64_t size);
  void NotePunched(uint64_t begin, uint64_t end);
  // Its bytes are not the file's any more.
  void FallBehind(const Error& why);
  bool is_behind() const { return is_behind_; }

 private:
  Backing(Parts parts, BackingId id) : parts_(std::move(parts)), id_(id), used_at_(Clock::Now()) { parts_.count++; }
  bool Grow(uint64_t size);

  Parts parts_;
  const BackingId id_;
  uint64_t open_count_ = 0;
  Clock::time_point used_at_;
  bool is_behind_ = false;
};

}  // namespace cairnfs::fs
