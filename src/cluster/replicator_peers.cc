// What the replicator asks other nodes, tells them and sends them: digests and chunks, many in a message.
#include <algorithm>

#include "base/log.h"
#include "cluster/replicator.h"

namespace cairnfs::cluster {
namespace {

using Reply = PeerQueues::Reply;

// The receiver syncs before it answers.
constexpr std::chrono::milliseconds kPutTimeout{20'000};

std::vector<Digest> DigestsOf(const std::vector<ChunkPtr>& chunks) {
  std::vector<Digest> digests;
  digests.reserve(chunks.size());
  for (const ChunkPtr& chunk : chunks) digests.push_back(chunk->digest());
  return digests;
}

// Of a message with `count` digests.
template <typename Answers>
Reply ReplyOf(const Result<Answers>& answers, size_t count) {
  if (answers.ok()) return answers->size() == count ? Reply::kAnswered : Reply::kFailed;
  return answers.error().code == ErrorCode::kBusy ? Reply::kBusy : Reply::kFailed;
}

}  // namespace

PeerQueues::Pace Replicator::PaceNow() {
  const bool is_memory_short =
      pending_.awaited_bytes() >= parts_.pool.touched_count() * io::BufferPool::kPayloadBytes / 8 * 5;
  if (sync_waiters_ > 0 || is_memory_short) {
    writers_.Stop();
    return PeerQueues::Pace::kNow;
  }
  return writers_.AreWriting(Clock::Now()) ? PeerQueues::Pace::kAfterWriters : PeerQueues::Pace::kNow;
}

void Replicator::PumpSoon(const NodeId& node) {
  if (closing_ || !pumps_.insert(node).second) return;
  parts_.work.Post([this, node] { Pump(node); });
}

// What may not go now goes when the ticker comes by.
void Replicator::PumpReady() {
  for (const NodeId& node : queues_.Ready(Clock::Now())) PumpSoon(node);
}

void Replicator::Pump(const NodeId& node) {
  {
    MutexLock lock(mutex_);
    pumps_.erase(node);
  }
  for (Question question : {Question::kHas, Question::kHeldHas, Question::kConfirm}) {
    while (StartQuestion(node, question)) {
    }
  }
  while (StartSend(node)) {
  }
}

bool Replicator::StartQuestion(const NodeId& node, Question question) {
  std::vector<ChunkPtr> chunks;
  PeerSession peer;
  {
    MutexLock lock(mutex_);
    if (closing_) return false;
    peer = Now().SessionOf(node);
    chunks = queues_.TakeQuestion(node, question, Clock::Now(), PaceNow());
  }
  if (chunks.empty()) return false;
  std::vector<Digest> digests = DigestsOf(chunks);
  const PeerTimeouts& timeouts = options_.timeouts;
  if (question == Question::kConfirm) {
    parts_.caller.Call<std::vector<bool>>(
        node, PeerMethod::kConfirm, {EncodeDigests(digests), {}}, timeouts.confirm, DecodeBits,
        [this, peer, chunks](const Result<std::vector<bool>>& bits) { OnConfirmed(peer, chunks, bits); });
    return true;
  }
  auto on_answers = [this, peer, question, chunks](const Answers& answers) {
    OnAsked(peer, question, chunks, answers);
  };
  const bool hold = question == Question::kHeldHas;
  if (node != self_) {
    PeerMessage request{HasRequest{hold, std::move(digests)}.Encode(), {}};
    parts_.caller.Call<std::vector<HasAnswer>>(node, PeerMethod::kHas, std::move(request),
                                               hold ? timeouts.ask_and_hold : timeouts.ask, DecodeHasReply, on_answers);
  } else if (hold) {
    parts_.home.AskAndHold(std::move(digests), self_, [this, on_answers](std::vector<HasAnswer> answers) {
      parts_.work.Post([on_answers, answers = std::move(answers)] { on_answers(answers); });
    });
  } else {
    on_answers(parts_.home.Ask(digests, self_));
  }
  return true;
}

void Replicator::OnAsked(const PeerSession& peer, Question question, const std::vector<ChunkPtr>& chunks,
                         const Answers& answers) {
  const NodeId& node = peer.node;
  const Reply reply = ReplyOf(answers, chunks.size());
  if (reply == Reply::kFailed) parts_.reachability.NoteFailed(node);
  std::vector<bool> is_here(chunks.size());
  if (reply == Reply::kAnswered) is_here = parts_.local.HasSound(DigestsOf(chunks));
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!is_here[i] || !(*answers)[i].is_known()) continue;
    Holders holders = (*answers)[i].holders;  // and this node's copy counts, so repair must see it
    if (!Contains(holders, self_)) holders.push_back(self_);
    parts_.commit.SetHoldersIfNone(chunks[i]->digest(), holders);
  }
  MutexLock lock(mutex_);
  queues_.OnReply(node, question, reply, chunks, Clock::Now());
  if (closing_ || reply == Reply::kBusy) return;
  if (reply == Reply::kFailed) {
    // Whatever else waits for this node goes to the next one as well.
    for (const ChunkPtr& chunk : chunks) Apply(chunk, chunk->OnHomeFailed(Now()));
    for (const ChunkPtr& chunk : queues_.TakeUnasked(node)) Apply(chunk, chunk->OnHomeFailed(Now()));
    return;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    Apply(chunks[i], chunks[i]->OnHomeAnswer(Now(), peer, (*answers)[i], is_here[i]));
  }
  PumpSoon(node);
}

void Replicator::OnConfirmed(const PeerSession& peer, const std::vector<ChunkPtr>& chunks,
                             const Result<std::vector<bool>>& bits) {
  using Confirmation = ChunkCopies::Confirmation;
  const NodeId& node = peer.node;
  const Reply reply = ReplyOf(bits, chunks.size());
  if (reply == Reply::kFailed) parts_.reachability.NoteFailed(node);
  MutexLock lock(mutex_);
  queues_.OnReply(node, Question::kConfirm, reply, chunks, Clock::Now());
  if (closing_ || reply == Reply::kBusy) return;
  for (size_t i = 0; i < chunks.size(); ++i) {
    Confirmation confirmation = Confirmation::kNoAnswer;
    if (reply == Reply::kAnswered) confirmation = (*bits)[i] ? Confirmation::kHasIt : Confirmation::kHasItNot;
    Apply(chunks[i], chunks[i]->OnConfirmed(Now(), peer, confirmation));
  }
  PumpSoon(node);
}

bool Replicator::StartSend(const NodeId& node) {
  PeerQueues::Message message;
  std::vector<PutItem> items;
  PeerMessage request;
  PeerSession peer;
  {
    MutexLock lock(mutex_);
    if (closing_) return false;
    peer = Now().SessionOf(node);
    message = queues_.TakeMessage(node, Clock::Now(), PaceNow());
    for (const PeerQueues::Item& item : message.to_load) {
      Load(item.chunk, node, [this, node, item](const Status& loaded) {
        mutex_.AssertHeld();
        if (loaded.ok()) {
          queues_.OnLoaded(node, item);
        } else {
          queues_.OnLoadFailed(node, item);
        }
        PumpSoon(node);
      });
    }
    for (const PeerQueues::Item& item : message.items) {
      if (item.chunk == nullptr) {
        items.push_back({item.digest, 0, item.holders});
        continue;
      }
      const std::vector<io::Slice>& bytes = item.chunk->bytes();
      request.payload.insert(request.payload.end(), bytes.begin(), bytes.end());
      items.push_back({item.digest, static_cast<uint32_t>(item.chunk->size()), item.chunk->announced()});
    }
  }
  if (items.empty()) return false;
  sent_bytes_.fetch_add(message.bytes, std::memory_order_relaxed);
  request.head = EncodePut(items);
  auto shared = std::make_shared<PeerQueues::Message>(std::move(message));
  parts_.caller.Call<std::vector<PutAnswer>>(node, PeerMethod::kPut, std::move(request), kPutTimeout, DecodePutReply,
                                             [this, peer, shared](const Result<std::vector<PutAnswer>>& answers) {
                                               OnSent(peer, std::move(*shared), answers);
                                             });
  return true;
}

void Replicator::OnSent(const PeerSession& peer, PeerQueues::Message message,
                        const Result<std::vector<PutAnswer>>& answers) {
  using SendResult = ChunkCopies::SendResult;
  const NodeId& node = peer.node;
  const std::vector<PeerQueues::Item>& items = message.items;
  const Reply reply = ReplyOf(answers, items.size());
  if (reply == Reply::kFailed) {
    spdlog::warn("sending chunks to node {}: {}", node.ToHex(),
                 answers.ok() ? "it answered for another count of chunks" : answers.error().message);
    parts_.reachability.NoteFailed(node);
  } else if (reply == Reply::kAnswered) {
    const bool is_full = std::any_of(answers->begin(), answers->end(), [](PutAnswer answer) {
      return answer == PutAnswer::kNoSpace || answer == PutAnswer::kFailed;
    });
    if (is_full) parts_.reachability.NoteFull(node);
  }
  MutexLock lock(mutex_);
  queues_.OnSent(node, reply, message, Clock::Now());
  if (closing_ || reply == Reply::kBusy) return;
  if (reply == Reply::kFailed) {
    GiveUpUnsent(node);
    return PumpSoon(node);
  }
  const bool counts = Now().Counts(peer);
  for (size_t i = items.size(); i-- > 0;) {  // backwards: updates that are told again go to the front
    const ChunkPtr& chunk = items[i].chunk;
    if (chunk == nullptr) {
      if (!counts) queues_.TellFirst(node, items[i]);
      continue;
    }
    SendResult result = SendResult::kNotStored;
    if ((*answers)[i] == PutAnswer::kDurable) result = SendResult::kDurable;
    if ((*answers)[i] == PutAnswer::kCorrupt) result = SendResult::kCorrupt;
    const bool had_bytes = !chunk->bytes().empty();
    const auto actions = chunk->OnSent(Now(), peer, result);
    if (result == SendResult::kCorrupt && had_bytes && chunk->bytes().empty()) {
      spdlog::error("chunk {} does not match its digest: its bytes changed in this node's memory",
                    chunk->digest().ToHex());
    }
    Apply(chunk, actions);
  }
  PumpSoon(node);
}

// The node does not answer: chunks that wait for it go elsewhere. Updates of who holds a chunk are kept for a node that
// is up. One that is not goes through its lists with the other holders when it comes back.
void Replicator::GiveUpUnsent(const NodeId& node) {
  const bool is_up = Now().IsUp(node);
  std::deque<PeerQueues::Item> items = queues_.TakeUnsent(node);
  for (auto item = items.rbegin(); item != items.rend(); ++item) {
    if (item->chunk) {
      Apply(item->chunk, item->chunk->OnSent(Now(), {node}, ChunkCopies::SendResult::kNotStored));
    } else if (is_up) {
      queues_.TellFirst(node, std::move(*item));
    }
  }
}

}  // namespace cairnfs::cluster
