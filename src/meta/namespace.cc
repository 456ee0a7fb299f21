#include "meta/namespace.h"

#include <algorithm>
#include <chrono>
#include <ctime>

#include "base/clock.h"
#include "base/coding.h"
#include "meta/look_ahead.h"

namespace cairnfs::meta {

Namespace::Namespace(kv::KvStore& store, DurablePut durable_put, Options options)
    : store_(store),
      durable_put_(std::move(durable_put)),
      options_(options),
      hints_(options.remote ? std::make_unique<Hints>() : nullptr) {}

Namespace::~Namespace() = default;

// A number is used only once the record that says "taken up to here" is durable: after a crash the rest of the batch is
// never given out.
Result<InodeId> Namespace::AllocateInode(const Context& context) {
  MutexLock lock(allocation_mutex_);
  while (next_inode_ == reserved_end_) {
    if (!is_reserving_) {
      CAIRNFS_RETURN_IF_ERROR(
          WhileReserving(context, [&](uint64_t reserved_end) { return ReserveInodes(context, reserved_end); }));
    } else if (!AwaitReserving(context)) {
      return MakeError(ErrorCode::kUnavailable, "the store gave this host no inode numbers in time");
    }
  }
  return InodeId{next_inode_++};
}

bool Namespace::AwaitReserving(const Context& context) {
  return context.Wait(allocation_mutex_, reserving_ended_,
                      [this]() REQUIRES_LOCK(allocation_mutex_) { return !is_reserving_; });
}

// Asks the store without the lock, so that each thread that waits for numbers waits within its own context.
Status Namespace::WhileReserving(const Context& context,
                                 const std::function<Result<NumberRange>(uint64_t reserved_end)>& ask) {
  const uint64_t reserved_end = reserved_end_;
  is_reserving_ = true;
  allocation_mutex_.Unlock();
  auto range = RetryOnConflict(context, "the reservation of inode numbers", PaceOf(options_),
                               [&](int) -> Result<NumberRange> { return ask(reserved_end); });
  allocation_mutex_.Lock();
  is_reserving_ = false;
  reserving_ended_.NotifyAll();
  if (!range.ok()) return range.error();
  next_inode_ = reserved_begin_ = range->first;
  reserved_end_ = range->end;
  return {};
}

void Namespace::GiveUpRangeOf(InodeId taken) {
  MutexLock lock(allocation_mutex_);
  if (taken.value >= reserved_begin_ && taken.value < reserved_end_) next_inode_ = reserved_end_;
}

Status Namespace::ForgetReservedInodes(const Context& context) {
  MutexLock lock(allocation_mutex_);
  if (!AwaitReserving(context)) {
    return MakeError(ErrorCode::kUnavailable, "the store did not answer in time what inode numbers this host has");
  }
  next_inode_ = reserved_end_;
  if (reserved_end_ == 0) return {};
  return WhileReserving(context, [&](uint64_t reserved_end) -> Result<NumberRange> {
    const NumberRange none{reserved_end, reserved_end};
    CAIRNFS_ASSIGN_OR_RETURN(const NextInode next, ReadNextInode(context));
    if (next.number >= reserved_end) return none;
    kv::Transaction transaction;
    transaction.IfRevision(NextInodeKey(), next.revision).Put(NextInodeKey(), Encoder().U64(reserved_end).Take());
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    return none;
  });
}

Result<Namespace::NextInode> Namespace::ReadNextInode(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store_.Get(context, NextInodeKey()));
  if (!entry) return MakeError(ErrorCode::kCorrupt, "the record of the next inode number is missing");
  Decoder decoder(entry->value);
  const uint64_t number = decoder.U64();
  if (!decoder.Finished() || number <= kRootInode.value || number > UINT64_MAX - options_.inode_batch) {
    return MakeError(ErrorCode::kCorrupt, "the record of the next inode number does not decode");
  }
  return NextInode{number, entry->revision};
}

// Where other hosts reserve too, the compare decides who came first. A store that went back may offer numbers that this
// host has given out already.
Result<Namespace::NumberRange> Namespace::ReserveInodes(const Context& context, uint64_t reserved_end) {
  CAIRNFS_ASSIGN_OR_RETURN(const NextInode next, ReadNextInode(context));
  const uint64_t first = std::max(next.number, reserved_end);
  const uint64_t end = first + options_.inode_batch;
  const std::string value = Encoder().U64(end).Take();
  if (options_.remote) {
    kv::Transaction transaction;
    transaction.IfRevision(NextInodeKey(), next.revision).Put(NextInodeKey(), value);
    CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
  } else {
    CAIRNFS_RETURN_IF_ERROR(durable_put_({kv::KvWrite{NextInodeKey(), value}}));
  }
  return NumberRange{first, end};
}

namespace {

void NoteDirectory(Hints& hints, const LookAhead& ahead, InodeId inode) {
  const kv::KvEntry* entry = ahead.Peek(InodeKey(inode));
  if (entry == nullptr) return;
  auto record = InodeRecord::Decode(entry->value);
  if (record.ok() && IsDirectory(*record)) hints.NoteDirectory(inode, {std::move(*record), entry->revision});
}

}  // namespace

kv::KvStore& Namespace::LookAt(const Context& context, LookAhead& ahead, std::initializer_list<Name> names,
                               WithMarks marks) {
  if (!hints_) return store_;
  for (const Name& name : names) {
    const std::string key = DentryKey(name.parent, name.name);
    if (auto inode = hints_->InodeOf(key)) ahead.WantInode(*inode, marks);
    ahead.Want(key);
    ahead.Want(InodeKey(name.parent));
  }
  ahead.Fetch(context);
  for (const Name& name : names) {
    NoteDirectory(*hints_, ahead, name.parent);
    const std::string key = DentryKey(name.parent, name.name);
    const kv::KvEntry* entry = ahead.Peek(key);
    auto dentry = entry == nullptr ? DentryRecord::Decode("") : DentryRecord::Decode(entry->value);
    if (!dentry.ok()) continue;
    if (ahead.Peek(InodeKey(dentry->inode)) == nullptr) ahead.WantInode(dentry->inode, marks);
    hints_->NoteName(key, dentry->inode);
  }
  ahead.Fetch(context);
  return ahead;
}

kv::KvStore& Namespace::LookAt(const Context& context, LookAhead& ahead, InodeId inode) {
  if (!hints_) return store_;
  ahead.WantInode(inode, WithMarks::kNo);
  ahead.Fetch(context);
  NoteDirectory(*hints_, ahead, inode);
  return ahead;
}

Timestamp Namespace::TimeFor(InodeId directory) {
  const Timestamp now = Clock::WallTime();
  return hints_ ? hints_->AdvanceTime(directory, now) : now;
}

}  // namespace cairnfs::meta
