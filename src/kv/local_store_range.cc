// LocalKvStore::Range: the two layers and the engine merged at one revision. The lock is held only while the layers'
// part is copied and the engine's snapshot is taken.
#include <algorithm>

#include "kv/local_store.h"
#include "kv/local_store_format.h"

namespace cairnfs::kv {
namespace {

KvEntry Owned(const KvEntryView& entry) { return {std::string(entry.key), std::string(entry.value), entry.revision}; }

}  // namespace

LocalKvStore::RangeView LocalKvStore::TakeView(std::string_view begin, std::string_view end, size_t copies_max) {
  std::shared_lock lock(mutex_);
  return TakeViewLocked(begin, end, copies_max, engine_.GetSnapshot());
}

LocalKvStore::RangeView LocalKvStore::TakeViewLocked(std::string_view begin, std::string_view end, size_t copies_max,
                                                     std::shared_ptr<EngineSnapshot> snapshot) const {
  RangeView view;
  view.revision = revision_;
  view.snapshot = std::move(snapshot);
  auto in_range = [&](const Layer& layer, Layer::const_iterator it) {
    return it != layer.end() && (end.empty() || it->first < end);
  };
  auto active = active_.lower_bound(begin);
  auto frozen = frozen_.lower_bound(begin);
  for (;;) {
    bool has_active = in_range(active_, active);
    bool has_frozen = in_range(frozen_, frozen);
    if (!has_active && !has_frozen) return view;
    if (copies_max != 0 && view.upper.size() == copies_max) {
      view.horizon = view.upper.back().first;
      return view;
    }
    if (has_active && (!has_frozen || active->first <= frozen->first)) {
      if (has_frozen && active->first == frozen->first) ++frozen;
      view.upper.emplace_back(*active++);
    } else {
      view.upper.emplace_back(*frozen++);
    }
  }
}

Result<bool> LocalKvStore::VisitView(const RangeView& view, std::string_view begin, std::string_view end,
                                     const EntryVisitor& visit) {
  auto upper = view.upper.begin();
  bool stopped = false;
  auto visit_upper = [&] {
    if (upper->second.value) {
      stopped = !visit({upper->first, *upper->second.value, upper->second.revision});
    }
    ++upper;
  };
  Status decoded;
  auto visit_engine = [&](std::string_view engine_key, std::string_view text) {
    std::string_view key = engine_key.substr(1);
    while (!stopped && upper != view.upper.end() && upper->first < key) visit_upper();
    if (stopped) return false;
    if (upper != view.upper.end() && upper->first == key) {
      visit_upper();
      return !stopped;
    }
    Result<StoredValue> stored = DecodeStored(engine_key, text);
    if (!stored.ok()) {
      decoded = stored.error();
      return false;
    }
    stopped = !visit({key, stored->value, stored->revision});
    return !stopped;
  };
  // Past the horizon the layers' part is unknown; '\0' makes the end just after it.
  const std::string engine_end = view.horizon ? EngineKey(*view.horizon) + '\0' : EngineRangeEnd(end);
  CAIRNFS_RETURN_IF_ERROR(engine_.Scan(EngineKey(begin), engine_end, view.snapshot.get(), visit_engine));
  CAIRNFS_RETURN_IF_ERROR(decoded);
  while (!stopped && upper != view.upper.end()) visit_upper();
  return stopped || !view.horizon;
}

Result<KvRange> LocalKvStore::Range(const Context&, std::string_view begin, std::string_view end, size_t limit) {
  constexpr size_t kCopiesMin = 64;
  KvRange range;
  if (!end.empty() && end <= begin) {
    std::shared_lock lock(mutex_);
    range.revision = revision_;
    return range;
  }
  auto visit = [&](const KvEntryView& entry) {
    if (limit != 0 && range.entries.size() == limit) {
      range.more = true;
      return false;
    }
    range.entries.push_back(Owned(entry));
    return true;
  };
  // Deletions among the copied entries may leave fewer than `limit`: then again with more of them.
  size_t copies_max = limit == 0 ? 0 : std::max(limit + 1, kCopiesMin);
  for (;;) {
    RangeView view = TakeView(begin, end, copies_max);
    range = KvRange{};
    range.revision = view.revision;
    CAIRNFS_ASSIGN_OR_RETURN(bool complete, VisitView(view, begin, end, visit));
    if (complete) return range;
    copies_max *= 4;
  }
}

Status LocalKvStore::VisitRange(const Context&, std::string_view begin, std::string_view end,
                                const EntryVisitor& visit) {
  constexpr size_t kCopiesMax = 4096;  // the store is locked for as long as they are made
  if (!end.empty() && end <= begin) return {};
  std::string from(begin);
  for (;;) {
    const RangeView view = TakeView(from, end, kCopiesMax);
    CAIRNFS_ASSIGN_OR_RETURN(const bool complete, VisitView(view, from, end, visit));
    if (complete) return {};
    from.assign(*view.horizon).push_back('\0');  // the least key after it
  }
}

Result<uint64_t> LocalKvStore::VisitDurable(const Context&, std::string_view begin, std::string_view end,
                                            const EntryVisitor& visit) {
  RangeView flushed;
  flushed.snapshot = engine_.GetSnapshot();
  CAIRNFS_ASSIGN_OR_RETURN(const auto revision, ReadRevision(engine_, flushed.snapshot.get()));
  CAIRNFS_RETURN_IF_ERROR(VisitView(flushed, begin, end, visit));
  return revision.value_or(0);
}

Result<KvSnapshot> LocalKvStore::Read(const Context&, std::span<const KvSpan> spans) {
  KvSnapshot result;
  std::vector<RangeView> views;
  {
    std::shared_lock lock(mutex_);
    result.revision = revision_;
    const std::shared_ptr<EngineSnapshot> snapshot = engine_.GetSnapshot();
    for (const KvSpan& span : spans) {
      const std::string end = span.end.empty() ? span.begin + '\0' : span.end;
      views.push_back(TakeViewLocked(span.begin, std::max(span.begin, end), /*copies_max=*/0, snapshot));
    }
  }
  for (size_t i = 0; i < spans.size(); i++) {
    KvRange& range = result.ranges.emplace_back();
    range.revision = result.revision;
    const std::string end = spans[i].end.empty() ? spans[i].begin + '\0' : spans[i].end;
    if (end <= spans[i].begin) continue;
    auto visit = [&](const KvEntryView& entry) {
      if (spans[i].limit != 0 && range.entries.size() == spans[i].limit) {
        range.more = true;
        return false;
      }
      range.entries.push_back(Owned(entry));
      return true;
    };
    CAIRNFS_RETURN_IF_ERROR(VisitView(views[i], spans[i].begin, end, visit));
  }
  return result;
}

}  // namespace cairnfs::kv
