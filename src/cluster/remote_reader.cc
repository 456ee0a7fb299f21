#include "cluster/remote_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "chunking/digest.h"
#include "cluster/holder_lists.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {
namespace {

constexpr unsigned kCallsPerPeerMax = 3;
constexpr size_t kChunksPerCall = 16;
// What they bring is in memory beside the pool for a moment. More made nothing faster.
constexpr size_t kFetchesAheadMax = 64;
constexpr size_t kOrderLooked = 4;
constexpr std::chrono::seconds kCallTimeout{10};
constexpr std::chrono::seconds kProbeTimeout{3};
constexpr size_t kPackAlignment = 64;
// A node that works serves the first chunk that it is asked for at least: those that it put off come first the next
// time, so each is served after kChunksPerCall calls.
constexpr unsigned kLatersMax = 2 * kChunksPerCall;
// A node that nobody asked for so long may have been back meanwhile.
constexpr std::chrono::seconds kAwayKnownFor{60};

}  // namespace

struct RemoteReader::Operation {
  explicit Operation(const Digest& digest_in) : digest(digest_in) {}
  const Digest digest;
  // One thread at a time works on these.
  std::vector<NodeId> tried;
  std::vector<NodeId> named;   // said to have it
  std::vector<NodeId> silent;  // of those tried
  bool damaged_somewhere = false;
  std::vector<NodeId> given_up;  // of the silent: they may answer yet
  bool is_patient = false;       // it waits for one of these as long as a call lasts
  unsigned laters = 0;           // the node that is asked now put it off so often
  // Guarded by the reader's mutex_.
  std::vector<FetchCallback> waiting;
};

RemoteReader::RemoteReader(const Parts& parts, std::chrono::milliseconds silent_max)
    : parts_(parts), silent_max_(silent_max), workers_("cairn-remote", 2) {}

RemoteReader::~RemoteReader() { AwaitIdle(); }

void RemoteReader::AwaitIdle() {
  MutexLock lock(mutex_);
  while (running_ + calls_ > 0) ended_.Wait(mutex_);
}

void RemoteReader::Join(const Digest& digest, FetchCallback done) {
  OperationPtr operation;
  {
    MutexLock lock(mutex_);
    OperationPtr& slot = in_flight_[digest];
    if (slot) {
      if (done) slot->waiting.push_back(std::move(done));
      return;
    }
    slot = operation = std::make_shared<Operation>(digest);
    if (done) operation->waiting.push_back(std::move(done));
    ++running_;
  }
  workers_.Post([this, operation] { Start(operation); });
}

void RemoteReader::Fetch(const Digest& digest, FetchCallback done) { Join(digest, std::move(done)); }

void RemoteReader::Prefetch(const Digest& digest) {
  if (parts_.pool.UnderPressure() || parts_.cache.Contains(digest)) return;
  {
    MutexLock lock(mutex_);
    if (running_ >= kFetchesAheadMax) return;
  }
  Join(digest, nullptr);
}

void RemoteReader::Start(const OperationPtr& operation) {
  if (auto cached = parts_.cache.Find(operation->digest, store::Reader::kThisHost)) {
    return Finish(operation, *std::move(cached));
  }
  if (auto holders = parts_.commit.FindHolders(operation->digest)) operation->named = *std::move(holders);
  AskNext(operation);
}

// This node needs no asking.
bool RemoteReader::WasAsked(const Operation& operation, const NodeId& node) const {
  return node == parts_.membership.self() || Contains(operation.tried, node);
}

std::optional<NodeId> RemoteReader::ChooseNext(const Operation& operation) const {
  const NodeId self = parts_.membership.self();
  const ViewPtr view = parts_.reachability.view();
  auto is_candidate = [&](const NodeInfo* node) {
    return node != nullptr && node->state == NodeState::kUp && !WasAsked(operation, node->id);
  };
  const auto first = First(*view, operation.digest, kOrderLooked);
  if (operation.tried.empty()) {
    // The home, so that readers on all hosts meet at one node, which reads its disk once.
    for (const NodeInfo* node : first) {
      if (is_candidate(node)) return node->id;
      if (node->id == self) break;  // this node is the home, and has it not: it knows who does
    }
  }
  for (const NodeId& named : operation.named) {
    if (is_candidate(view->Find(named))) return named;
  }
  for (const NodeInfo* node : first) {
    if (is_candidate(node)) return node->id;
  }
  for (const NodeInfo* node : Order(*view, operation.digest)) {
    if (is_candidate(node)) return node->id;
  }
  const ViewPtr told = parts_.membership.view();  // with those that did not answer lately
  for (const NodeInfo& node : told->nodes) {
    if (is_candidate(&node)) return node.id;
  }
  // One whose session ended may live: after metadata that was away for long, all of them are like that for a moment.
  // What it says is verified as always.
  for (const NodeInfo& node : told->nodes) {
    if (node.state == NodeState::kDown && !node.address.empty() && !WasAsked(operation, node.id)) return node.id;
  }
  return std::nullopt;
}

// False also of one that came up when the others had been asked.
bool RemoteReader::HasAnswered(const Operation& operation, const NodeId& node) const {
  return WasAsked(operation, node) && !Contains(operation.silent, node);
}

Error RemoteReader::NotFoundAnywhere(const Operation& operation) const {
  const std::string chunk = "chunk " + operation.digest.ToHex();
  if (operation.damaged_somewhere) return MakeError(ErrorCode::kCorrupt, chunk + ": no node has a copy that is sound");
  std::string away;
  const ViewPtr view = parts_.membership.view();
  for (const NodeInfo& node : view->nodes) {
    if (!HasAnswered(operation, node.id)) away += " " + node.name;
  }
  for (const NodeId& node : operation.silent) {
    if (view->Find(node) == nullptr) away += " " + node.ToHex();
  }
  if (away.empty()) return MakeError(ErrorCode::kNotFound, "no " + chunk + " on any node");
  return MakeError(ErrorCode::kUnavailable, chunk + " is on no node that answers; these do not:" + away);
}

void RemoteReader::NoteAway(Peer& peer) {
  const auto now = Clock::Now();
  if (!peer.away_since || now - peer.away_seen > kAwayKnownFor) peer.away_since = now;
  peer.away_seen = now;
}

void RemoteReader::NoteUp(const NodeId& node) {
  MutexLock lock(mutex_);
  if (auto found = peers_.find(node); found != peers_.end()) found->second.away_since.reset();
}

// Nodes that are out are not expected back.
std::optional<Clock::time_point> RemoteReader::AwaySince(const Operation& operation) {
  const ViewPtr view = parts_.membership.view();
  std::optional<Clock::time_point> since;
  MutexLock lock(mutex_);
  for (const NodeInfo& node : view->nodes) {
    if (node.state == NodeState::kOut || HasAnswered(operation, node.id)) continue;
    Peer& peer = peers_[node.id];
    NoteAway(peer);  // it may have been passed over without a call
    since = since ? std::max(*since, *peer.away_since) : *peer.away_since;
  }
  return since;
}

void RemoteReader::AskNext(const OperationPtr& operation) {
  auto node = ChooseNext(*operation);
  // A node that is only slow, as its disk is, may be the one that has it.
  if (!node && !operation->given_up.empty()) {
    node = operation->given_up.back();
    operation->given_up.pop_back();
    std::erase(operation->silent, *node);
    operation->is_patient = true;
  }
  if (!node) {
    Error error = NotFoundAnywhere(*operation);
    const auto away_since = error.code != ErrorCode::kNotFound ? AwaySince(*operation) : std::nullopt;
    return Finish(operation, std::move(error), away_since);
  }
  operation->tried.push_back(*node);
  operation->laters = 0;
  {
    MutexLock lock(mutex_);
    peers_[*node].queue.push_back(operation);
  }
  Pump(*node);
}

void RemoteReader::Pump(const NodeId& node) {
  for (;;) {
    auto call = std::make_shared<std::vector<OperationPtr>>();
    std::vector<Digest> digests;
    {
      MutexLock lock(mutex_);
      Peer& peer = peers_[node];
      if (peer.queue.empty() || peer.calls.size() >= kCallsPerPeerMax) return;
      while (!peer.queue.empty() && call->size() < kChunksPerCall) {
        digests.push_back(peer.queue.front()->digest);
        call->push_back(std::move(peer.queue.front()));
        peer.queue.pop_front();
      }
      peer.calls.push_back(call);
      ++calls_;
    }
    parts_.client.Call(node, PeerMethod::kGet, {EncodeDigests(digests), {}}, kCallTimeout,
                       [this, node, call](Result<PeerMessage> reply) {
                         auto shared = std::make_shared<Result<PeerMessage>>(std::move(reply));
                         workers_.Post([this, node, call, shared] {
                           OnReply(node, call, std::move(*shared));
                           EndCall();
                         });
                       });
  }
}

void RemoteReader::EndCall() {
  MutexLock lock(mutex_);
  if (--calls_ == 0) ended_.NotifyAll();
}

std::vector<RemoteReader::OperationPtr> RemoteReader::TakeImpatient(Peer& peer) {
  std::vector<OperationPtr> taken;
  const auto take = [&](OperationPtr& operation) {
    if (operation && !operation->is_patient) taken.push_back(std::exchange(operation, nullptr));
  };
  for (const Asked& call : peer.calls) std::for_each(call->begin(), call->end(), take);
  std::for_each(peer.queue.begin(), peer.queue.end(), take);
  std::erase(peer.queue, nullptr);
  return taken;
}

void RemoteReader::Tick() {
  std::vector<NodeId> probed;
  std::vector<std::pair<NodeId, std::vector<OperationPtr>>> given_up;
  const ViewPtr view = parts_.membership.view();
  {
    MutexLock lock(mutex_);
    const auto now = Clock::Now();
    for (auto& [node, peer] : peers_) {
      const NodeInfo* info = view->Find(node);
      if (info == nullptr || info->state != NodeState::kUp) peer.is_suspected = false;  // what is known says more
      const bool is_asked = !peer.calls.empty() || !peer.queue.empty() || peer.is_suspected;
      if (!is_asked) continue;
      const auto silent_since = parts_.client.SilentSince(node);
      if (silent_since && now - *silent_since >= silent_max_) {
        if (!std::exchange(peer.is_suspected, true)) NoteAway(peer);
        given_up.emplace_back(node, TakeImpatient(peer));
      } else if (peer.is_suspected && !std::exchange(peer.is_probed, true)) {
        probed.push_back(node);  // nothing else would tell that it answers again
      }
      if (peer.is_suspected) parts_.reachability.NoteFailed(node);
    }
  }
  for (const NodeId& node : probed) Probe(node);
  for (auto& [node, fetches] : given_up) {
    for (const OperationPtr& operation : fetches) {
      workers_.Post([this, node = node, operation] {
        operation->silent.push_back(node);
        operation->given_up.push_back(node);
        AskNext(operation);
      });
    }
  }
}

// Any answer will do.
void RemoteReader::Probe(const NodeId& node) {
  {
    MutexLock lock(mutex_);
    ++calls_;
  }
  parts_.client.Call(node, PeerMethod::kGet, {EncodeDigests({}), {}}, kProbeTimeout,
                     [this, node](const Result<PeerMessage>& reply) {
                       const bool has_answered = reply.ok();
                       workers_.Post([this, node, has_answered] {
                         {
                           MutexLock lock(mutex_);
                           Peer& peer = peers_[node];
                           peer.is_probed = false;
                           if (has_answered) peer.is_suspected = false;
                         }
                         EndCall();
                       });
                     });
}

void RemoteReader::OnReply(const NodeId& node, const Asked& call, Result<PeerMessage> reply) {
  std::optional<std::vector<GetAnswer>> answers;
  if (reply.ok()) answers = DecodeGetReply(reply->head);
  std::vector<OperationPtr> asked;
  bool has_answered = false;
  {
    MutexLock lock(mutex_);
    Peer& peer = peers_[node];
    std::erase(peer.calls, call);
    asked.swap(*call);
    has_answered = answers && answers->size() == asked.size();
    if (has_answered) {
      peer.is_suspected = false;
      peer.away_since.reset();
    } else {
      NoteAway(peer);
    }
  }
  if (!has_answered) {
    if (!reply.ok() && reply.error().code != ErrorCode::kBusy) parts_.reachability.NoteFailed(node);
    for (const OperationPtr& operation : asked) {
      if (!operation) continue;
      operation->silent.push_back(node);
      AskNext(operation);
    }
    return Pump(node);
  }
  Pump(node);
  PayloadReader payload(reply->payload);
  std::vector<OperationPtr> later;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!asked[i]) {
      // It came too late.
      if ((*answers)[i].kind == GetAnswer::Kind::kBytes) static_cast<void>(payload.Take((*answers)[i].size));
    } else if ((*answers)[i].kind == GetAnswer::Kind::kLater && ++asked[i]->laters <= kLatersMax) {
      later.push_back(asked[i]);
    } else {
      OnAnswer(node, asked[i], std::move((*answers)[i]), payload);
    }
  }
  {
    MutexLock lock(mutex_);
    std::deque<OperationPtr>& queue = peers_[node].queue;
    queue.insert(queue.begin(), later.begin(), later.end());
  }
  Pump(node);
}

void RemoteReader::OnAnswer(const NodeId& node, const OperationPtr& operation, GetAnswer&& answer,
                            PayloadReader& payload) {
  switch (answer.kind) {
    case GetAnswer::Kind::kBytes: {
      auto slices = payload.Take(answer.size);
      Result<store::ChunkData> data =
          slices ? VerifyAndKeep(operation, *slices, answer.size)
                 : Result<store::ChunkData>(MakeError(ErrorCode::kCorrupt, "a reply is shorter than it says"));
      if (data.ok()) return Finish(operation, data);
      spdlog::warn("node {} sent a chunk that is wrong: {}", node.ToHex(), data.error().message);
      operation->damaged_somewhere = true;
      break;
    }
    case GetAnswer::Kind::kNotHere:
      for (const NodeId& holder : answer.holders) {
        if (!Contains(operation->named, holder)) operation->named.push_back(holder);
      }
      break;
    case GetAnswer::Kind::kDamaged: operation->damaged_somewhere = true; break;
    case GetAnswer::Kind::kLater:
      spdlog::warn("node {} puts off chunk {} again and again", node.ToHex(), operation->digest.ToHex());
      operation->silent.push_back(node);
      break;
  }
  AskNext(operation);
}

// Side by side in shared buffers, so that a chunk does not take a megabyte of the pool. Memory of its own when the pool
// has none to spare: a read never waits for buffers.
std::vector<io::Slice> RemoteReader::CopyToPool(const std::vector<io::Slice>& slices, size_t size) {
  std::vector<io::Slice> reserved;
  {
    MutexLock lock(packing_mutex_);
    size_t left = size;
    while (left > 0) {
      if (!packed_ || packed_used_ >= io::BufferPool::kPayloadBytes) {
        packed_ = parts_.pool.UnderPressure() ? io::BufferRef() : parts_.pool.TryAcquire();
        packed_used_ = 0;
        if (!packed_) break;
      }
      const size_t part = std::min(left, io::BufferPool::kPayloadBytes - packed_used_);
      reserved.push_back(io::Slice{packed_, packed_.payload() + packed_used_, part});
      packed_used_ += AlignUp(part, kPackAlignment);
      left -= part;
    }
    if (left > 0) reserved.clear();
  }
  if (reserved.empty()) {
    std::shared_ptr<std::byte[]> memory(new std::byte[size]);
    const std::byte* data = memory.get();
    reserved.push_back(io::Slice{{}, data, size, std::move(memory)});
  }
  size_t index = 0, offset = 0;
  for (const io::Slice& slice : slices) {
    for (size_t copied = 0; copied < slice.size;) {
      const io::Slice& target = reserved[index];
      const size_t part = std::min(slice.size - copied, target.size - offset);
      std::memcpy(const_cast<std::byte*>(target.data) + offset, slice.data + copied, part);
      copied += part;
      offset += part;
      if (offset == target.size) {
        ++index;
        offset = 0;
      }
    }
  }
  return reserved;
}

Result<store::ChunkData> RemoteReader::VerifyAndKeep(const OperationPtr& operation,
                                                     const std::vector<io::Slice>& slices, size_t size) {
  const Digest& digest = operation->digest;
  std::vector<io::Slice> copied = CopyToPool(slices, size);
  chunking::Digester digester;  // of the copy, which lies in the cores' caches
  for (const io::Slice& slice : copied) digester.Update(slice.bytes());
  if (!chunking::Names(digest, digester.Finish())) {
    return MakeError(ErrorCode::kCorrupt, "chunk " + digest.ToHex() + " does not match its digest");
  }
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  counters_.read_bytes.fetch_add(size, std::memory_order_relaxed);
  store::ChunkData data;
  data.slices = std::move(copied);
  data.size = size;
  bool is_waited_for;
  {
    MutexLock lock(mutex_);
    is_waited_for = !operation->waiting.empty();
  }
  const auto used_by = is_waited_for ? store::Reader::kThisHost : store::Reader::kNone;
  return parts_.cache.InsertFetched(digest, std::move(data), used_by);
}

void RemoteReader::Finish(const OperationPtr& operation, const Result<store::ChunkData>& result,
                          const std::optional<Clock::time_point>& away_since) {
  std::vector<FetchCallback> waiting;
  {
    MutexLock lock(mutex_);
    in_flight_.erase(operation->digest);
    waiting.swap(operation->waiting);
  }
  for (FetchCallback& done : waiting) done(result, away_since);
  MutexLock lock(mutex_);
  if (--running_ == 0) ended_.NotifyAll();
}

}  // namespace cairnfs::cluster
