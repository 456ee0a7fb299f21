#include "meta/namespace.h"

#include <ctime>

#include "base/coding.h"

namespace cairnfs::meta {
namespace {

class WallClock final : public Clock {
 public:
  Timestamp Now() override {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return {now.tv_sec, static_cast<uint32_t>(now.tv_nsec)};
  }
};

}  // namespace

Clock& SystemClock() {
  static WallClock clock;
  return clock;
}

Namespace::Namespace(kv::KvStore& store, DurablePut durable_put, Clock& clock, Options options)
    : store_(store), durable_put_(std::move(durable_put)), clock_(clock), options_(options) {}

// A number is used only once the record that says "taken up to here" is durable: after a crash the rest of the batch is
// never given out.
Result<InodeId> Namespace::AllocateInode() {
  MutexLock lock(allocation_mutex_);
  if (next_inode_ == reserved_end_) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(NextInodeKey()));
    if (!entry) return MakeError(ErrorCode::kCorrupt, "the record of the next inode number is missing");
    Decoder decoder(entry->value);
    const uint64_t first = decoder.U64();
    if (!decoder.Finished() || first <= kRootInode.value || first > UINT64_MAX - options_.inode_batch) {
      return MakeError(ErrorCode::kCorrupt, "the record of the next inode number does not decode");
    }
    const uint64_t end = first + options_.inode_batch;
    CAIRNFS_RETURN_IF_ERROR(durable_put_({kv::KvWrite{NextInodeKey(), Encoder().U64(end).Take()}}));
    next_inode_ = first;
    reserved_end_ = end;
  }
  return InodeId{next_inode_++};
}

}  // namespace cairnfs::meta
