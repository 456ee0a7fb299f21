#include "store/chunk_store.h"

#include <optional>

#include "base/thread_annotations.h"

namespace cairnfs::store {

ChunkPin& ChunkPin::operator=(ChunkPin&& other) noexcept {
  if (this == &other) return *this;
  if (store_ != nullptr) store_->Unpin(digest_);
  store_ = std::exchange(other.store_, nullptr);
  digest_ = other.digest_;
  return *this;
}

ChunkPin::~ChunkPin() {
  if (store_ != nullptr) store_->Unpin(digest_);
}

Result<ChunkData> GetBlocking(ChunkStore& store, const Digest& digest) {
  // The callback may still be inside its last statements when this returns, so they share what it touches.
  struct Shared {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<ChunkData>> result;
  };
  auto shared = std::make_shared<Shared>();
  store.Get(digest, [shared](Result<ChunkData> result) {
    MutexLock lock(shared->mutex);
    shared->result.emplace(std::move(result));
    shared->changed.NotifyAll();
  });
  MutexLock lock(shared->mutex);
  while (!shared->result) shared->changed.Wait(shared->mutex);
  return *std::move(shared->result);
}

Result<std::string> GetText(ChunkStore& store, const Digest& digest) {
  CAIRNFS_ASSIGN_OR_RETURN(ChunkData data, GetBlocking(store, digest));
  std::string text;
  text.reserve(data.size);
  for (const io::Slice& slice : data.slices) text += AsText(slice.bytes());
  return text;
}

}  // namespace cairnfs::store
