// The replicator's part with this node's disk: chunks are stored there, and read back when they have left memory.
#include "base/log.h"
#include "cluster/replicator.h"

namespace cairnfs::cluster {
namespace {

constexpr std::chrono::seconds kHeldBackMax{10};  // a Sync may wait for nodes for much longer

}  // namespace

void Replicator::StoreSoon(const ChunkPtr& chunk) {
  to_store_.insert(chunk);
  auto store = [this, chunk] { Store(chunk); };
  if (hold_ && hold_->first.contains(chunk)) return parts_.stores.PostFirst(std::move(store));
  parts_.stores.Post(std::move(store));
}

// They stay in the queue too, once more for each such Sync: whichever task comes first stores the chunk.
void Replicator::StoreFirst(const ChunksBySequence& chunks) {
  if (!hold_) hold_.emplace();
  hold_->first.clear();
  hold_->until = Clock::Now() + kHeldBackMax;
  for (auto last = chunks.rbegin(); last != chunks.rend(); ++last) {
    const ChunkPtr& chunk = last->second;
    hold_->first.insert(chunk);
    if (to_store_.contains(chunk)) parts_.stores.PostFirst([this, chunk] { Store(chunk); });
  }
}

void Replicator::StoreOthers() {
  if (!hold_) return;
  for (const ChunkPtr& chunk : hold_->held_back) parts_.stores.Post([this, chunk] { Store(chunk); });
  hold_.reset();
}

// What was stored here has a list of holders first, so that repair sees it.
void Replicator::Store(const ChunkPtr& chunk) {
  const Digest& digest = chunk->digest();
  std::vector<io::Slice> bytes;
  Holders announced;
  {
    MutexLock lock(mutex_);
    if (!to_store_.contains(chunk)) return;
    if (hold_ && !hold_->first.contains(chunk)) return hold_->held_back.push_back(chunk);
    to_store_.erase(chunk);
    if (chunk->is_done()) return;
    if (chunk->bytes().empty()) {
      if (!closing_) Apply(chunk, chunk->OnStored(Now(), ChunkCopies::StoreResult::kNoBytes));
      return;
    }
    bytes = chunk->bytes();
    announced = chunk->announced();
  }
  // Where nobody else was asked yet, whoever goes through the lists finds out.
  const auto listed = announced.empty() ? parts_.commit.FindHolders(digest) : std::nullopt;
  if (announced.empty()) announced = listed.value_or(Holders{self_});
  if (!listed) parts_.commit.SetHolders(digest, announced);
  auto put = parts_.commit.Put(digest, bytes, announced);
  bytes.clear();
  if (put.ok()) {
    parts_.pins.KeepLocal(digest, std::move(put->pin));
  } else {
    parts_.reachability.NoteFull(self_);
  }
  MutexLock lock(mutex_);
  const bool is_outdated = put.ok() && !chunk->announced().empty() && chunk->announced() != announced;
  if (is_outdated) parts_.commit.SetHolders(digest, chunk->announced());
  if (chunk->TakeReservation()) parts_.local.ReleaseReservation(chunk->size());
  if (!put.ok() && put.error().code != ErrorCode::kNoSpace) {
    spdlog::error("chunk {} is not stored on this node: {}", digest.ToHex(), put.error().message);
    failure_ = put.error();
  }
  using StoreResult = ChunkCopies::StoreResult;
  if (!closing_) Apply(chunk, chunk->OnStored(Now(), put.ok() ? StoreResult::kStored : StoreResult::kNotStored));
}

// The chunk's bytes had to leave memory, or were never there: they are read from this node's disk, or from who has them
// already. Where that fails, only what needs this chunk fails: a Sync that covers it, for as long as somebody has it
// pinned.
void Replicator::Load(const ChunkPtr& chunk, const NodeId& node, std::function<void(const Status&)> then) {
  ++loads_;
  auto on_data = [this, chunk, node, then = std::move(then)](Result<store::ChunkData> data) {
    auto shared = std::make_shared<Result<store::ChunkData>>(std::move(data));
    parts_.work.Post([this, chunk, node, then, shared] {
      Result<store::ChunkData>& loaded = *shared;
      MutexLock lock(mutex_);
      if (loaded.ok() && loaded->size != chunk->size()) {
        loaded = MakeError(ErrorCode::kCorrupt, "it has another size than the record of a file says");
      }
      if (loaded.ok()) {
        chunk->OnLoaded(std::move(loaded->slices));
        pending_.Update(chunk);
      }
      then(loaded.ok() ? Status() : Status(loaded.error()));
      if (--loads_ == 0 && closing_) changed_.NotifyAll();
      if (loaded.ok() || closing_ || chunk->is_done()) return;
      // Of files, whoever waits for it says so.
      if (chunk->bytes().empty() && !chunk->failure() && !chunk->is_covered()) {
        spdlog::error("chunk {} cannot be read back to be sent: {}", chunk->digest().ToHex(), loaded.error().message);
      }
      Apply(chunk, chunk->OnLoadFailed(Now(), node, loaded.error()));
    });
  };
  parts_.stores.Post([this, chunk, on_data = std::move(on_data)] { parts_.reads.GetStored(chunk->digest(), on_data); });
}

void Replicator::LoadThenStore(const ChunkPtr& chunk) {
  ++loads_to_store_;
  Load(chunk, self_, [this, chunk](const Status& loaded) {
    mutex_.AssertHeld();
    --loads_to_store_;
    if (loaded.ok()) StoreSoon(chunk);
  });
}

}  // namespace cairnfs::cluster
