// LocalKvStore: KvStore on a node's own KvEngine, with ordered write-behind.
//
// Commits go to an *active* layer in memory and are visible at once; nothing reaches the engine until it is flushed.
// Freeze() turns the active layer into the *frozen* one and starts a new active layer; FlushFrozen() writes the frozen
// layer to the engine as one synced, atomic batch. So what survives a crash is always a prefix of the commits, cut at a
// Freeze; the caller of FlushFrozen decides what must be durable before it (the data that the layer names).
// A freeze point divides the active layer: BeginFrozenToPoint() freezes what was committed before the first one. For
// that the store keeps what commits after a point overwrite.
// In between, CommitLate() adds blind puts to the frozen layer: state that belongs to the time before the freeze but
// was worked out after it (the recipe of a file whose bytes were still being hashed).
//
// Reads look in the active layer, then the frozen one, then the engine. Keys on the engine carry a prefix of their own
// ('K'), so the chunk index shares it. A stored value is: u64 little-endian revision, then the value's bytes.
// The store's revision is kept under the engine key "R" in every batch.
//
// Lock order: flush_mutex_ before mutex_. Locks are never held across engine writes except flush_mutex_.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <shared_mutex>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "kv/engine.h"
#include "kv/read_cache.h"
#include "kv/store.h"

namespace cairnfs::kv {

class LocalKvStore final : public KvStore {
 public:
  // Reads the revision. The engine must outlive the store. kCorrupt when the revision does not decode.
  static Result<std::unique_ptr<LocalKvStore>> Open(KvEngine& engine);
  ~LocalKvStore() override;  // does not flush

  Result<std::optional<KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<KvRange> Range(const Context& context, std::string_view begin, std::string_view end, size_t limit) override;
  Status VisitRange(const Context& context, std::string_view begin, std::string_view end,
                    const EntryVisitor& visit) override;
  // What the last flush has written: what those commits name outside the store was durable before them.
  Result<uint64_t> VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                const EntryVisitor& visit) override;
  Result<KvSnapshot> Read(const Context& context, std::span<const KvSpan> spans) override;
  Result<uint64_t> Commit(const Context& context, const Transaction& transaction) override;
  // Freeze and FlushFrozen. Only for users whose values name no data outside the store.
  Status Sync(const Context& context) override;
  KvLimits limits() const override;

  // Makes the active layer the frozen one. False, and nothing done, when the active layer was empty.
  // REQUIRES: no layer is frozen.
  bool Freeze();
  // Puts and deletes into the frozen layer; a read sees them unless the active layer has the key. Their revision is a
  // new one. REQUIRES: between Freeze() == true and FlushFrozen(), or after BeginFrozenEmpty().
  void CommitLate(const std::vector<KvWrite>& writes);
  // As Freeze, but makes a frozen layer even when nothing was committed, so that CommitLate may be called.
  void BeginFrozen();

  // What was committed until now may be frozen without what is committed later. Freeze and BeginFrozen, which take all,
  // drop the freeze points.
  void AddFreezePoint();
  // As BeginFrozen, but takes what was committed before the first freeze point alone, and drops that. It looks at the
  // whole active layer. REQUIRES: there is one, and no layer is frozen.
  void BeginFrozenToPoint();
  // REQUIRES: index < freeze_points(). The first has index 0.
  void DropFreezePoint(size_t index);
  size_t freeze_points() const;
  // Writes the frozen layer, synced, and drops it. On failure the layer stays frozen and readable, and the call may be
  // repeated (after kNoSpace) or will fail again (kFailed).
  Status FlushFrozen();

  // Called for each change, as reads see it, of a key that begins with a certain letter, in order of revision. The
  // store is locked meanwhile: be quick, and do not call it. A change of such a key costs a read. REQUIRES
  // (unchecked): such keys are changed by one thread at a time.
  using Watcher = std::function<void(std::string_view key, const std::optional<std::string>& before,
                                     const std::optional<std::string>& after, uint64_t revision)>;
  void Watch(char letter, Watcher watcher);  // in place of the one of that letter; an empty one: none

  bool HasUnflushed() const;  // the active or the frozen layer is not empty
  // Whether a change of a key in [begin, end) that `matches` is not flushed. The store is locked meanwhile: be quick.
  using ChangeMatcher = std::function<bool(std::string_view key, const std::optional<std::string>& value)>;
  bool HasUnflushed(std::string_view begin, std::string_view end, const ChangeMatcher& matches) const;
  size_t UnflushedBytes() const;  // memory that both layers take, roughly
  // A commit that must not wait for a flush (the inode number reservation). It goes straight to the engine, synced,
  // before return. REQUIRES (unchecked): the keys are never written through Commit.
  Status CommitDurable(const std::vector<KvWrite>& writes);

 private:
  struct Value {
    uint64_t revision;
    std::optional<std::string> value;  // nullopt: deleted
  };
  using Layer = std::map<std::string, Value, std::less<>>;

  // Whether a transaction's compares held, and at which state of the store they were looked at.
  struct Evaluation {
    uint64_t revision = 0;
    uint64_t engine_epoch = 0;
    uint64_t cache_epoch = 0;
    std::optional<uint64_t> earlier_result;  // of the same operation id
    bool holds = true;
  };
  // What a range read needs once the lock is released: the layers' part of the range, and the engine as it was.
  struct RangeView {
    std::vector<std::pair<std::string, Value>> upper;  // active over frozen, deletions included
    std::optional<std::string> horizon;                // `upper` knows nothing of keys after this one
    std::shared_ptr<EngineSnapshot> snapshot;
    uint64_t revision = 0;
  };
  // The values that watched keys have before they are written, in the order of the writes.
  using WatchedBefore = std::vector<std::optional<std::string>>;

  explicit LocalKvStore(KvEngine& engine);

  // A value that cannot be read counts as absent, and the write goes on.
  WatchedBefore ReadWatched(const std::vector<KvWrite>& writes);
  const Watcher* WatcherOf(const KvWrite& write) const;  // null: none

  // Those of this paragraph: REQUIRES (unchecked): mutex_ is held, exclusively where they are not const.
  const Value* FindInLayers(std::string_view key) const;
  const uint64_t* FindOperation(const std::string& operation_id) const;
  bool LayersChangedSince(std::string_view begin, std::string_view end, uint64_t revision) const;
  static size_t BytesOf(std::string_view key, const Value& value);  // roughly
  static void PutInLayer(Layer& layer, size_t& bytes, const KvWrite& write, uint64_t revision);
  void PutInActive(const KvWrite& write);  // at revision_
  void FreezeAll();
  void DropFreezePointLocked(size_t index);
  uint64_t Apply(const Transaction& transaction);
  void TellWatcher(const std::vector<KvWrite>& writes, const WatchedBefore& before, uint64_t revision);

  Result<Evaluation> Evaluate(const Transaction& transaction);
  Result<bool> PointsHold(const Transaction& transaction, Evaluation& evaluation);
  Result<bool> RangeHolds(const Compare& compare);
  // Reads the engine, through the cache. REQUIRES (unchecked): the key was in no layer after `cache_epoch` was
  // taken.
  Result<ReadCache::Known> ReadPastLayers(std::string_view key, uint64_t cache_epoch);
  // The revision alone; 0: the key is absent.
  Result<uint64_t> EngineRevision(std::string_view key, uint64_t cache_epoch);
  // Tells the cache the writes of `layer`. REQUIRES (unchecked): the engine has them, and readers still find them
  // in a layer.
  void TellCache(const Layer& layer);
  // nullopt: what Evaluate saw is not enough to tell. REQUIRES (unchecked): mutex_ is held, evaluation.holds.
  std::optional<bool> StillHolds(const Transaction& transaction, const Evaluation& evaluation) const;

  // `copies_max` bounds how many entries of the layers are copied; 0: no bound.
  RangeView TakeView(std::string_view begin, std::string_view end, size_t copies_max);
  // REQUIRES (unchecked): mutex_ is held since before `snapshot` was taken.
  RangeView TakeViewLocked(std::string_view begin, std::string_view end, size_t copies_max,
                           std::shared_ptr<EngineSnapshot> snapshot) const;
  // Visits the live keys in order. False: the view's horizon was reached before the end of the range.
  Result<bool> VisitView(const RangeView& view, std::string_view begin, std::string_view end,
                         const EntryVisitor& visit);

  Status FlushFrozenLocked() REQUIRES_LOCK(flush_mutex_);

  KvEngine& engine_;
  ReadCache cache_;  // of what the engine says; asked for keys that are in no layer

  Mutex flush_mutex_;  // serialises writes to the engine, so that the revision stored there never goes back

  mutable std::shared_mutex mutex_;  // guards all below
  Layer active_;
  Layer frozen_;  // while is_flushing_ nobody changes it, and the flush reads it without the lock
  bool has_frozen_ = false;
  bool is_flushing_ = false;
  uint64_t revision_ = 0;
  uint64_t engine_epoch_ = 0;  // counts the moments at which reads past the layers began to see other values
  size_t active_bytes_ = 0;    // with those of freeze_points_
  size_t frozen_bytes_ = 0;
  // In order of revision. Where the active layer has a later value of a key than it had at a point, the earlier value
  // is in `older`: in that of the point, or of one behind it.
  struct FreezePoint {
    uint64_t revision;  // of the last commit before it
    Layer older;        // what was overwritten while it was the last point
  };
  std::deque<FreezePoint> freeze_points_;
  std::deque<std::string> operation_order_;  // kOperationsRemembered at most
  std::unordered_map<std::string, uint64_t> operations_;
  std::map<char, Watcher> watchers_;
};

}  // namespace cairnfs::kv
