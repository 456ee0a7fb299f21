#include "kvnet/node_store.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "kv.grpc.pb.h"
#include "kv/commit_slots.h"
#include "kv/name_room.h"
#include "kvnet/channel.h"
#include "kvnet/kv_convert.h"
#include "kvnet/remote_watch.h"
#include "rpc/status.h"

namespace cairnfs::kvnet {
namespace {

using std::chrono::milliseconds;

// In place of the revision from which a watch goes on, while it could not ask what the revision was when it began; and
// of the room for names.
constexpr uint64_t kNotKnown = UINT64_MAX;
constexpr milliseconds kVisitTimeMax = std::chrono::hours(24);  // a silent peer is noticed by its pings

// One of the hosts that may serve the keys.
struct Endpoint {
  Endpoint(std::string of_address, const RemoteOptions& options)
      : address(std::move(of_address)), channel(MakeChannel(address, options)), stub(proto::Kv::NewStub(channel)) {}
  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<proto::Kv::Stub> stub;  // self-synchronised
};

// Calls go to one of the hosts, as long as it answers as the one that serves the keys. Then the next one is tried.
class NodeStore final : public kv::SharedKvStore, private kv::SlotTransport {
 public:
  NodeStore(const std::vector<std::string>& addresses, const RemoteOptions& options,
            const std::vector<std::string>& nodes)
      : options_(options), endpoints_(EndpointsOf(addresses, options, nodes)), slots_(*this, options.retry) {}

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override;
  Result<uint64_t> VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                const EntryVisitor& visit) override;
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override;
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override;
  Status Sync(const Context&) override { return {}; }
  // Those of HostedStore.
  kv::KvLimits limits() const override {
    return kv::KvLimits{.operations_per_transaction_max = 1 << 14, .transaction_bytes_max = 16 << 20};
  }
  Result<kv::LeaseId> GrantLease(const Context& context, milliseconds ttl) override;
  Result<milliseconds> KeepLeaseAlive(const Context& context, kv::LeaseId lease) override;
  Status RevokeLease(const Context& context, kv::LeaseId lease) override;
  std::optional<uint64_t> RoomForNames() const override;
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override;

 private:
  Result<kv::SlottedAnswer> TryCommit(const Context& context, const kv::Transaction& transaction,
                                      const kv::SlotClaim* slot) override;
  Result<kv::LeaseId> TryGrantLease(const Context& context, milliseconds ttl) override;
  Status TryRevokeLease(const Context& context, kv::LeaseId lease) override;

  static std::vector<std::unique_ptr<Endpoint>> EndpointsOf(const std::vector<std::string>& addresses,
                                                            const RemoteOptions& options,
                                                            const std::vector<std::string>& nodes) {
    std::vector<std::unique_ptr<Endpoint>> endpoints;
    for (size_t i = 0; i < addresses.size(); ++i) {
      endpoints.push_back(
          std::make_unique<Endpoint>(addresses[i], OptionsOf(options, i < nodes.size() ? nodes[i] : "")));
    }
    return endpoints;
  }
  static Error ErrorOf(const grpc::Status& status, const Endpoint& endpoint);
  // One try of the call that `send(call, stub)` makes, at the host of `current_`. Where that does not serve the keys
  // the next call goes to another one.
  template <typename Send>
  Status Try(const Context& context, milliseconds timeout, const Send& send) {
    const size_t index = current_;
    const Endpoint& endpoint = *endpoints_[index];
    const grpc::Status status = TryCall(context, *endpoint.channel, options_, timeout,
                                        [&](grpc::ClientContext& call) { return send(call, *endpoint.stub); });
    if (status.ok()) return {};
    Error error = ErrorOf(status, endpoint);
    if (error.code == ErrorCode::kUnavailable && !context.IsStopped()) LeaveHost(index);
    return error;
  }
  void LeaveHost(size_t index);
  // `timeout` of this one try.
  Result<kv::KvSnapshot> TryRead(const Context& context, const proto::ReadRequest& request, milliseconds timeout);
  Result<kv::KvSnapshot> ReadRetrying(const Context& context, const proto::ReadRequest& request);
  struct WatchState {
    proto::WatchRequest request;  // its opening is that of whoever told last
    kv::WatchCallbacks callbacks;
    bool refusal_is_told = false;
  };
  static void NoteEnd(WatchState& state, const grpc::Status& status, uint64_t after);
  bool Follow(const Context& context, WatchState& state, uint64_t& after);

  const RemoteOptions options_;
  const std::vector<std::unique_ptr<Endpoint>> endpoints_;
  std::atomic<size_t> current_{0};  // index of the host that calls go to
  kv::CommitSlots slots_;           // self-synchronised
  kv::RefusedNames refused_names_;  // self-synchronised
  std::atomic<uint64_t> room_for_names_{kNotKnown};

  // Watches at the host of `current_`, which end when calls leave it: it may never end them itself.
  Mutex watching_mutex_;
  std::set<grpc::ClientContext*> watching_ GUARDED_BY(watching_mutex_);
};

void NodeStore::LeaveHost(size_t index) {
  if (endpoints_.size() == 1) return;
  MutexLock lock(watching_mutex_);
  if (current_ != index) return;
  current_ = (index + 1) % endpoints_.size();
  for (grpc::ClientContext* call : watching_) call->TryCancel();
}

Error NodeStore::ErrorOf(const grpc::Status& status, const Endpoint& endpoint) {
  const std::string who = "the node that serves the keys, " + endpoint.address;
  // An error of the node itself has a code of ours. Where its port has more in memory than it may, gRPC ends calls.
  const bool is_ended = IsLostCall(status) || status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED;
  if (status.error_details().empty() && is_ended) {
    return MakeError(ErrorCode::kUnavailable, who + ": " + status.error_message());
  }
  return rpc::FromGrpc(status).WithContext(who);
}

void Take(proto::ReadPart& part, kv::KvRange& range) {
  range.more = part.more();
  for (proto::Entry& entry : *part.mutable_entries()) {
    range.entries.push_back(
        kv::KvEntry{std::move(*entry.mutable_key()), std::move(*entry.mutable_value()), entry.revision()});
  }
}

Result<kv::KvSnapshot> NodeStore::TryRead(const Context& context, const proto::ReadRequest& request,
                                          milliseconds timeout) {
  kv::KvSnapshot snapshot;
  snapshot.ranges.resize(static_cast<size_t>(request.spans_size()));
  bool is_valid = true;
  CAIRNFS_RETURN_IF_ERROR(Try(context, timeout, [&](grpc::ClientContext& call, proto::Kv::Stub& stub) {
    auto reader = stub.Read(&call, request);
    for (proto::ReadPart part; reader->Read(&part);) {
      snapshot.revision = part.revision();
      if (snapshot.ranges.empty()) continue;
      is_valid = is_valid && part.span() < snapshot.ranges.size();
      if (is_valid) Take(part, snapshot.ranges[part.span()]);
    }
    return reader->Finish();
  }));
  if (!is_valid) return MakeError(ErrorCode::kIo, "the node that serves the keys answers what it was not asked");
  for (kv::KvRange& range : snapshot.ranges) range.revision = snapshot.revision;
  return snapshot;
}

Result<kv::KvSnapshot> NodeStore::ReadRetrying(const Context& context, const proto::ReadRequest& request) {
  // A long answer is no reason to ask again; a silent peer is noticed by its pings.
  return kv::TryUntilAnswered(context, options_.retry, [&](const Context& limited) {
    return TryRead(limited, request, options_.retry.give_up_after);
  });
}

Result<std::optional<kv::KvEntry>> NodeStore::Get(const Context& context, std::string_view key) {
  proto::ReadRequest request;
  request.add_spans()->set_begin(std::string(key));
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, ReadRetrying(context, request));
  std::vector<kv::KvEntry>& entries = snapshot.ranges[0].entries;
  if (entries.empty()) return std::optional<kv::KvEntry>();
  return std::optional<kv::KvEntry>(std::move(entries[0]));
}

Result<kv::KvRange> NodeStore::Range(const Context& context, std::string_view begin, std::string_view end,
                                     size_t limit) {
  proto::ReadRequest request;
  proto::Span& span = *request.add_spans();
  span.set_begin(std::string(begin));
  span.set_end(std::string(end));
  span.set_limit(limit);
  request.set_to_the_end(end.empty());
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, ReadRetrying(context, request));
  return std::move(snapshot.ranges[0]);
}

// Tried once: what was visited cannot be taken back.
Result<uint64_t> NodeStore::VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                         const EntryVisitor& visit) {
  proto::ReadRequest request;
  request.add_spans()->set_begin(std::string(begin));
  request.mutable_spans(0)->set_end(std::string(end));
  request.set_to_the_end(end.empty());
  uint64_t revision = 0;
  bool goes_on = true;
  CAIRNFS_RETURN_IF_ERROR(Try(context, kVisitTimeMax, [&](grpc::ClientContext& call, proto::Kv::Stub& stub) {
    auto reader = stub.Read(&call, request);
    for (proto::ReadPart part; goes_on && reader->Read(&part);) {
      revision = part.revision();
      for (const proto::Entry& entry : part.entries()) {
        goes_on = goes_on && visit({entry.key(), entry.value(), entry.revision()});
      }
    }
    if (!goes_on) call.TryCancel();
    const grpc::Status ended = reader->Finish();
    return goes_on ? ended : grpc::Status::OK;
  }));
  return revision;
}

Result<kv::KvSnapshot> NodeStore::Read(const Context& context, std::span<const kv::KvSpan> spans) {
  proto::ReadRequest request;
  for (const kv::KvSpan& span : spans) {
    proto::Span& to = *request.add_spans();
    to.set_begin(span.begin);
    to.set_end(span.end);
    to.set_limit(span.limit);
  }
  return ReadRetrying(context, request);
}

Result<uint64_t> NodeStore::Commit(const Context& context, const kv::Transaction& transaction) {
  CAIRNFS_RETURN_IF_ERROR(kv::CheckLimits(transaction, limits()));
  Result<uint64_t> committed = slots_.Commit(context, transaction);
  const bool is_refused = !committed.ok() && committed.error().code == ErrorCode::kNoSpace;
  if (is_refused && (transaction.makes_names_for || transaction.may_lengthen)) refused_names_.Tell(committed.error());
  return committed;
}

Result<kv::SlottedAnswer> NodeStore::TryCommit(const Context& context, const kv::Transaction& transaction,
                                               const kv::SlotClaim* slot) {
  const proto::CommitRequest request = ToProto(transaction, slot);
  proto::CommitReply reply;
  const Status tried = Try(context, options_.retry.try_timeout, [&](grpc::ClientContext& call, proto::Kv::Stub& stub) {
    return stub.Commit(&call, request, &reply);
  });
  if (tried.ok()) return FromProto(reply);
  Error error = tried.error();
  // The node's disk failed: whether the commit is there is known once the node was started again.
  if (error.code == ErrorCode::kFailed || error.code == ErrorCode::kIo) error.code = ErrorCode::kUnavailable;
  return error;
}

Result<kv::LeaseId> NodeStore::TryGrantLease(const Context& context, milliseconds ttl) {
  proto::GrantLeaseRequest request;
  request.set_ttl_ms(ttl.count() < 0 ? 0 : static_cast<uint64_t>(ttl.count()));
  proto::GrantLeaseReply reply;
  CAIRNFS_RETURN_IF_ERROR(
      Try(context, options_.retry.try_timeout,
          [&](grpc::ClientContext& call, proto::Kv::Stub& stub) { return stub.GrantLease(&call, request, &reply); }));
  return reply.lease();
}

Status NodeStore::TryRevokeLease(const Context& context, kv::LeaseId lease) {
  proto::LeaseRequest request;
  request.set_lease(lease);
  proto::RevokeLeaseReply reply;
  return Try(context, options_.lease_timeout, [&](grpc::ClientContext& call, proto::Kv::Stub& stub) {
    return stub.RevokeLease(&call, request, &reply);
  });
}

// A grant whose answer was lost leaves a lease that nobody knows; it ends by itself.
Result<kv::LeaseId> NodeStore::GrantLease(const Context& context, milliseconds ttl) {
  return kv::TryUntilAnswered(context, options_.retry,
                              [&](const Context& limited) { return TryGrantLease(limited, ttl); });
}

Status NodeStore::RevokeLease(const Context& context, kv::LeaseId lease) {
  return kv::TryUntilAnswered(context, options_.retry,
                              [&](const Context& limited) { return TryRevokeLease(limited, lease); });
}

Result<milliseconds> NodeStore::KeepLeaseAlive(const Context& context, kv::LeaseId lease) {
  proto::LeaseRequest request;
  request.set_lease(lease);
  proto::KeepLeaseAliveReply reply;
  const Context within_all = context.WithTimeout(options_.lease_timeout_all);
  auto keep = [&](grpc::ClientContext& call, proto::Kv::Stub& stub) {
    return stub.KeepLeaseAlive(&call, request, &reply);
  };
  Status kept = Try(within_all, options_.lease_timeout, keep);
  for (size_t tries = 1; tries < endpoints_.size() && !within_all.Expired(); ++tries) {
    if (kept.ok() || kept.error().code != ErrorCode::kUnavailable) break;
    kept = Try(within_all, options_.lease_timeout, keep);
  }
  CAIRNFS_RETURN_IF_ERROR(kept);
  if (reply.has_room_for_names()) room_for_names_ = reply.room_for_names();
  return milliseconds(reply.left_ms());
}

std::optional<uint64_t> NodeStore::RoomForNames() const {
  const uint64_t room = room_for_names_;
  return room == kNotKnown ? std::nullopt : std::optional(room);
}

Result<std::unique_ptr<kv::KvWatch>> NodeStore::Watch(const Context& context, std::string_view begin,
                                                      std::string_view end, uint64_t after_revision,
                                                      kv::WatchCallbacks callbacks) {
  auto state = std::make_shared<WatchState>();
  state->request.set_begin(std::string(begin));
  state->request.set_end(std::string(end));
  state->callbacks = std::move(callbacks);
  if (after_revision == 0) {
    // "From now on" is a revision that is read now. Where it cannot be, the watch begins with `lost`.
    Result<kv::KvSnapshot> now = TryRead(context, proto::ReadRequest(), options_.retry.try_timeout);
    after_revision = now.ok() ? now->revision : kNotKnown;
  }
  return RemoteWatch::Start(options_.retry, after_revision, [this, state](const Context& watching, uint64_t& after) {
    return Follow(watching, *state, after);
  });
}

// Whatever ended the stream, it is made anew. While it is refused again and again, the watch tells nothing and all else
// goes on: so the listener is told to look by itself meanwhile.
void NodeStore::NoteEnd(WatchState& state, const grpc::Status& status, uint64_t after) {
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return;
  if (after != kNotKnown) state.callbacks.lost(after);
  if (std::exchange(state.refusal_is_told, true)) return;
  spdlog::warn("the node that serves the keys refuses a watch, which is tried again until it does not: {}",
               status.error_message());
}

bool NodeStore::Follow(const Context& context, WatchState& state, uint64_t& after) {
  const size_t index = current_;
  const Endpoint& endpoint = *endpoints_[index];
  if (!Connect(context, *endpoint.channel)) {
    if (!context.IsStopped()) LeaveHost(index);
    return false;
  }
  grpc::ClientContext call;
  const CallLimit limit(context, call);
  state.request.set_after_revision(after);
  {
    MutexLock lock(watching_mutex_);
    if (current_ != index) return false;
    watching_.insert(&call);
  }
  auto reader = endpoint.stub->Watch(&call, state.request);
  bool has_answered = false;
  for (proto::WatchReply reply; reader->Read(&reply);) {
    has_answered = true;
    const bool began = after != kNotKnown;
    after = reply.revision();
    if (reply.went_back() && began) {
      state.callbacks.TellWentBack(after);
    } else if (reply.went_back() || reply.lost()) {
      state.callbacks.lost(after);
    } else if (reply.events_size() != 0) {
      state.callbacks.changed(EventsOf(reply), after);
    }
    if (reply.opening() != 0) state.request.set_opening(reply.opening());
  }
  if (has_answered) state.refusal_is_told = false;
  const grpc::Status ended = reader->Finish();
  {
    MutexLock lock(watching_mutex_);
    watching_.erase(&call);
  }
  if (!has_answered && !context.IsStopped() && ErrorOf(ended, endpoint).code == ErrorCode::kUnavailable) {
    if (ended.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) LeaveHost(index);
  }
  NoteEnd(state, ended, after);
  return has_answered;
}

}  // namespace

Result<std::unique_ptr<kv::SharedKvStore>> MakeNodeStore(const std::vector<std::string>& addresses,
                                                         const RemoteOptions& options,
                                                         const std::vector<std::string>& nodes) {
  for (const std::string& address : addresses) CAIRNFS_RETURN_IF_ERROR(CheckAddress(address, /*port_min=*/1));
  return std::unique_ptr<kv::SharedKvStore>(std::make_unique<NodeStore>(addresses, options, nodes));
}

}  // namespace cairnfs::kvnet
