#include "client/reuse.h"

#include <cassert>
#include <cstdio>

namespace cairnfs::client {

void Reuse::Open(uint64_t device) {
  if (!path_.has_value()) return;
  if (!old_.has_value()) {
    Drop({CAIRNFS_BASE_NO_FINGERPRINTS, *path_ + ": this saver has no fingerprints of it"});
    return;
  }
  BaseFile::Opened opened = BaseFile::Open(*path_, old_->file, device);
  if (opened.file == nullptr) {
    Drop(opened.problem);
    return;
  }
  file_ = std::move(opened.file);
  state_ = {CAIRNFS_BASE_USED, ""};
}

const SavedTensor* Reuse::Find(const Tensor& tensor) const {
  if (file_ == nullptr) return nullptr;
  const auto found = old_->tensors.find(tensor.name);
  return found == old_->tensors.end() || found->second.device != tensor.device ? nullptr : &found->second;
}

bool Reuse::HasBlock(const SavedTensor& tensor, uint64_t index, const Digest& digest) const {
  return index < BlocksOf(tensor.bytes) && old_->host_digests[tensor.first_digest + index] == digest;
}

void Reuse::Copy(uint64_t from, int descriptor, uint64_t to, uint64_t bytes) {
  assert(file_ != nullptr);
  {
    MutexLock lock(mutex_);
    if (problem_.has_value()) return;
  }
  std::optional<BaseProblem> problem = file_->Copy(from, descriptor, to, bytes);
  if (!problem.has_value()) {
    bytes_ += bytes;
    return;
  }
  MutexLock lock(mutex_);
  if (!problem_.has_value()) problem_ = std::move(problem);
}

bool Reuse::Confirm() {
  if (file_ == nullptr) return true;
  MutexLock lock(mutex_);
  if (!problem_.has_value()) problem_ = file_->Check();
  if (!problem_.has_value()) return true;
  Drop(*problem_);
  return false;
}

void Reuse::Drop(const BaseProblem& problem) {
  state_ = problem;
  bytes_ = 0;
  file_.reset();
}

void Reuse::Report(cairnfs_save_result& result) const {
  result.base_use = state_.use;
  result.bytes_reused = bytes_;
  std::snprintf(result.base_text, sizeof result.base_text, "%s", state_.text.c_str());
}

}  // namespace cairnfs::client
