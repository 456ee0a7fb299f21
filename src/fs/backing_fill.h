// BackingFill: writes all bytes of a file into a file in memory, which the kernel is to read in its place (FUSE
// passthrough).
//
// The kernel asks nobody about such a file, so it must be whole, and what the file's record says: each chunk comes from
// the chunk store, which verifies it. A file that is being written, or is changed meanwhile, is given up.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/context.h"
#include "fs/inode.h"
#include "io/backing_fs.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// One thread at a time.
class BackingFill {
 public:
  // `to` is empty. All outlive it. REQUIRES (unchecked): the inode is open, so its content stays in memory.
  BackingFill(store::ChunkStore& chunks, InodePtr inode, io::BackingFile& to)
      : chunks_(chunks), inode_(std::move(inode)), to_(to) {}

  // Blocks. kBusy: the file is open for writing, or differs from its record, or was changed meanwhile. kNoSpace: there
  // is no memory for it. kInterrupted: the context expired. Or why a chunk cannot be read. After an error `to` has a
  // part of the bytes, and is to be thrown away.
  Status Run(const Context& context);

  // Whether the file still has the bytes that were filled. `inode` is that of the constructor, so that the compiler
  // sees the lock. REQUIRES: Run has succeeded.
  bool IsCurrent(const InodePtr& inode) const REQUIRES_LOCK(inode->mutex);
  uint64_t size() const { return basis_.size; }

 private:
  // By what a change of the content is noticed.
  struct Basis {
    const Content* content = nullptr;
    uint64_t changes = 0;
    uint64_t revision = 0;  // of the record, among several hosts
    uint64_t size = 0;
    bool operator==(const Basis&) const = default;
  };
  static Basis BasisOf(const Content& content);
  static Status CheckClean(const Inode& inode) REQUIRES_LOCK(inode.mutex);
  Status CheckUnchanged() const REQUIRES_LOCK(inode_->mutex);
  Status Begin();
  // The extents of the range, whose pages of the recipe are fetched where they are missing.
  Result<std::vector<Extent>> ExtentsOf(uint64_t offset, uint64_t length);
  Status FillFrom(std::span<const Extent> extents, const Context& context);
  Status WriteExtent(const Extent& extent, const Result<store::ChunkData>& chunk);

  store::ChunkStore& chunks_;
  const InodePtr inode_;
  io::BackingFile& to_;
  Basis basis_;
};

}  // namespace cairnfs::fs
