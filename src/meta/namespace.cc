#include "meta/namespace.h"

#include <algorithm>
#include <ctime>

#include "base/coding.h"
#include "meta/look_ahead.h"

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
    : store_(store),
      durable_put_(std::move(durable_put)),
      clock_(clock),
      options_(options),
      hints_(options.remote ? std::make_unique<Hints>() : nullptr) {}

Namespace::~Namespace() = default;

// A number is used only once the record that says "taken up to here" is durable: after a crash the rest of the batch is
// never given out.
Result<InodeId> Namespace::AllocateInode() {
  MutexLock lock(allocation_mutex_);
  if (next_inode_ == reserved_end_) {
    CAIRNFS_RETURN_IF_ERROR(RetryOnConflict("the reservation of inode numbers", PaceOf(options_), [&](int) -> Status {
      allocation_mutex_.AssertHeld();
      return ReserveInodes();
    }));
  }
  return InodeId{next_inode_++};
}

void Namespace::GiveUpRangeOf(InodeId taken) {
  MutexLock lock(allocation_mutex_);
  if (taken.value >= reserved_begin_ && taken.value < reserved_end_) next_inode_ = reserved_end_;
}

Status Namespace::ForgetReservedInodes() {
  MutexLock lock(allocation_mutex_);
  next_inode_ = reserved_end_;
  if (reserved_end_ == 0) return {};
  return RetryOnConflict("the record of the next inode number", PaceOf(options_), [&](int) -> Status {
    allocation_mutex_.AssertHeld();
    CAIRNFS_ASSIGN_OR_RETURN(const NextInode next, ReadNextInode());
    if (next.number >= reserved_end_) return {};
    kv::Transaction transaction;
    transaction.IfRevision(NextInodeKey(), next.revision).Put(NextInodeKey(), Encoder().U64(reserved_end_).Take());
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
    return {};
  });
}

Result<Namespace::NextInode> Namespace::ReadNextInode() {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(NextInodeKey()));
  if (!entry) return MakeError(ErrorCode::kCorrupt, "the record of the next inode number is missing");
  Decoder decoder(entry->value);
  const uint64_t number = decoder.U64();
  if (!decoder.Finished() || number <= kRootInode.value || number > UINT64_MAX - options_.inode_batch) {
    return MakeError(ErrorCode::kCorrupt, "the record of the next inode number does not decode");
  }
  return NextInode{number, entry->revision};
}

// Where other hosts reserve too, the compare tells who came first. A store that went back may offer numbers that this
// host has given out already.
Status Namespace::ReserveInodes() {
  CAIRNFS_ASSIGN_OR_RETURN(const NextInode next, ReadNextInode());
  const uint64_t first = std::max(next.number, reserved_end_);
  const uint64_t end = first + options_.inode_batch;
  const std::string value = Encoder().U64(end).Take();
  if (options_.remote) {
    kv::Transaction transaction;
    transaction.IfRevision(NextInodeKey(), next.revision).Put(NextInodeKey(), value);
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(transaction));
  } else {
    CAIRNFS_RETURN_IF_ERROR(durable_put_({kv::KvWrite{NextInodeKey(), value}}));
  }
  next_inode_ = reserved_begin_ = first;
  reserved_end_ = end;
  return {};
}

namespace {

void NoteDirectory(Hints& hints, const LookAhead& ahead, InodeId inode) {
  const kv::KvEntry* entry = ahead.Peek(InodeKey(inode));
  if (entry == nullptr) return;
  auto record = InodeRecord::Decode(entry->value);
  if (record.ok() && IsDirectory(*record)) hints.NoteDirectory(inode, {std::move(*record), entry->revision});
}

}  // namespace

kv::KvStore& Namespace::LookAt(LookAhead& ahead, std::initializer_list<Name> names, bool with_pending) {
  if (!hints_) return store_;
  for (const Name& name : names) {
    const std::string key = DentryKey(name.parent, name.name);
    if (auto inode = hints_->InodeOf(key)) ahead.WantInode(*inode, with_pending);
    ahead.Want(key);
    ahead.Want(InodeKey(name.parent));
  }
  ahead.Fetch();
  for (const Name& name : names) {
    NoteDirectory(*hints_, ahead, name.parent);
    const std::string key = DentryKey(name.parent, name.name);
    const kv::KvEntry* entry = ahead.Peek(key);
    auto dentry = entry == nullptr ? DentryRecord::Decode("") : DentryRecord::Decode(entry->value);
    if (!dentry.ok()) continue;
    if (ahead.Peek(InodeKey(dentry->inode)) == nullptr) ahead.WantInode(dentry->inode, with_pending);
    hints_->NoteName(key, dentry->inode);
  }
  ahead.Fetch();
  return ahead;
}

kv::KvStore& Namespace::LookAt(LookAhead& ahead, InodeId inode, bool with_pending) {
  if (!hints_) return store_;
  ahead.WantInode(inode, with_pending);
  ahead.Fetch();
  NoteDirectory(*hints_, ahead, inode);
  return ahead;
}

Timestamp Namespace::TimeFor(InodeId directory) {
  const Timestamp now = clock_.Now();
  return hints_ ? hints_->AdvanceTime(directory, now) : now;
}

}  // namespace cairnfs::meta
