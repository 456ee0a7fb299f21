// OpenFiles: making, opening, syncing and closing files. FileSystem documents each function.
#pragma once

#include <atomic>
#include <string_view>

#include "fs/services.h"

namespace cairnfs::fs {

class OpenFiles {
 public:
  explicit OpenFiles(const Services& services) : at_(services) {}

  Result<FileSystem::Created> Create(const Context& context, InodeId parent, std::string_view name,
                                     const meta::CreateParams& params, const OpenFlags& flags);
  void Open(InodeId inode, const OpenFlags& flags, Done<HandleId> done, const Caller& caller);
  void Flush(const Closing::Descriptor& closed, Done<void> done, const Caller& caller);
  void Release(HandleId handle);
  void Fsync(HandleId handle, InodeId inode, Done<void> done, const Caller& caller);
  uint64_t count() const { return count_; }

 private:
  // An inode that an open holds while it has no handle yet: should its last name go meanwhile, its bytes stay.
  class Held;

  HandleId AddHandle(const InodePtr& inode, const OpenFlags& flags) REQUIRES_LOCK(inode->mutex);

  const Services at_;
  std::atomic<uint64_t> count_{0};
};

// After a sync point: what the round that made it did not make durable of this file.
Status CheckSynced(const HostSession& session, Handle& handle);

}  // namespace cairnfs::fs
