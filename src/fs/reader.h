// Reader: answers reads from the overlay and the chunk store, and reads ahead.
#pragma once

#include <atomic>
#include <memory>

#include "fs/services.h"

namespace cairnfs::fs {

class Reader {
 public:
  explicit Reader(const Services& services) : at_(services), update_atime_(services.options.update_atime) {}
  // Waits for the reads in flight. Threads of the chunk store answer them, and these outlive this object.
  void AwaitRunning();

  // Bytes in [offset, offset + size) up to the end of the file, as slices that keep their memory alive.
  // kInterrupted: the caller was killed while the read waited for hosts that do not answer. kBusy: the file was opened
  // with `executes`, and its set-id bits are gone since.
  void Read(HandleId handle, InodeId inode, uint64_t offset, size_t size, Done<FileSystem::ReadResult> done,
            const ReadOptions& options = {});
  // The open file is read past the daemon, which notes the time of the first read: now.
  void NotePassed(HandleId handle);
  void SeekTo(HandleId handle, uint64_t offset, FileSystem::Seek what, Done<uint64_t> done,  // kNoData
              const Caller& caller = {});
  uint64_t bytes_total() const { return bytes_total_; }
  void SetUpdateAtime(bool update_atime) { update_atime_ = update_atime; }

 private:
  struct Plan;
  using PlanPtr = std::shared_ptr<Plan>;
  // Says what the read needs first. If that is kFetch, the parts are in the plan.
  enum class Step { kFetch, kLookForOthers, kLoad, kFailLost };

  void ReadForExec(const PlanPtr& plan);  // kBusy: the kernel may still trust set-id bits that are gone
  void Start(const PlanPtr& plan);
  Step PlanParts(Plan& plan);
  void FetchParts(const PlanPtr& plan);
  void Finish(const PlanPtr& plan);  // every part is there, or failed
  void Load(const PlanPtr& plan);    // blocking
  void Fail(const PlanPtr& plan, Error error);
  void FailLoad(const PlanPtr& plan, const Error& error);
  void ReadAhead(Handle& handle, const InodePtr& inode, uint64_t offset, size_t size);
  void PrefetchRange(const InodePtr& inode, uint64_t from, uint64_t to);
  void CheckAtime(Handle& handle);

  const Services at_;
  std::atomic<bool> update_atime_;
  std::atomic<uint64_t> bytes_total_{0};
  std::atomic<uint64_t> running_{0};  // until the last thread has let go of them
};

}  // namespace cairnfs::fs
