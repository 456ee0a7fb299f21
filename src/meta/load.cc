#include "meta/load.h"

#include <algorithm>

#include "base/coding.h"
#include "base/random_bytes.h"
#include "meta/records.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kLoadMarkVersion = 1;
constexpr size_t kLoaderBytes = 16;
constexpr size_t kWriteOverheadBytes = 64;  // of one, beside key and value, at most
constexpr size_t kLoadBatchBytesMax = 4 << 20;
// No session has this revision: a store that is loaded makes it before any host comes.
constexpr uint64_t kEndedSession = 1;
// More than all hosts reserve in the time between two dumps, and few of all that there are.
constexpr uint64_t kNumbersSkipped = uint64_t{1} << 32;

// A mark is another one each time, so that its revision is.
std::string NewLoadMark() { return Encoder().U8(kLoadMarkVersion).Text(RandomBytes(kLoaderBytes)).Take(); }

}  // namespace

std::string LoadMarkKey() { return "Z"; }

Status NamesLoader::Begin(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto mark, target_.Get(context, LoadMarkKey()));
  CAIRNFS_ASSIGN_OR_RETURN(const auto settings, target_.Get(context, ClusterSettingsKey()));
  kv::Transaction begun;
  begun.IfRevision(LoadMarkKey(), mark ? mark->revision : 0).Put(LoadMarkKey(), NewLoadMark());
  begun.IfRevision(ClusterSettingsKey(), settings ? settings->revision : 0);
  if (!mark) {
    // Settings alone were left by a `cluster init` that was cut short, and count for nothing.
    begun.IfRangeEmpty("A", ClusterSettingsKey()).IfRangeEmpty(ClusterSettingsKey() + '\0', LoadMarkKey());
    if (settings) begun.Delete(ClusterSettingsKey());
  }
  const auto put = target_.Commit(context, begun);
  if (!put.ok() && put.error().code == ErrorCode::kConflict) {
    return MakeError(ErrorCode::kAlreadyExists, "there are keys in it already");
  }
  CAIRNFS_ASSIGN_OR_RETURN(mark_, put);
  CAIRNFS_RETURN_IF_ERROR(target_.Sync(context));
  return RemoveLeftovers(context);
}

Status NamesLoader::RemoveLeftovers(const Context& context) {
  const size_t keys_at_once = target_.limits().operations_per_transaction_max - 1;
  for (std::string from;;) {
    CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, target_.Range(context, from, "", keys_at_once));
    std::vector<kv::KvWrite> removals;
    for (const kv::KvEntry& entry : range.entries) {
      if (entry.key != LoadMarkKey()) removals.push_back({entry.key, std::nullopt});
    }
    if (!removals.empty()) CAIRNFS_RETURN_IF_ERROR(Commit(context, removals));
    if (!range.more) return {};
    from = range.entries.back().key + '\0';
  }
}

Status NamesLoader::Commit(const Context& context, const std::vector<kv::KvWrite>& writes) {
  kv::Transaction transaction;
  transaction.IfRevision(LoadMarkKey(), mark_);
  transaction.writes = writes;
  const bool adds =
      std::any_of(writes.begin(), writes.end(), [](const auto& write) { return write.value.has_value(); });
  if (adds) transaction.makes_names_for = 0;  // not from what is kept for removing names
  CAIRNFS_RETURN_IF_ERROR(target_.Commit(context, transaction));
  return target_.Sync(context);
}

Status NamesLoader::Put(const Context& context, std::string_view key, std::string_view value) {
  const kv::KvLimits limits = target_.limits();
  const size_t bytes = key.size() + value.size() + kWriteOverheadBytes;
  const bool is_full = pending_.size() + 1 >= limits.operations_per_transaction_max ||
                       pending_bytes_ + bytes > std::min(kLoadBatchBytesMax, limits.transaction_bytes_max / 2);
  if (is_full && !pending_.empty()) CAIRNFS_RETURN_IF_ERROR(Flush(context));
  pending_.push_back({std::string(key), std::string(value)});
  pending_bytes_ += bytes;
  return {};
}

Status NamesLoader::Flush(const Context& context) {
  if (pending_.empty()) return {};
  CAIRNFS_RETURN_IF_ERROR(Commit(context, pending_));
  pending_.clear();
  pending_bytes_ = 0;
  return {};
}

Status NamesLoader::Finish(const Context& context, const std::vector<kv::KvWrite>& last) {
  CAIRNFS_RETURN_IF_ERROR(Flush(context));
  std::vector<kv::KvWrite> writes = last;
  writes.push_back({LoadMarkKey(), std::nullopt});
  return Commit(context, writes);
}

Status StopLoading(const Context& context, kv::KvStore& target) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto mark, target.Get(context, LoadMarkKey()));
  if (!mark) return {};
  kv::Transaction stopped;
  stopped.IfRevision(LoadMarkKey(), mark->revision).Put(LoadMarkKey(), NewLoadMark());
  const auto committed = target.Commit(context, stopped);
  return committed.ok() ? Status() : Status(committed.error());
}

kv::KvWrite EntryToLoad(std::string_view key, std::string_view value) {
  if (const auto mark = DecodeMarkKey(key)) {
    UnpublishedMark record = *UnpublishedMark::Decode(value);
    record.session = kEndedSession;
    return {MarkKey(mark->inode, mark->node, kEndedSession), record.Encode()};
  }
  if (key == NextInodeKey()) {
    return {std::string(key), Encoder().U64(Decoder(value).U64() + kNumbersSkipped).Take()};
  }
  return {std::string(key), std::string(value)};
}

}  // namespace cairnfs::meta
