#include "cluster/chunk_server.h"

#include <algorithm>

#include "base/log.h"
#include "chunking/digest.h"
#include "store/chunk_cache.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kChunksPerGetMax = 64;
// Read at once for one request: a reply is full with one chunk or with hundreds.
constexpr size_t kChunksPerWave = 4;

Error Malformed() {
  return MakeError(ErrorCode::kInvalidArgument,
                   "the request cannot be decoded, or has more of something than docs/formats/cluster.md allows");
}

}  // namespace

void ChunkServer::Handle(PeerMethod method, const NodeId& caller, const PeerMessage& request,
                         PeerServer::Respond respond) {
  switch (method) {
    case PeerMethod::kHas: return HandleHas(caller, request, std::move(respond));
    case PeerMethod::kConfirm: return HandleConfirm(request, std::move(respond));
    case PeerMethod::kPut: return HandlePut(caller, request, std::move(respond));
    case PeerMethod::kGet: return HandleGet(request, std::move(respond));
    default: return respond(MakeError(ErrorCode::kNotSupported, "not a question about chunks"));
  }
}

void ChunkServer::HandleHas(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond) {
  auto has = HasRequest::Decode(request.head);
  if (!has) return respond(Malformed());
  if (!has->hold) return respond(PeerMessage{EncodeHasReply(parts_.home.Ask(has->digests, caller)), {}});
  parts_.home.AskAndHold(std::move(has->digests), caller,
                         [respond = std::move(respond)](const std::vector<HasAnswer>& answers) {
                           respond(PeerMessage{EncodeHasReply(answers), {}});
                         });
}

// Others may be told of a chunk that is on its way to this node's disk before it has got there.
void ChunkServer::StorePending(const std::vector<Digest>& digests) {
  for (Replicator::Storing& one : parts_.replicator.FindStoring(digests)) {
    // Its own put may have set a newer list by now.
    const Holders holders = one.announced.empty() ? Holders{parts_.self} : std::move(one.announced);
    parts_.commit.SetHoldersIfNone(one.digest, holders);
    static_cast<void>(parts_.commit.Put(one.digest, one.bytes, holders));  // its own put tells
  }
}

void ChunkServer::HandleConfirm(const PeerMessage& request, PeerServer::Respond respond) {
  auto digests = DecodeDigests(request.head);
  if (!digests) return respond(Malformed());
  StorePending(*digests);
  const auto found = parts_.commit.Find(*digests);
  std::vector<bool> bits(found.size());
  bool any_new = false;
  for (size_t i = 0; i < found.size(); ++i) {
    bits[i] = found[i] != GroupCommit::Presence::kAbsent;
    any_new = any_new || found[i] == GroupCommit::Presence::kNew;
    // Others count on it from now on, so repair must see it.
    if (bits[i] && parts_.commit.SetHoldersIfNone((*digests)[i], {parts_.self})) any_new = true;
  }
  PeerMessage reply{EncodeBits(bits), {}};
  if (!any_new) return respond(std::move(reply));
  // What is here and not synced yet, or its list is not, is synced before it is vouched for.
  parts_.commit.Commit([reply = std::move(reply), respond = std::move(respond)](const Status& status) {
    if (!status.ok()) return respond(status.error());
    respond(reply);
  });
}

bool ChunkServer::IsDrained() const {
  const ViewPtr view = parts_.membership.view();
  const NodeInfo* self = view->Find(parts_.self);
  return self != nullptr && self->is_drained();
}

PutAnswer ChunkServer::StoreReceived(const PutItem& item, const std::vector<io::Slice>& slices) {
  if (IsDrained()) return PutAnswer::kNoSpace;  // who sends it does not know it yet
  chunking::Digester digester;
  for (const io::Slice& slice : slices) digester.Update(slice.bytes());
  if (!chunking::Names(item.digest, digester.Finish())) return PutAnswer::kCorrupt;
  parts_.commit.SetHolders(item.digest, item.holders);
  auto put = parts_.commit.Put(item.digest, slices, item.holders);
  if (!put.ok()) {
    if (put.error().code == ErrorCode::kNoSpace) return PutAnswer::kNoSpace;
    spdlog::error("a chunk from another node is not stored: {}", put.error().message);
    return PutAnswer::kFailed;
  }
  received_bytes_.fetch_add(item.size, std::memory_order_relaxed);
  return PutAnswer::kDurable;
}

void ChunkServer::HandlePut(const NodeId& caller, const PeerMessage& request, PeerServer::Respond respond) {
  auto items = DecodePut(request.head);
  if (!items) return respond(Malformed());
  PayloadReader payload(request.payload);
  std::vector<PutAnswer> answers(items->size(), PutAnswer::kDurable);
  std::vector<Digest> came;  // and nobody else's copy is waited for
  bool any = false;
  for (size_t i = 0; i < items->size(); ++i) {
    const PutItem& item = (*items)[i];
    if (item.size == 0) {
      TakeUpdate(item);
      any = true;
      continue;
    }
    auto slices = payload.Take(item.size);
    if (!slices) return respond(Malformed());
    answers[i] = StoreReceived(item, *slices);
    if (answers[i] != PutAnswer::kDurable) continue;
    any = true;
    const bool others = std::any_of(item.holders.begin(), item.holders.end(),
                                    [&](const NodeId& holder) { return holder != caller && holder != parts_.self; });
    if (!others) came.push_back(item.digest);
  }
  PeerMessage reply{EncodePutReply(answers), {}};
  auto finish = [this, came = std::move(came), reply = std::move(reply),
                 respond = std::move(respond)](const Status& status) {
    if (!status.ok()) return respond(status.error());
    for (const Digest& digest : came) parts_.home.EndClaim(digest);
    respond(reply);
  };
  if (!any) return finish({});
  parts_.commit.Commit(std::move(finish));  // updates too are forgotten by the sender once they were answered
}

// Those that wait for the chunk confirm it with the holders that they are told now.
void ChunkServer::TakeUpdate(const PutItem& item) {
  parts_.commit.SetHolders(item.digest, item.holders);
  // It may be up to this node to make the missing copies, if it is not merely the home.
  const bool is_short = item.holders.size() < parts_.copies && parts_.local.HasSound({&item.digest, 1})[0];
  if (is_short) parts_.needs.under_replicated.fetch_add(1);
  if (item.holders.size() > parts_.copies) parts_.needs.surplus = true;
  parts_.home.EndClaim(item.digest);
}

struct ChunkServer::Serving {
  std::vector<Digest> digests;
  PeerServer::Respond respond;
  Mutex mutex;
  std::vector<std::optional<Result<store::ChunkData>>> found GUARDED_BY(mutex);  // the first so many digests'
  size_t bytes GUARDED_BY(mutex) = 0;
  size_t left GUARDED_BY(mutex) = 0;  // of those that are being read
};

void ChunkServer::HandleGet(const PeerMessage& request, PeerServer::Respond respond) {
  auto digests = DecodeDigests(request.head);
  if (!digests || digests->size() > kChunksPerGetMax) return respond(Malformed());
  auto serving = std::make_shared<Serving>();
  serving->respond = std::move(respond);
  serving->digests = *std::move(digests);
  parts_.local.PrefetchFor(store::Reader::kOtherNode, serving->digests);  // those side by side in one read
  ReadWave(serving);
}

// Reads the next few chunks, until the reply is full.
void ChunkServer::ReadWave(const std::shared_ptr<Serving>& serving) {
  size_t begin, end;
  {
    MutexLock lock(serving->mutex);
    begin = serving->found.size();
    end = serving->bytes < kPayloadBytesFull ? std::min(begin + kChunksPerWave, serving->digests.size()) : begin;
    serving->found.resize(end);
    serving->left = end - begin;
  }
  if (begin == end) return AnswerGet(serving);
  for (size_t i = begin; i < end; ++i) {
    auto found = [this, serving, i](Result<store::ChunkData> data) {
      {
        MutexLock lock(serving->mutex);
        if (data.ok()) serving->bytes += data->size;
        serving->found[i] = std::move(data);
        if (--serving->left > 0) return;
      }
      parts_.work.Post([this, serving] { ReadWave(serving); });
    };
    parts_.reads.GetForOther(serving->digests[i], std::move(found));
  }
}

void ChunkServer::AnswerGet(const std::shared_ptr<Serving>& serving) {
  std::vector<std::optional<Result<store::ChunkData>>> all_found;
  {
    MutexLock lock(serving->mutex);
    all_found = std::move(serving->found);
  }
  std::vector<GetAnswer> answers(serving->digests.size());
  PeerMessage reply;
  size_t bytes = 0;
  for (size_t i = 0; i < answers.size(); ++i) {
    GetAnswer& answer = answers[i];
    answer.kind = GetAnswer::Kind::kLater;
    if (i >= all_found.size()) continue;
    const Result<store::ChunkData>& found = *all_found[i];
    if (found.ok() && bytes > 0 && bytes + found->size > kPayloadBytesFull) continue;
    if (found.ok()) {
      answer.kind = GetAnswer::Kind::kBytes;
      answer.size = static_cast<uint32_t>(found->size);
      bytes += found->size;
      reply.payload.insert(reply.payload.end(), found->slices.begin(), found->slices.end());
    } else if (found.error().code == ErrorCode::kNotFound) {
      answer.kind = GetAnswer::Kind::kNotHere;
      if (auto holders = parts_.commit.FindHolders(serving->digests[i])) answer.holders = *std::move(holders);
      std::erase(answer.holders, parts_.self);
    } else {
      answer.kind = GetAnswer::Kind::kDamaged;
      // This node gets itself a sound copy from another one. Not at once and again for each that asks: where that
      // node's is bad too, it asks here.
      parts_.reads.NoteDamaged(serving->digests[i]);
    }
  }
  sent_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  reply.head = EncodeGetReply(answers);
  serving->respond(std::move(reply));
}

}  // namespace cairnfs::cluster
