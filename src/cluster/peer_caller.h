// Calls to other nodes whose replies are decoded, and handled on a queue of work.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/answer.h"
#include "base/task_queue.h"
#include "cluster/peer_client.h"

namespace cairnfs::cluster {

class PeerCaller {
 public:
  // Both outlive it.
  PeerCaller(PeerClient& client, TaskQueue& work) : client_(client), work_(work) {}

  // As PeerClient::Call, but `done` runs on the queue. kIo: the reply cannot be decoded.
  template <typename Reply>
  // NOLINTNEXTLINE(performance-unnecessary-value-param): it is moved on
  void Call(const NodeId& node, PeerMethod method, PeerMessage request, std::chrono::milliseconds timeout,
            std::optional<Reply> (*decode)(std::string_view), std::function<void(Result<Reply>)> done) {
    client_.Call(node, method, std::move(request), timeout,
                 [this, decode, done = std::move(done)](Result<PeerMessage> reply) {
                   Result<Reply> decoded = MakeError(ErrorCode::kIo, "a node answered what cannot be decoded");
                   if (!reply.ok()) {
                     decoded = reply.error();
                   } else if (auto value = decode(reply->head)) {
                     decoded = *std::move(value);
                   }
                   work_.Post([done, decoded = std::move(decoded)] { done(decoded); });
                 });
  }

  // One bit for each: whether the node has a sound copy, which is durable then.
  using Bits = std::shared_ptr<Answer<Result<std::vector<bool>>>>;
  Bits Confirm(const NodeId& node, const std::vector<Digest>& digests, std::chrono::milliseconds timeout) {
    auto answer = std::make_shared<Answer<Result<std::vector<bool>>>>();
    Call<std::vector<bool>>(node, PeerMethod::kConfirm, {EncodeDigests(digests), {}}, timeout, DecodeBits,
                            [answer](Result<std::vector<bool>> bits) { answer->Set(std::move(bits)); });
    return answer;
  }

 private:
  PeerClient& client_;
  TaskQueue& work_;
};

}  // namespace cairnfs::cluster
