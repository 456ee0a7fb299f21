// A call to another node whose reply is decoded and handled on the store's work queue. Private to src/cluster.
#pragma once

#include "cluster/cluster_chunk_impl.h"

namespace cairnfs::cluster {

template <typename Reply>
void ClusterChunkStoreImpl::Call(const NodeId& node, PeerMethod method, PeerMessage request,
                                 std::chrono::milliseconds timeout, std::optional<Reply> (*decode)(std::string_view),
                                 std::function<void(Result<Reply>)> done) {
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

}  // namespace cairnfs::cluster
