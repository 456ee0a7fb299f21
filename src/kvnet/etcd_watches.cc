// Watches of an etcd cluster, made anew on another endpoint when they break.
#include <algorithm>

#include "kvnet/etcd_store_impl.h"

namespace cairnfs::kvnet {

namespace pb = etcdserverpb;

// In place of the revision from which a watch goes on, while it could not ask what the revision was when it began.
constexpr uint64_t kNotKnown = UINT64_MAX;

Result<EtcdStoreImpl::Now> EtcdStoreImpl::ReadNow(const Context& context) {
  pb::RangeRequest request;
  request.set_key(keys_.Key(""));
  request.set_count_only(true);
  pb::RangeResponse response;
  CAIRNFS_RETURN_IF_ERROR(
      Try(context, options_.retry.try_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
        return endpoint.kv->Range(&call, request, &response);
      }));
  return Now{static_cast<uint64_t>(response.header().revision()), response.header().cluster_id()};
}

Result<std::unique_ptr<kv::KvWatch>> EtcdStoreImpl::Watch(const Context& context, std::string_view begin,
                                                          std::string_view end, uint64_t after_revision,
                                                          kv::WatchCallbacks callbacks) {
  auto state = std::make_shared<WatchState>();
  state->begin = keys_.Key(begin);
  state->end = keys_.RangeEnd(end);
  state->callbacks = std::move(callbacks);
  if (after_revision == 0) {
    // "From now on" is a revision that is read now. Where it cannot be, the watch begins with `lost`.
    Result<Now> now = ReadNow(context);
    after_revision = now.ok() ? now->revision : kNotKnown;
    if (now.ok()) state->cluster = now->cluster;
  }
  return RemoteWatch::Start(options_.retry, after_revision, [this, state](const Context& watching, uint64_t& after) {
    return Follow(watching, *state, after);
  });
}

bool EtcdStoreImpl::Follow(const Context& context, WatchState& state, uint64_t& after) {
  const Result<Now> now = ReadNow(context);
  if (!now.ok()) return false;
  // A restored backup has another cluster id, or at least an older revision.
  const bool is_another = state.cluster != 0 && state.cluster != now->cluster;
  state.cluster = now->cluster;
  if (after == kNotKnown) {
    after = now->revision;
    state.callbacks.lost(after);
  } else if (now->revision < after || is_another) {
    after = now->revision;
    state.callbacks.TellWentBack(after);
  }
  const size_t index = current_.load();
  bool is_compacted = false;
  {
    grpc::ClientContext call;
    const CallLimit limit(context, call);
    call.AddMetadata("hasleader", "true");  // a member that is cut off ends the stream
    auto stream = endpoints_[index]->watch->Watch(&call);
    is_compacted = FollowStream(*stream, state, after);
    call.TryCancel();
    static_cast<void>(stream->Finish());  // whatever ended it, it is made anew
  }
  if (!is_compacted) {
    LeaveEndpoint(index);
    return true;
  }
  const Result<Now> read = ReadNow(context);
  if (!read.ok()) return false;
  after = read->revision;
  state.callbacks.lost(after);
  return true;
}

bool EtcdStoreImpl::FollowStream(grpc::ClientReaderWriter<pb::WatchRequest, pb::WatchResponse>& stream,
                                 WatchState& state, uint64_t& after) {
  pb::WatchRequest request;
  pb::WatchCreateRequest& create = *request.mutable_create_request();
  create.set_key(state.begin);
  create.set_range_end(state.end);
  // Starts at the revision that was told last, which Tell leaves out. When the history was compacted at the revision
  // that a watch starts at, etcd before 3.4.36 and 3.5.18 silently leaves out the deletions of that revision.
  create.set_start_revision(static_cast<int64_t>(std::max<uint64_t>(after, 1)));
  if (!stream.Write(request)) return false;
  for (pb::WatchResponse response; stream.Read(&response);) {
    if (response.compact_revision() != 0) return true;
    if (response.canceled()) return false;
    if (response.events_size() != 0) Tell(response, state, after);
  }
  return false;
}

void EtcdStoreImpl::Tell(pb::WatchResponse& response, WatchState& state, uint64_t& after) {
  std::vector<kv::KvEvent> events;
  events.reserve(static_cast<size_t>(response.events_size()));
  for (pb::Event& event : *response.mutable_events()) {
    pb::KeyValue& entry = *event.mutable_kv();
    const auto revision = static_cast<uint64_t>(entry.mod_revision());
    if (revision <= after) continue;
    std::optional<std::string> value;
    if (event.type() == pb::Event::PUT) value = std::move(*entry.mutable_value());
    events.push_back(kv::KvEvent{keys_.Strip(entry.key()), std::move(value), revision});
  }
  if (events.empty()) return;
  after = events.back().revision;  // etcd sends whole revisions, and may not have sent all up to the header's
  state.callbacks.changed(std::move(events), after);
}

}  // namespace cairnfs::kvnet
