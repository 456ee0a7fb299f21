#include "kvnet/node_store.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>
#include <utility>

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

class NodeStore final : public kv::SharedKvStore, private kv::SlotTransport {
 public:
  NodeStore(std::string address, const RemoteOptions& options)
      : address_(std::move(address)),
        options_(options),
        channel_(MakeChannel(address_, options)),
        stub_(proto::Kv::NewStub(channel_)),
        slots_(*this, options.retry) {}

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

  Error ErrorOf(const grpc::Status& status) const;
  template <typename Send>
  grpc::Status Try(const Context& context, milliseconds timeout, const Send& send) {
    return TryCall(context, *channel_, options_, timeout, send);
  }
  // `timeout` of this one try.
  Result<kv::KvSnapshot> TryRead(const Context& context, const proto::ReadRequest& request, milliseconds timeout);
  Result<kv::KvSnapshot> ReadRetrying(const Context& context, const proto::ReadRequest& request);
  struct WatchState {
    proto::WatchRequest request;  // its opening is that of whoever told last
    kv::WatchCallbacks callbacks;
    bool refusal_is_told = false;
  };
  void NoteEnd(WatchState& state, const grpc::Status& status, uint64_t after) const;
  bool Follow(const Context& context, WatchState& state, uint64_t& after);

  const std::string address_;
  const RemoteOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<proto::Kv::Stub> stub_;  // self-synchronised
  kv::CommitSlots slots_;                        // self-synchronised
  kv::RefusedNames refused_names_;               // self-synchronised
  std::atomic<uint64_t> room_for_names_{kNotKnown};
};

Error NodeStore::ErrorOf(const grpc::Status& status) const {
  const std::string who = "the node that serves the keys, " + address_;
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
  const grpc::Status status = Try(context, timeout, [&](grpc::ClientContext& call) {
    auto reader = stub_->Read(&call, request);
    for (proto::ReadPart part; reader->Read(&part);) {
      snapshot.revision = part.revision();
      if (snapshot.ranges.empty()) continue;
      is_valid = is_valid && part.span() < snapshot.ranges.size();
      if (is_valid) Take(part, snapshot.ranges[part.span()]);
    }
    return reader->Finish();
  });
  if (!status.ok()) return ErrorOf(status);
  if (!is_valid) return MakeError(ErrorCode::kIo, address_ + " answers what it was not asked");
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
  const grpc::Status status = Try(context, kVisitTimeMax, [&](grpc::ClientContext& call) {
    auto reader = stub_->Read(&call, request);
    for (proto::ReadPart part; goes_on && reader->Read(&part);) {
      revision = part.revision();
      for (const proto::Entry& entry : part.entries()) {
        goes_on = goes_on && visit({entry.key(), entry.value(), entry.revision()});
      }
    }
    if (!goes_on) call.TryCancel();
    const grpc::Status ended = reader->Finish();
    return goes_on ? ended : grpc::Status::OK;
  });
  if (!status.ok()) return ErrorOf(status);
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
  if (is_refused && transaction.makes_names_for) refused_names_.Tell(committed.error());
  return committed;
}

Result<kv::SlottedAnswer> NodeStore::TryCommit(const Context& context, const kv::Transaction& transaction,
                                               const kv::SlotClaim* slot) {
  const proto::CommitRequest request = ToProto(transaction, slot);
  proto::CommitReply reply;
  const grpc::Status status = Try(context, options_.retry.try_timeout,
                                  [&](grpc::ClientContext& call) { return stub_->Commit(&call, request, &reply); });
  if (status.ok()) return FromProto(reply);
  Error error = ErrorOf(status);
  // The node's disk failed: whether the commit is there is known once the node was started again.
  if (error.code == ErrorCode::kFailed || error.code == ErrorCode::kIo) error.code = ErrorCode::kUnavailable;
  return error;
}

Result<kv::LeaseId> NodeStore::TryGrantLease(const Context& context, milliseconds ttl) {
  proto::GrantLeaseRequest request;
  request.set_ttl_ms(ttl.count() < 0 ? 0 : static_cast<uint64_t>(ttl.count()));
  proto::GrantLeaseReply reply;
  const grpc::Status status = Try(context, options_.retry.try_timeout,
                                  [&](grpc::ClientContext& call) { return stub_->GrantLease(&call, request, &reply); });
  if (!status.ok()) return ErrorOf(status);
  return reply.lease();
}

Status NodeStore::TryRevokeLease(const Context& context, kv::LeaseId lease) {
  proto::LeaseRequest request;
  request.set_lease(lease);
  proto::RevokeLeaseReply reply;
  const grpc::Status status = Try(context, options_.lease_timeout, [&](grpc::ClientContext& call) {
    return stub_->RevokeLease(&call, request, &reply);
  });
  if (!status.ok()) return ErrorOf(status);
  return {};
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
  const grpc::Status status =
      Try(context, std::min(options_.lease_timeout, options_.lease_timeout_all),
          [&](grpc::ClientContext& call) { return stub_->KeepLeaseAlive(&call, request, &reply); });
  if (!status.ok()) return ErrorOf(status);
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
void NodeStore::NoteEnd(WatchState& state, const grpc::Status& status, uint64_t after) const {
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return;
  if (after != kNotKnown) state.callbacks.lost(after);
  if (std::exchange(state.refusal_is_told, true)) return;
  spdlog::warn("{} refuses a watch, which is tried again until it does not: {}", address_, status.error_message());
}

bool NodeStore::Follow(const Context& context, WatchState& state, uint64_t& after) {
  if (!Connect(context, *channel_)) return false;
  grpc::ClientContext call;
  const CallLimit limit(context, call);
  state.request.set_after_revision(after);
  auto reader = stub_->Watch(&call, state.request);
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
  NoteEnd(state, reader->Finish(), after);
  return has_answered;
}

}  // namespace

Result<std::unique_ptr<kv::SharedKvStore>> MakeNodeStore(const std::string& address, const RemoteOptions& options) {
  CAIRNFS_RETURN_IF_ERROR(CheckAddress(address, /*port_min=*/1));
  return std::unique_ptr<kv::SharedKvStore>(std::make_unique<NodeStore>(address, options));
}

}  // namespace cairnfs::kvnet
