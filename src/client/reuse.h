// What a save takes from its base, the file of the save before: docs/gpu.md, "When a base is trusted".
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "base/thread_annotations.h"
#include "client/base_file.h"
#include "client/fingerprints.h"
#include "client/layout.h"

namespace cairnfs::client {

class Reuse {
 public:
  // `path` is the base, where one was asked for; `old` what the saver knows of the file that it saved last.
  Reuse(std::optional<std::string> path, const std::optional<Fingerprints>& old) : path_(std::move(path)), old_(old) {}

  // Looks at the base. `device` is the st_dev of the file to be written. Before this nothing can be taken.
  void Open(uint64_t device);
  // Whether anything can be taken. Any thread.
  bool IsPossible() const { return file_ != nullptr; }
  // What the base has of a tensor, for memory of the same kind; null: nothing can be taken. Any thread.
  const SavedTensor* Find(const Tensor& tensor) const;
  // Whether the block, the `index`-th of that tensor of the host, had this digest. Any thread.
  bool HasBlock(const SavedTensor& tensor, uint64_t index, const Digest& digest) const;
  // [from, from + bytes) of the base to `to` of the file `descriptor`. A problem is kept for Confirm, and then nothing
  // is copied any more. Any thread. REQUIRES: IsPossible().
  void Copy(uint64_t from, int descriptor, uint64_t to, uint64_t bytes);

  // When all copies are done: whether the base was what it should be, from the first to the last of them. If not, none
  // counts, and nothing can be taken any more.
  bool Confirm();
  // Closes the base, so that a rename may replace it.
  void Close() { file_.reset(); }

  // Fills in what concerns the base.
  void Report(cairnfs_save_result& result) const;

 private:
  void Drop(const BaseProblem& problem);

  const std::optional<std::string> path_;
  const std::optional<Fingerprints>& old_;
  std::unique_ptr<BaseFile> file_;  // changed while no other thread asks
  BaseProblem state_ = {CAIRNFS_BASE_NOT_ASKED, ""};
  std::atomic<uint64_t> bytes_ = 0;
  Mutex mutex_;
  std::optional<BaseProblem> problem_ GUARDED_BY(mutex_);  // the first that a copy met
};

}  // namespace cairnfs::client
