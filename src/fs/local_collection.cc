#include "fs/local_collection.h"

#include "base/coding.h"
#include "base/failpoint.h"
#include "fs/marker.h"

namespace cairnfs::fs {
namespace {

Failpoint collect_marked("fs.collect_marked", Failpoint::Kind::kKill);
Failpoint collect_synced("fs.collect_synced", Failpoint::Kind::kKill);
Failpoint collect_swept("fs.collect_swept", Failpoint::Kind::kKill);

}  // namespace

Status LocalCollection::Collect(const Context& context, uint64_t bytes_per_second_max, CollectionProgress& progress) {
  // What was deleted just now counts: its records go before the next freeze.
  progress.SetPhase("sync");
  CAIRNFS_RETURN_IF_ERROR(rounds_.RequestAndWait(SyncRounds::Scope::kNames));
  // Small chunks that no round has indexed yet (SyncWithEngine) would be passed over.
  static_cast<void>(chunks_.Sync().ok());
  progress.SetPhase("mark");
  LiveSet live;
  chunks_.BeginCollection();
  Status status = MarkAll(
      context, kv_, chunks_, [&](const Digest& digest) { live.Add(digest); }, progress.inodes_marked);
  live.Seal();
  collect_marked.Pass();
  if (status.ok()) status = rounds_.RequestAndWait(SyncRounds::Scope::kNames);
  if (status.ok() && context.Expired()) status = MakeError(ErrorCode::kInterrupted, "the collection was stopped");
  collect_synced.Pass();
  if (!status.ok()) {
    chunks_.AbortCollection();
    return status;
  }
  progress.SetPhase("sweep");
  store::SweepOptions sweep;
  sweep.bytes_per_second_max = bytes_per_second_max;
  auto is_live = [&](const Digest& digest) { return live.Contains(digest); };
  status = chunks_.Sweep(context, is_live, sweep, progress.sweep);
  collect_swept.Pass();
  return status;
}

Result<store::LiveTotals> LocalCollection::Count(const Context& context) {
  LiveSet live;
  std::atomic<uint64_t> marked{0};
  const auto mark = [&] {
    Status status = MarkAll(
        context, kv_, chunks_, [&](const Digest& digest) { live.Add(digest); }, marked);
    live.Seal();
    return status;
  };
  return CountMarked(context, chunks_, mark, [&](const Digest& digest) { return live.Contains(digest); });
}

Result<uint64_t> LocalCollection::TakeUncollected(kv::KvStore& kv, const FsOptions& options) {
  if (!options.collect_by_itself || options.read_only) return 0;
  CAIRNFS_ASSIGN_OR_RETURN(auto left, kv.Get({}, meta::FreedBytesKey()));
  if (left) {
    CAIRNFS_RETURN_IF_ERROR(kv.Commit({}, kv::Transaction().Delete(meta::FreedBytesKey())));
    Decoder decoder(left->value);
    const uint64_t bytes = decoder.U64();
    return decoder.Finished() ? bytes : options.collect_after_bytes;
  }
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange files, kv.Range({}, "D", kv::PrefixEnd("D"), 1));
  return files.entries.empty() ? 0 : options.collect_after_bytes;
}

Result<uint64_t> LocalCollection::TakeUncollected() {
  FsOptions options = options_;
  options.read_only = false;  // as it was started, and is no more
  return TakeUncollected(kv_, options);
}

Status LocalCollection::NoteUncollected(uint64_t bytes) {
  const auto noted = kv_.Commit({}, kv::Transaction().Put(meta::FreedBytesKey(), Encoder().U64(bytes).Take()));
  return noted.ok() ? Status() : Status(noted.error());
}

}  // namespace cairnfs::fs
