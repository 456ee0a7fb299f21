// Writer: takes the bytes of write(2) and of the kernel's page cache, and changes ranges of files.
#pragma once

#include <atomic>
#include <optional>

#include "fs/services.h"

namespace cairnfs::fs {

class Writer {
 public:
  explicit Writer(const Services& services) : at_(services) {}

  // Calls `done` before the bytes are hashed; the reply may be sent then. kNoSpace, kTooLarge, or the error of an
  // earlier write that failed. Takes the data at once, unless the disk is nearly full.
  void Write(FileSystem::WriteRequest request, Done<size_t> done);
  // The write was refused with this error before it came to Write. If it is of the page cache, the kernel drops the
  // bytes, and they count as lost. Only the size of the data is used; it need not outlive the call.
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
  uint64_t AvailableFor(uint64_t bytes);
  void ReserveAndWrite(Request request, const Target& target, Done<size_t> done);
  void Finish(const Request& request, const Target& target, Done<size_t> done);
  // The same for a file without set-id bits and capabilities, which a write would remove.
  void FinishPlain(const Request& request, const Target& target, Done<size_t> done);
  enum class Accepted {
    kTaken,
    kTakenAndCutIsDue,  // the caller is to call Streams::BeginCut
    kLacksCredit,       // of the quota; nothing is taken
  };
  // `accepted`: what Accept has given, but kLacksCredit.
  void FinishAccepted(const Request& request, const Target& target, const Result<Accepted>& accepted,
                      Done<size_t> done);
  static InodeId QuotaOf(const InodePtr& inode);  // 0: none
  // As many bytes as a write may need of it.
  static uint64_t ChargedMost(const Request& request, const InodePtr& inode);
  // The zeros that are laid before it.
  static uint64_t ZerosBefore(const Request& request, const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  // How bytes count for a quota: all of them, or those that the file does not have yet, which takes longer to find out,
  // or none before the next look.
  enum class Charge { kAsIfNew, kWhatGrows, kNothing };
  // False: there is not enough credit.
  Result<bool> ChargeQuota(const Request& request, const InodePtr& inode, Charge charge) REQUIRES_LOCK(inode->mutex);
  Result<Accepted> Accept(const Request& request, const Target& target, Charge charge);
  Result<bool> AcceptInto(const Request& request, const InodePtr& inode) REQUIRES_LOCK(inode->mutex);
  void GiveUp(const Request& request, const InodePtr& inode, const Error& why, const Done<size_t>& done);
  void LosePages(const Request& request, const InodePtr& inode, const Error& why);
  struct Copy {
    HandlePtr from, to;
    uint64_t from_offset = 0, to_offset = 0, length = 0;
    Charge charge = Charge::kAsIfNew;
  };
  // nullopt: there is not enough credit of the quota, and nothing is copied.
  Result<std::optional<size_t>> CopyNow(const Copy& copy, const Caller& caller);
  // The extents to copy, with pins; lowers the copy's length to what there is.
  Result<std::vector<Extent>> FindExtents(const Context& context, Copy& copy, std::vector<store::ChunkPin>& pins);

  const Services at_;
  std::atomic<uint64_t> bytes_total_{0};
};

}  // namespace cairnfs::fs
