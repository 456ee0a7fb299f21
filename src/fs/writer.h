// Writer: takes the bytes of write(2) and of the kernel's page cache, and changes ranges of files.
#pragma once

#include <atomic>

#include "fs/services.h"

namespace cairnfs::fs {

class Writer {
 public:
  explicit Writer(const Services& services) : at_(services) {}

  // The reply may be sent as soon as `done` is called, which is before the bytes are hashed: kNoSpace, kTooLarge, or
  // the error of an earlier failed write are reported here. Takes the data at once unless space is nearly out.
  void Write(FileSystem::WriteRequest request, Done<size_t> done);
  // The write was answered with this error and not given to Write: what the kernel drops then is known to be lost. Of
  // the data, which need not outlive the call, only the size counts.
  void NoteRefused(const FileSystem::WriteRequest& request, const Error& why);
  void Fallocate(HandleId handle, const FallocateRequest& request, Done<void> done, const Caller& caller = {});
  struct CopyRequest {
    HandleId from = 0;
    uint64_t from_offset = 0;
    HandleId to = 0;
    uint64_t to_offset = 0, length = 0;
  };
  void CopyRange(const CopyRequest& request, Done<size_t> done, const Caller& caller = {});
  uint64_t bytes_total() const { return bytes_total_; }

 private:
  using Request = FileSystem::WriteRequest;
  struct Target {
    HandlePtr handle;  // null: none is open any more
    InodePtr inode;
  };
  void ReserveAndWrite(Request request, const Target& target, Done<size_t> done);
  void Finish(const Request& request, const Target& target, Done<size_t> done);
  // Once it has no privileges that the write ends.
  void FinishPlain(const Request& request, const Target& target, Done<size_t> done);
  // True: the caller is to call Streams::BeginCut.
  Result<bool> Accept(const Request& request, const Target& target);
  Result<bool> AcceptInto(const Request& request, const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void GiveUp(const Request& request, const InodePtr& inode, const Error& why, const Done<size_t>& done);
  void LosePages(const Request& request, const InodePtr& inode, const Error& why);
  struct Copy {
    HandlePtr from, to;
    uint64_t from_offset = 0, to_offset = 0, length = 0;
  };
  Result<size_t> CopyNow(const Copy& copy, const Caller& caller);
  // The extents to copy, with pins; lowers the copy's length to what there is.
  Result<std::vector<Extent>> FindExtents(const Context& context, Copy& copy, std::vector<store::ChunkPin>& pins);

  const Services at_;
  std::atomic<uint64_t> bytes_total_{0};
};

}  // namespace cairnfs::fs
