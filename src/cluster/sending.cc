// Chunks on their way to other nodes, a few MiB in a message, as many messages at once as the window allows.
#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/log.h"
#include "cluster/cluster_chunk_impl.h"
#include "cluster/peer_call.h"

namespace cairnfs::cluster {
namespace {

// The receiver syncs before it answers.
constexpr std::chrono::milliseconds kPutTimeout{20'000};
// A message that is not full goes out at once while fewer than this are under way.
constexpr unsigned kPartialSendsMax = 3;
constexpr std::chrono::milliseconds kFailedPause{300};
constexpr size_t kNewsKeptMax = 64 * 1024;
constexpr std::chrono::seconds kReadAgainAfter{5};
constexpr unsigned kCorruptMax = 3;
constexpr size_t kLoadsHereMax = 32;

}  // namespace

bool ClusterChunkStoreImpl::WritersGoFirst() {
  const auto now = Clock::Now();
  const bool do_write = now - last_put_at_ < options_.writer_pause && sync_waiters_ == 0 &&
                        unacknowledged_bytes_ < pool_.touched_count() * io::BufferPool::kPayloadBytes / 8 * 5;
  if (!do_write) {
    writers_first_since_.reset();
    return false;
  }
  if (!writers_first_since_) writers_first_since_ = now;
  return now - *writers_first_since_ < options_.writers_first_max;
}

void ClusterChunkStoreImpl::SchedulePump(const NodeId& node) {
  Peer& peer = peers_[node];
  if (closing_ || std::exchange(peer.pump_posted, true)) return;
  work_.Post([this, node] { Pump(node); });
}

void ClusterChunkStoreImpl::PumpAll() {
  const auto now = Clock::Now();
  for (auto& [node, peer] : peers_) {
    const bool asks = !peer.asks.empty() || !peer.waits.empty() || !peer.confirms.empty();
    const bool may_send = now >= peer.quiet_until && peer.sends_busy.MaySend(now, peer.sends_running);
    if (!peer.sends.empty() && may_send) SchedulePump(node);
    if (asks && peer.asks_busy.MaySend(now, 0)) SchedulePump(node);
  }
}

void ClusterChunkStoreImpl::Pump(const NodeId& node) {
  {
    MutexLock lock(mutex_);
    peers_[node].pump_posted = false;
    if (closing_) return;
  }
  while (StartAsks(node, /*hold=*/false)) {
  }
  while (StartAsks(node, /*hold=*/true)) {
  }
  while (StartConfirms(node)) {
  }
  while (StartSend(node)) {
  }
}

// False: nothing is to be sent now.
bool ClusterChunkStoreImpl::StartSend(const NodeId& node) {
  std::vector<SendItem> items;
  std::vector<PutItem> told;
  PeerMessage request;
  size_t bytes = 0;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[node];
    const auto now = Clock::Now();
    if (closing_ || now < peer.quiet_until || !peer.sends_busy.MaySend(now, peer.sends_running)) return false;
    if (WritersGoFirst()) {  // the ticker comes by
      if (!peer.sends.empty()) ++put_off_;
      return false;
    }
    if (peer.sends_running >= kPartialSendsMax) {
      size_t queued = 0;
      for (auto item = peer.sends.begin(); item != peer.sends.end() && queued < kPayloadBytesFull; ++item) {
        if (item->entry) queued += item->entry->size;
      }
      if (queued < kPayloadBytesFull && peer.sends.size() < kDigestsPerMessageMax) return false;
    }
    while (!peer.sends.empty() && bytes < kPayloadBytesFull && items.size() < kDigestsPerMessageMax) {
      SendItem& next = peer.sends.front();
      if (next.entry) {
        Entry& entry = *next.entry;
        if (entry.state == Entry::State::kDone) {
          peer.sends.pop_front();
          continue;
        }
        if (peer.window > 0 && peer.window + entry.size > options_.window_bytes_per_peer) break;
        peer.window += entry.size;
        if (entry.slices.empty()) {
          SendItem load = std::move(next);
          peer.sends.pop_front();
          ++loads_;
          put_queue_.Post([this, node, load = std::move(load)] { LoadThenSend(node, load); });
          continue;
        }
        bytes += entry.size;
        request.payload.insert(request.payload.end(), entry.slices.begin(), entry.slices.end());
        told.push_back({entry.digest, static_cast<uint32_t>(entry.size), entry.told});
      } else {
        told.push_back({next.digest, 0, next.holders});
      }
      items.push_back(std::move(next));
      peer.sends.pop_front();
    }
    if (items.empty()) return false;
    ++peer.sends_running;
  }
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  request.head = EncodePut(told);
  auto shared = std::make_shared<std::vector<SendItem>>(std::move(items));
  Call<std::vector<PutAnswer>>(node, PeerMethod::kPut, std::move(request), kPutTimeout, DecodePutReply,
                               [this, node, shared, bytes](Result<std::vector<PutAnswer>> answers) {
                                 OnSent(node, std::move(*shared), bytes, std::move(answers));
                               });
  return true;
}

// The chunk's bytes had to leave memory, or were never there: they are read from this node's disk, or from who has them
// already. `then` is called on work_, with the lock held.
void ClusterChunkStoreImpl::LoadBytes(const EntryPtr& entry, std::function<void(const Status&)> then) {
  auto done = [this, entry, then = std::move(then)](Result<store::ChunkData> data) {
    auto shared = std::make_shared<Result<store::ChunkData>>(std::move(data));
    work_.Post([this, entry, then, shared] {
      MutexLock lock(mutex_);
      if (shared->ok() && (*shared)->size != entry->size) {
        *shared = MakeError(ErrorCode::kCorrupt, "it has another size than the record of a file says");
      }
      if (shared->ok()) {
        entry->slices = (*shared)->slices;
        entry->failure.reset();
        const bool is_waited_for = entry->sequence != 0 && entry->state != Entry::State::kDone;
        if (is_waited_for) in_memory_.insert(entry->sequence);
      }
      then(shared->ok() ? Status() : Status(shared->error()));
      if (--loads_ == 0 && closing_) changed_.NotifyAll();
    });
  };
  local_.Get(entry->digest, [this, digest = entry->digest, done = std::move(done)](Result<store::ChunkData> data) {
    if (data.ok()) return done(std::move(data));
    OnLocalMiss(digest, data.error(), [done](Result<store::ChunkData> good, const auto&) { done(std::move(good)); });
  });
}

// Its size is in the window.
void ClusterChunkStoreImpl::LoadThenSend(const NodeId& node, const SendItem& item) {
  LoadBytes(item.entry, [this, node, item](const Status& loaded) {
    mutex_.AssertHeld();
    Peer& peer = peers_[node];
    peer.window -= item.entry->size;
    if (loaded.ok()) {
      peer.sends.push_front(item);
    } else if (!closing_) {
      OnLoadFailed(node, item.entry, loaded.error());
    }
    SchedulePump(node);
  });
}

// What was only covered is stored here where no other node can take it. False: not now.
bool ClusterChunkStoreImpl::LoadThenPut(const EntryPtr& entry) {
  if (!entry->only_covered || !entry->slices.empty() || entry->local != Entry::Local::kNone) return false;
  const ViewPtr view = reachability_.view();
  const NodeInfo* self = view->Find(self_);
  if (self == nullptr || !self->takes_chunks() || loads_here_ >= kLoadsHereMax) return false;
  entry->local = Entry::Local::kQueued;
  entry->must_tell = true;
  if (!entry->told.empty() && !Contains(entry->told, self_)) entry->told.push_back(self_);
  ++loads_;
  ++loads_here_;
  put_queue_.Post([this, entry] {
    LoadBytes(entry, [this, entry](const Status& loaded) {
      mutex_.AssertHeld();
      --loads_here_;
      if (loaded.ok()) {
        put_queue_.Post([this, entry] { PutLocally(entry); });
      } else {
        entry->local = Entry::Local::kNone;
        if (!closing_) OnLoadFailed(self_, entry, loaded.error());
      }
    });
  });
  return true;
}

// Only what needs this chunk fails: a Sync that covers it, for as long as somebody has it pinned. It is read again now
// and then, and a Put brings its bytes anew.
void ClusterChunkStoreImpl::OnLoadFailed(const NodeId& node, const EntryPtr& entry, const Error& error) {
  if (entry->state == Entry::State::kDone) return;
  std::erase(entry->sending, node);
  const bool is_damaged = error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kNotFound;
  if (is_damaged && entry->local == Entry::Local::kStored) entry->local = Entry::Local::kNone;
  if (!entry->slices.empty()) return Settle(entry);  // a Put has brought them meanwhile
  if (!entry->failure && !entry->only_covered) {     // else whoever waits for it says so, of files
    spdlog::error("chunk {} cannot be read back to be sent: {}", entry->digest.ToHex(), error.message);
  }
  const char* what = entry->only_covered
                         ? " was put on another node or before, and cannot be read to be copied"
                         : " was put and cannot be read back to be sent to other nodes; save it once more";
  entry->failure = error.WithContext("chunk " + entry->digest.ToHex() + what);
  entry->read_again_at = Clock::Now() + kReadAgainAfter;
  Settle(entry);
  if (sync_waiters_ > 0) changed_.NotifyAll();
}

// The caller's memory may go when Put returns, unless a slice owns it.
std::vector<io::Slice> ClusterChunkStoreImpl::KeepAlive(std::span<const io::Slice> slices) {
  std::vector<io::Slice> kept;
  kept.reserve(slices.size());
  for (const io::Slice& slice : slices) {
    if (slice.size == 0) continue;
    if (slice.owner || slice.memory) {
      kept.push_back(slice);
      continue;
    }
    std::shared_ptr<std::byte[]> copy(new std::byte[slice.size]);
    std::memcpy(copy.get(), slice.data, slice.size);
    const std::byte* data = copy.get();
    kept.push_back(io::Slice{{}, data, slice.size, std::move(copy)});
  }
  return kept;
}

// Of one that was only covered the bytes may be nowhere else, for all that this node knows.
void ClusterChunkStoreImpl::TakeBytesAgain(Entry& entry, std::span<const io::Slice> slices) {
  if (entry.state == Entry::State::kDone) return;
  const bool is_first = std::exchange(entry.only_covered, false);
  if (!entry.failure && !is_first) return;
  entry.slices = KeepAlive(slices);
  in_memory_.insert(entry.sequence);
  entry.failure.reset();  // RetryStuck comes by
}

// To be called for the last of several items first. News of who holds a chunk is kept for a node that is up. One that
// is not goes through its lists with the other holders when it comes back, and so does this node when there is more
// news than it can keep.
void ClusterChunkStoreImpl::GiveUpTarget(const NodeId& node, SendItem item) {
  if (item.entry) {
    std::erase(item.entry->sending, node);
    item.entry->must_tell = true;
    return Settle(item.entry);
  }
  const ViewPtr view = membership_.view();
  const NodeInfo* info = view->Find(node);
  if (info == nullptr || info->state != NodeState::kUp) return;
  Peer& peer = peers_[node];
  if (peer.sends.size() >= kNewsKeptMax) {
    news_dropped_ = true;
    return;
  }
  peer.sends.push_front(std::move(item));  // newer news of the same chunk must come after it
}

// The node does not answer: what waits for it goes elsewhere.
void ClusterChunkStoreImpl::RerouteQueue(const NodeId& node) {
  std::deque<SendItem> queue;
  Peer& peer = peers_[node];
  queue.swap(peer.sends);
  for (auto item = queue.rbegin(); item != queue.rend(); ++item) GiveUpTarget(node, std::move(*item));
}

void ClusterChunkStoreImpl::OnSent(const NodeId& node, std::vector<SendItem> items, size_t bytes,
                                   Result<std::vector<PutAnswer>> answers) {
  const bool ok = answers.ok() && answers->size() == items.size();
  const bool is_busy = !answers.ok() && answers.error().code == ErrorCode::kBusy;
  if (!ok && !is_busy) {
    spdlog::warn("sending chunks to node {}: {}", node.ToHex(),
                 answers.ok() ? "it answered for another count of chunks" : answers.error().message);
    reachability_.NoteFailed(node);
  }
  if (ok) {
    const bool is_full = std::any_of(answers->begin(), answers->end(), [](PutAnswer answer) {
      return answer == PutAnswer::kNoSpace || answer == PutAnswer::kFailed;
    });
    if (is_full) reachability_.NoteFull(node);
  }
  MutexLock lock(mutex_);
  Peer& peer = peers_[node];
  peer.window -= bytes;
  --peer.sends_running;
  if (is_busy) {
    peer.sends_busy.NoteBusy(Clock::Now());
    for (auto item = items.rbegin(); item != items.rend(); ++item) peer.sends.push_front(std::move(*item));
    return;  // the ticker comes by
  }
  if (ok) peer.sends_busy.NoteTaken();
  for (size_t i = items.size(); i-- > 0;) {  // backwards, for news that failed goes to the front again
    SendItem& item = items[i];
    if (!ok || !IsUp(node) || (item.entry && (*answers)[i] != PutAnswer::kDurable)) {
      if (ok && item.entry && (*answers)[i] == PutAnswer::kCorrupt && ++item.entry->corrupt_count >= kCorruptMax) {
        spdlog::error("chunk {} does not match its digest: its bytes changed in this node's memory",
                      item.digest.ToHex());
        item.entry->slices.clear();  // what is stored here is verified when it is read
      }
      GiveUpTarget(node, std::move(item));
      continue;
    }
    if (!item.entry) continue;
    std::erase(item.entry->sending, node);
    if (item.entry->state == Entry::State::kDone) continue;
    AddHolder(*item.entry, node);
    Settle(item.entry);
  }
  if (!ok) {
    peer.quiet_until = Clock::Now() + kFailedPause;
    RerouteQueue(node);
  }
  SchedulePump(node);
}

}  // namespace cairnfs::cluster
