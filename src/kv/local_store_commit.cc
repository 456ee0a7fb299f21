// LocalKvStore::Commit.
//
// The compares are evaluated without the exclusive lock, because they may have to read the disk. Under the lock they
// are looked at again. If nothing was committed in between, they hold. Otherwise a key's state is its entry in a layer,
// or what the engine said when it was asked, as long as no layer was flushed away since (engine_epoch_).
#include <algorithm>

#include "kv/local_store.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {

bool IsRange(const Compare& compare) {
  return compare.kind == Compare::Kind::kRangeEmpty || compare.kind == Compare::Kind::kRangeUnchanged;
}

bool PointHolds(const Compare& compare, uint64_t revision) {
  return compare.kind == Compare::Kind::kExists ? revision != 0 : revision == compare.revision;
}

Result<uint64_t> LocalKvStore::EngineRevision(std::string_view key, uint64_t cache_epoch) {
  // Nearly always found: a transaction compares keys that were read just before.
  if (auto revision = cache_.FindRevision(key)) return *revision;
  CAIRNFS_ASSIGN_OR_RETURN(ReadCache::Known known, ReadPastLayers(key, cache_epoch));
  return known.revision;
}

const uint64_t* LocalKvStore::FindOperation(const std::string& operation_id) const {
  if (operation_id.empty()) return nullptr;
  auto found = operations_.find(operation_id);
  return found == operations_.end() ? nullptr : &found->second;
}

// A compare that fails was false at some moment during the call, which is enough to refuse the transaction.
Result<LocalKvStore::Evaluation> LocalKvStore::Evaluate(const Transaction& transaction) {
  Evaluation evaluation;
  CAIRNFS_ASSIGN_OR_RETURN(evaluation.holds, PointsHold(transaction, evaluation));
  if (evaluation.earlier_result) return evaluation;
  for (const Compare& compare : transaction.compares) {
    if (!evaluation.holds) break;
    if (!IsRange(compare)) continue;
    CAIRNFS_ASSIGN_OR_RETURN(evaluation.holds, RangeHolds(compare));
  }
  return evaluation;
}

// Notes in `evaluation` the state of the store before anything is read, so that a change after it is noticed.
Result<bool> LocalKvStore::PointsHold(const Transaction& transaction, Evaluation& evaluation) {
  std::vector<const Compare*> ask_engine;
  evaluation.cache_epoch = cache_.epoch();
  {
    std::shared_lock lock(mutex_);
    evaluation.revision = revision_;
    evaluation.engine_epoch = engine_epoch_;
    if (const uint64_t* earlier = FindOperation(transaction.operation_id)) {
      evaluation.earlier_result = *earlier;
      return true;
    }
    for (const Compare& compare : transaction.compares) {
      if (IsRange(compare)) continue;
      const Value* value = FindInLayers(compare.key);
      if (value == nullptr) {
        ask_engine.push_back(&compare);
      } else if (!PointHolds(compare, value->value ? value->revision : 0)) {
        return false;
      }
    }
  }
  for (const Compare* compare : ask_engine) {
    CAIRNFS_ASSIGN_OR_RETURN(uint64_t revision, EngineRevision(compare->key, evaluation.cache_epoch));
    if (!PointHolds(*compare, revision)) return false;
  }
  return true;
}

Result<bool> LocalKvStore::RangeHolds(const Compare& compare) {
  const bool wants_empty = compare.kind == Compare::Kind::kRangeEmpty;
  bool holds = true;
  auto visit = [&](const KvEntryView& entry) {
    holds = !wants_empty && entry.revision <= compare.revision;
    return holds;
  };
  RangeView view = TakeView(compare.key, compare.range_end, /*copies_max=*/0);
  CAIRNFS_RETURN_IF_ERROR(VisitView(view, compare.key, compare.range_end, visit));
  return holds;
}

bool LocalKvStore::LayersChangedSince(std::string_view begin, std::string_view end, uint64_t revision) const {
  for (const Layer* layer : {&active_, &frozen_}) {
    for (auto it = layer->lower_bound(begin); it != layer->end() && (end.empty() || it->first < end); ++it) {
      if (it->second.revision > revision) return true;
    }
  }
  return false;
}

std::optional<bool> LocalKvStore::StillHolds(const Transaction& transaction, const Evaluation& evaluation) const {
  if (evaluation.engine_epoch != engine_epoch_) return std::nullopt;
  if (evaluation.revision == revision_) return evaluation.holds;
  for (size_t i = 0; i < transaction.compares.size(); ++i) {
    const Compare& compare = transaction.compares[i];
    if (IsRange(compare)) {
      if (LayersChangedSince(compare.key, compare.range_end, evaluation.revision)) return std::nullopt;
    } else if (const Value* value = FindInLayers(compare.key)) {
      if (!PointHolds(compare, value->value ? value->revision : 0)) return false;
    }
  }
  return evaluation.holds;
}

uint64_t LocalKvStore::Apply(const Transaction& transaction) {
  if (!transaction.writes.empty()) ++revision_;
  for (const KvWrite& write : transaction.writes) PutInActive(write);
  if (!transaction.operation_id.empty()) {
    operations_[transaction.operation_id] = revision_;
    operation_order_.push_back(transaction.operation_id);
    if (operation_order_.size() > kOperationsRemembered) {
      operations_.erase(operation_order_.front());
      operation_order_.pop_front();
    }
  }
  return revision_;
}

Result<uint64_t> LocalKvStore::Commit(const Context&, const Transaction& transaction) {
  CAIRNFS_RETURN_IF_ERROR(CheckLimits(transaction, limits()));
  for (const KvWrite& write : transaction.writes) {
    if (write.lease == 0) continue;
    return MakeError(ErrorCode::kInvalidArgument, "a write names a lease, and the store of a single host has none");
  }
  const WatchedBefore before = ReadWatched(transaction.writes);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(Evaluation evaluation, Evaluate(transaction));
    if (evaluation.earlier_result) return *evaluation.earlier_result;
    std::unique_lock lock(mutex_);
    // Another thread may have committed the same operation meanwhile, and its writes may be why this compare failed.
    if (const uint64_t* earlier = FindOperation(transaction.operation_id)) return *earlier;
    if (evaluation.holds) {
      std::optional<bool> holds = StillHolds(transaction, evaluation);
      if (!holds) continue;  // only after somebody else's commit into the range, or a flush
      if (*holds) {
        const uint64_t revision = Apply(transaction);
        TellWatcher(transaction.writes, before, revision);
        return revision;
      }
    }
    return CompareFailed();
  }
}

}  // namespace cairnfs::kv
