#include "cluster/peer_queues.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace cairnfs::cluster {
namespace {

constexpr unsigned kHeldAsksMax = 4;
constexpr size_t kAskedBesideWriters = 32;  // fewer wait until writers have gone first
// A message that is not full goes out at once while fewer than this are under way.
constexpr unsigned kPartialSendsMax = 3;
constexpr std::chrono::milliseconds kFailedPause{300};
constexpr size_t kUpdatesMax = 64 * 1024;

}  // namespace

void PeerQueues::Ask(const NodeId& node, Question question, const ChunkPtr& chunk) {
  Of(node, question).queue.push_back(chunk);
}

void PeerQueues::Send(const NodeId& node, const ChunkPtr& chunk) {
  peers_[node].sends.push_back({chunk, chunk->digest(), {}});
}

size_t PeerQueues::Tell(const NodeId& node, const Digest& digest, const Holders& holders) {
  Peer& peer = peers_[node];
  if (peer.updates < kUpdatesMax) {
    peer.sends.push_back({nullptr, digest, holders});
    ++peer.updates;
  } else {
    updates_dropped_ = true;
  }
  return peer.sends.size();
}

void PeerQueues::TellFirst(const NodeId& node, Item update) {
  assert(update.chunk == nullptr);
  Peer& peer = peers_[node];
  if (peer.updates < kUpdatesMax) {
    peer.sends.push_front(std::move(update));
    ++peer.updates;
  } else {
    updates_dropped_ = true;
  }
}

// One question at a time is under way, so that the next gathers; more when it has become a full message.
std::vector<ChunkPtr> PeerQueues::TakeQuestion(const NodeId& node, Question question, Clock::time_point now,
                                               Pace pace) {
  auto& [queue, running] = Of(node, question);
  if (queue.empty() || !peers_[node].asks_busy.MaySend(now, 0)) return {};
  if (running > 0 && queue.size() < kDigestsPerMessageMax) return {};
  if (question == Question::kHeldHas && running >= kHeldAsksMax) return {};
  if (question != Question::kConfirm && queue.size() < kAskedBesideWriters && pace == Pace::kAfterWriters) {
    ++put_off_;
    return {};
  }
  ++running;
  const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min(queue.size(), kDigestsPerMessageMax));
  std::vector<ChunkPtr> chunks(std::make_move_iterator(queue.begin()), std::make_move_iterator(end));
  queue.erase(queue.begin(), end);
  return chunks;
}

void PeerQueues::OnReply(const NodeId& node, Question question, Reply reply, const std::vector<ChunkPtr>& chunks,
                         Clock::time_point now) {
  auto& [queue, running] = Of(node, question);
  assert(running > 0);
  --running;
  if (reply == Reply::kAnswered) peers_[node].asks_busy.NoteTaken();
  if (reply != Reply::kBusy) return;
  peers_[node].asks_busy.NoteBusy(now);
  queue.insert(queue.begin(), chunks.begin(), chunks.end());
}

std::vector<ChunkPtr> PeerQueues::TakeUnasked(const NodeId& node) {
  std::vector<ChunkPtr> chunks;
  for (Question question : {Question::kHas, Question::kHeldHas}) {
    std::deque<ChunkPtr>& queue = Of(node, question).queue;
    chunks.insert(chunks.end(), queue.begin(), queue.end());
    queue.clear();
  }
  return chunks;
}

bool PeerQueues::FillsMessage(const Peer& peer) {
  size_t bytes = 0;
  for (auto item = peer.sends.begin(); item != peer.sends.end() && bytes < kPayloadBytesFull; ++item) {
    if (item->chunk) bytes += item->chunk->size();
  }
  return bytes >= kPayloadBytesFull || peer.sends.size() >= kDigestsPerMessageMax;
}

PeerQueues::Message PeerQueues::TakeMessage(const NodeId& node, Clock::time_point now, Pace pace) {
  Peer& peer = peers_[node];
  Message message;
  if (peer.sends.empty() || !peer.MaySend(now)) return message;
  if (pace == Pace::kAfterWriters) {
    ++put_off_;
    return message;
  }
  if (peer.sends_running >= kPartialSendsMax && !FillsMessage(peer)) return message;
  while (!peer.sends.empty() && message.bytes < kPayloadBytesFull && message.items.size() < kDigestsPerMessageMax) {
    Item& next = peer.sends.front();
    const size_t size = next.chunk ? next.chunk->size() : 0;
    const bool is_needed = next.chunk == nullptr || !next.chunk->is_done();
    if (is_needed && size > 0 && peer.window > 0 && peer.window + size > window_bytes_) break;
    if (next.chunk == nullptr) --peer.updates;
    if (is_needed) {
      const bool must_load = next.chunk && next.chunk->bytes().empty();
      peer.window += size;
      if (!must_load) message.bytes += size;
      (must_load ? message.to_load : message.items).push_back(std::move(next));
    }
    peer.sends.pop_front();
  }
  if (!message.items.empty()) ++peer.sends_running;
  return message;
}

void PeerQueues::OnSent(const NodeId& node, Reply reply, Message& message, Clock::time_point now) {
  Peer& peer = peers_[node];
  assert(peer.sends_running > 0 && peer.window >= message.bytes);
  peer.window -= message.bytes;
  --peer.sends_running;
  if (reply == Reply::kAnswered) return peer.sends_busy.NoteTaken();
  if (reply == Reply::kFailed) peer.quiet_until = now + kFailedPause;
  if (reply == Reply::kBusy) peer.sends_busy.NoteBusy(now);
  for (auto item = message.items.rbegin(); item != message.items.rend(); ++item) {
    if (item->chunk == nullptr) ++peer.updates;
    peer.sends.push_front(std::move(*item));
  }
}

void PeerQueues::OnLoaded(const NodeId& node, Item item) {
  OnLoadFailed(node, item);
  peers_[node].sends.push_front(std::move(item));
}

void PeerQueues::OnLoadFailed(const NodeId& node, const Item& item) {
  assert(peers_[node].window >= item.chunk->size());
  peers_[node].window -= item.chunk->size();
}

std::deque<PeerQueues::Item> PeerQueues::TakeUnsent(const NodeId& node) {
  peers_[node].updates = 0;
  return std::exchange(peers_[node].sends, {});
}

std::vector<NodeId> PeerQueues::Ready(Clock::time_point now) const {
  std::vector<NodeId> nodes;
  for (const auto& [node, peer] : peers_) {
    const bool may_ask =
        std::any_of(peer.asked.begin(), peer.asked.end(), [](const Asked& asked) { return !asked.queue.empty(); }) &&
        peer.asks_busy.MaySend(now, 0);
    if (may_ask || (!peer.sends.empty() && peer.MaySend(now))) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace cairnfs::cluster
