// LocalCollection: the collection of a host alone. Finds which chunks are reachable, and has the store sweep the rest.
//
// Why nothing reachable is lost: a reference that exists when the collection begins stands in a file's record, where
// the mark finds it, or is pinned; one that is made later goes through Put or Pin, which the store records. After the
// mark and before the sweep a sync round runs, so that no older record, which names chunks that the mark did not see,
// can come back after a crash.
#pragma once

#include <algorithm>

#include "fs/collection_work.h"
#include "fs/filesystem.h"
#include "fs/sync_rounds.h"

namespace cairnfs::fs {

class LocalCollection final : public CollectionWork {
 public:
  // All outlive it.
  LocalCollection(kv::KvStore& kv, store::LocalChunkStore& chunks, SyncRounds& rounds, const FsOptions& options)
      : kv_(kv), chunks_(chunks), rounds_(rounds), options_(options) {}

  Status Collect(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) override;
  uint64_t CountFree(uint64_t stored, uint64_t named) const override { return stored - std::min(stored, named); }
  Result<store::LiveTotals> Count(const Context& context) override;
  Status NoteUncollected(uint64_t bytes) override;
  Result<uint64_t> TakeUncollected() override;
  // As many bytes as make a collection begin, where the process was killed and left none.
  static Result<uint64_t> TakeUncollected(kv::KvStore& kv, const FsOptions& options);
  Status Release() override {
    return MakeError(ErrorCode::kInvalidArgument, "this host is alone: its collections are never held up");
  }

 private:
  kv::KvStore& kv_;
  store::LocalChunkStore& chunks_;
  SyncRounds& rounds_;
  const FsOptions& options_;
};

}  // namespace cairnfs::fs
