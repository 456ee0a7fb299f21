#include "kvnet/etcd_store.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>

#include "etcd.grpc.pb.h"
#include "kv/commit_slots.h"
#include "kvnet/channel.h"
#include "kvnet/etcd_convert.h"
#include "kvnet/remote_watch.h"

namespace cairnfs::kvnet {
namespace {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;

// etcd's default --max-txn-ops is 128, and each transaction also compares and puts its slot.
constexpr size_t kOperationsMax = 128;
// etcd's default --max-request-bytes is 1.5 MiB; the rest is for prefixes, field tags and the slot.
constexpr size_t kTransactionBytesMax = 1'280 << 10;
constexpr size_t kPrefixBytesMax = 256;
constexpr int64_t kPageKeys = 2048;
// After which revision a watch goes on that could not ask what the revision was when it began.
constexpr uint64_t kNotKnown = UINT64_MAX;

// The code that etcd's words mean. `status` is not OK.
Error ErrorOf(const std::string& endpoint, const grpc::Status& status) {
  const std::string& text = status.error_message();
  auto error = [&](ErrorCode code, const std::string& advice = "") {
    return MakeError(code, "etcd at " + endpoint + ": " + text + advice);
  };
  auto says = [&](std::string_view words) { return text.find(words) != std::string::npos; };
  if (IsLostCall(status)) return error(ErrorCode::kUnavailable);
  switch (status.error_code()) {
    case grpc::StatusCode::NOT_FOUND: return error(ErrorCode::kNotFound);
    case grpc::StatusCode::OUT_OF_RANGE: return error(ErrorCode::kStale);  // compacted, or not there yet
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED: return error(ErrorCode::kPermission);
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      if (says("database space exceeded")) {
        return error(ErrorCode::kNoSpace,
                     "; compact and defragment it, raise --quota-backend-bytes, and disarm the alarm");
      }
      if (says("too many requests")) return error(ErrorCode::kUnavailable);
      return error(ErrorCode::kTooLarge);
    default: break;
  }
  if (says("too many operations")) {
    return error(ErrorCode::kTooLarge, "; etcd's --max-txn-ops must be at least 128, its default");
  }
  if (says("request is too large")) {
    return error(ErrorCode::kTooLarge, "; etcd's --max-request-bytes must be at least 1572864, its default");
  }
  return error(ErrorCode::kInvalidArgument);
}

struct Endpoint {
  Endpoint(const std::string& address, const RemoteOptions& options)
      : address(address),
        channel(MakeChannel(address, options)),
        kv(pb::KV::NewStub(channel)),
        lease(pb::Lease::NewStub(channel)),
        watch(pb::Watch::NewStub(channel)) {}
  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<pb::KV::Stub> kv;
  const std::unique_ptr<pb::Lease::Stub> lease;
  const std::unique_ptr<pb::Watch::Stub> watch;
};

class EtcdStoreImpl final : public EtcdStore, private kv::SlotTransport {
 public:
  explicit EtcdStoreImpl(const EtcdOptions& options)
      : options_(options.remote), keys_(options.prefix), slots_(*this, options.remote.retry) {
    for (const std::string& address : options.endpoints) {
      endpoints_.push_back(std::make_unique<Endpoint>(address, options.remote));
    }
  }

  Result<std::optional<kv::KvEntry>> Get(std::string_view key) override;
  Result<kv::KvRange> Range(std::string_view begin, std::string_view end, size_t limit) override;
  Result<kv::KvSnapshot> Read(std::span<const kv::KvSpan> spans) override;
  Result<uint64_t> Commit(const kv::Transaction& transaction) override;
  Status Sync() override { return {}; }
  kv::KvLimits limits() const override {
    return kv::KvLimits{.operations_per_transaction_max = kOperationsMax - 1,
                        .transaction_bytes_max = kTransactionBytesMax};
  }
  Result<kv::LeaseId> GrantLease(milliseconds ttl) override;
  Result<milliseconds> KeepLeaseAlive(kv::LeaseId lease) override;
  Status RevokeLease(kv::LeaseId lease) override;
  Result<std::unique_ptr<kv::KvWatch>> Watch(std::string_view begin, std::string_view end, uint64_t after_revision,
                                             kv::WatchCallbacks callbacks) override;
  Status CompactHistory(uint64_t revisions_kept) override;

 private:
  // What is read of one span, in etcd's terms.
  struct Span {
    std::string key, range_end;  // range_end empty: one key
    size_t limit = 0;
  };
  struct Now {
    uint64_t revision = 0, cluster = 0;
  };
  struct WatchState {
    std::string begin, end;
    kv::WatchCallbacks callbacks;
    uint64_t cluster = 0;  // that the watch was told of; 0: not known yet
  };

  Result<kv::SlottedAnswer> TryCommit(const kv::Transaction& transaction, const kv::SlotClaim* slot) override;
  Result<kv::SlottedAnswer> AfterNoSpace(const Error& refused, const kv::SlotClaim& slot);
  Result<kv::LeaseId> TryGrantLease(milliseconds ttl) override;
  Status TryRevokeLease(kv::LeaseId lease) override;

  // `call(endpoint, context)` on the current endpoint. After kUnavailable the next one is the current one.
  template <typename Call>
  Status Try(milliseconds timeout, const Call& call) {
    const size_t index = current_.load();
    Endpoint& endpoint = *endpoints_[index];
    grpc::ClientContext context;
    const grpc::Status status = TryCall(*endpoint.channel, options_, timeout, context,
                                        [&](grpc::ClientContext& connected) { return call(endpoint, connected); });
    if (status.ok()) return {};
    Error error = ErrorOf(endpoint.address, status);
    if (error.code == ErrorCode::kUnavailable) LeaveEndpoint(index);
    return error;
  }
  // As Try, again until there is another answer than kUnavailable or the time is over.
  template <typename Call>
  Status TryLong(const Call& call) {
    kv::Retry retry(options_.retry);
    for (;;) {
      Status status = Try(options_.retry.try_timeout, call);
      if (status.ok() || status.error().code != ErrorCode::kUnavailable || !retry.Wait()) return status;
    }
  }
  void LeaveEndpoint(size_t index) { current_.compare_exchange_strong(index, (index + 1) % endpoints_.size()); }

  Result<kv::KvSnapshot> ReadSpans(const std::vector<Span>& spans);
  // kStale: the history that it reads was compacted away meanwhile.
  Result<kv::KvSnapshot> ReadSpansOnce(const std::vector<Span>& spans);
  Result<pb::TxnResponse> ReadFirstPages(std::span<const Span> spans, uint64_t revision);
  Status ReadPages(const Span& span, uint64_t revision, kv::KvRange& range);
  // Takes what a page holds. True: more is wanted, and there.
  bool Take(const Span& span, pb::RangeResponse& page, kv::KvRange& range) const;
  static pb::RangeRequest PageOf(const Span& span, size_t have, uint64_t revision);

  Result<Now> ReadNow(grpc::ClientContext& context);
  bool Follow(RemoteWatch& watch, WatchState& state, uint64_t& after);
  // Tells what comes until the stream breaks or says that the history is gone (true).
  bool FollowStream(grpc::ClientReaderWriter<pb::WatchRequest, pb::WatchResponse>& stream, WatchState& state,
                    uint64_t& after);
  void Tell(pb::WatchResponse& response, WatchState& state, uint64_t& after);

  const RemoteOptions options_;
  const EtcdKeys keys_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;  // constant after construction
  std::atomic<size_t> current_{0};
  kv::CommitSlots slots_;  // self-synchronised; ends before what it sends with
};

// Reads.

pb::RangeRequest EtcdStoreImpl::PageOf(const Span& span, size_t have, uint64_t revision) {
  pb::RangeRequest request;
  request.set_key(span.key);
  request.set_range_end(span.range_end);
  int64_t limit = kPageKeys;
  if (span.limit != 0) limit = std::min(limit, static_cast<int64_t>(std::min<size_t>(span.limit - have, kPageKeys)));
  request.set_limit(limit);
  request.set_revision(static_cast<int64_t>(revision));
  return request;
}

bool EtcdStoreImpl::Take(const Span& span, pb::RangeResponse& page, kv::KvRange& range) const {
  for (pb::KeyValue& entry : *page.mutable_kvs()) range.entries.push_back(ToEntry(keys_, std::move(entry)));
  const bool is_full = span.limit != 0 && range.entries.size() >= span.limit;
  range.more = page.more() && is_full;
  return page.more() && !is_full && page.kvs_size() != 0;
}

Status EtcdStoreImpl::ReadPages(const Span& span, uint64_t revision, kv::KvRange& range) {
  for (;;) {
    Span rest = span;
    rest.key = keys_.Key(range.entries.back().key) + '\0';
    const pb::RangeRequest request = PageOf(rest, range.entries.size(), revision);
    pb::RangeResponse page;
    CAIRNFS_RETURN_IF_ERROR(TryLong([&](Endpoint& endpoint, grpc::ClientContext& context) {
      return endpoint.kv->Range(&context, request, &page);
    }));
    if (!Take(span, page, range)) return {};
  }
}

Result<pb::TxnResponse> EtcdStoreImpl::ReadFirstPages(std::span<const Span> spans, uint64_t revision) {
  pb::TxnRequest request;
  for (const Span& span : spans) *request.add_success()->mutable_request_range() = PageOf(span, 0, revision);
  pb::TxnResponse response;
  CAIRNFS_RETURN_IF_ERROR(TryLong([&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Txn(&context, request, &response);
  }));
  if (response.responses_size() == static_cast<int>(spans.size())) return response;
  return MakeError(ErrorCode::kIo, "etcd answers what it was not asked");
}

Result<kv::KvSnapshot> EtcdStoreImpl::ReadSpansOnce(const std::vector<Span>& spans) {
  kv::KvSnapshot snapshot;
  std::vector<size_t> unfinished;
  size_t next = 0;
  do {
    const size_t count = std::min(spans.size() - next, kOperationsMax);
    CAIRNFS_ASSIGN_OR_RETURN(pb::TxnResponse response,
                             ReadFirstPages(std::span(spans).subspan(next, count), snapshot.revision));
    // The later parts are read at the revision of the first.
    if (next == 0) snapshot.revision = static_cast<uint64_t>(response.header().revision());
    for (size_t i = 0; i < count; ++i) {
      const bool goes_on =
          Take(spans[next + i], *response.mutable_responses(static_cast<int>(i))->mutable_response_range(),
               snapshot.ranges.emplace_back());
      if (goes_on) unfinished.push_back(next + i);
    }
    next += count;
  } while (next < spans.size());
  for (size_t i : unfinished) CAIRNFS_RETURN_IF_ERROR(ReadPages(spans[i], snapshot.revision, snapshot.ranges[i]));
  for (kv::KvRange& range : snapshot.ranges) range.revision = snapshot.revision;
  return snapshot;
}

Result<kv::KvSnapshot> EtcdStoreImpl::ReadSpans(const std::vector<Span>& spans) {
  kv::Retry retry(options_.retry);
  for (;;) {
    Result<kv::KvSnapshot> snapshot = ReadSpansOnce(spans);
    if (snapshot.ok() || snapshot.error().code != ErrorCode::kStale || !retry.Wait()) return snapshot;
  }
}

Result<std::optional<kv::KvEntry>> EtcdStoreImpl::Get(std::string_view key) {
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, ReadSpans({Span{keys_.Key(key), "", 0}}));
  std::vector<kv::KvEntry>& entries = snapshot.ranges[0].entries;
  if (entries.empty()) return std::optional<kv::KvEntry>();
  return std::optional<kv::KvEntry>(std::move(entries[0]));
}

Result<kv::KvRange> EtcdStoreImpl::Range(std::string_view begin, std::string_view end, size_t limit) {
  // etcd answers a range that ends before it begins with nothing, but takes an end of one zero byte for "all".
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvSnapshot snapshot, ReadSpans({Span{keys_.Key(begin), keys_.RangeEnd(end), limit}}));
  return std::move(snapshot.ranges[0]);
}

Result<kv::KvSnapshot> EtcdStoreImpl::Read(std::span<const kv::KvSpan> spans) {
  std::vector<Span> converted;
  for (const kv::KvSpan& span : spans) {
    converted.push_back(Span{keys_.Key(span.begin), span.end.empty() ? "" : keys_.Key(span.end), span.limit});
  }
  return ReadSpans(converted);
}

// Commits.

Result<uint64_t> EtcdStoreImpl::Commit(const kv::Transaction& transaction) {
  CAIRNFS_RETURN_IF_ERROR(kv::CheckLimits(transaction, limits()));
  return slots_.Commit(transaction);
}

Result<kv::SlottedAnswer> EtcdStoreImpl::TryCommit(const kv::Transaction& transaction, const kv::SlotClaim* slot) {
  const pb::TxnRequest request = ToEtcd(keys_, transaction, slot);
  pb::TxnResponse response;
  Status sent = Try(options_.retry.try_timeout, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Txn(&context, request, &response);
  });
  if (!sent.ok() && sent.error().code == ErrorCode::kNoSpace && slot != nullptr)
    return AfterNoSpace(sent.error(), *slot);
  if (!sent.ok()) return sent.error();
  if (std::optional<kv::SlottedAnswer> answer = FromEtcd(response, slot != nullptr)) return *std::move(answer);
  return MakeError(ErrorCode::kUnavailable, "etcd answers what it was not asked");
}

// A member that finds its quota used up when it applies a transaction applies it, and answers "no space" all the same
// (quotaApplierV3 in etcd's server/etcdserver/apply.go). Reads are answered in that state too.
Result<kv::SlottedAnswer> EtcdStoreImpl::AfterNoSpace(const Error& refused, const kv::SlotClaim& slot) {
  pb::RangeRequest request;
  request.set_key(keys_.Slot(slot.slot));
  pb::RangeResponse response;
  const Status read = Try(options_.retry.try_timeout, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Range(&context, request, &response);
  });
  if (!read.ok()) return MakeError(ErrorCode::kUnavailable, refused.message + "; then " + read.error().message);
  if (std::optional<kv::SlottedAnswer> ran = FoundInSlot(response, slot)) return *std::move(ran);
  return refused;
}

// Leases.

Result<kv::LeaseId> EtcdStoreImpl::TryGrantLease(milliseconds ttl) {
  if (ttl <= milliseconds(0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a lease of " + std::to_string(ttl.count()) + " ms: it must be longer");
  }
  pb::LeaseGrantRequest request;
  request.set_ttl(std::chrono::ceil<std::chrono::seconds>(ttl).count());
  pb::LeaseGrantResponse response;
  CAIRNFS_RETURN_IF_ERROR(Try(options_.retry.try_timeout, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.lease->LeaseGrant(&context, request, &response);
  }));
  return static_cast<kv::LeaseId>(response.id());
}

// A grant whose answer was lost leaves a lease that nobody knows; it ends by itself.
Result<kv::LeaseId> EtcdStoreImpl::GrantLease(milliseconds ttl) {
  kv::Retry retry(options_.retry);
  for (;;) {
    Result<kv::LeaseId> lease = TryGrantLease(ttl);
    if (lease.ok() || lease.error().code != ErrorCode::kUnavailable || !retry.Wait()) return lease;
  }
}

Result<milliseconds> EtcdStoreImpl::KeepLeaseAlive(kv::LeaseId lease) {
  int64_t seconds_left = 0;
  auto keep_alive = [&](Endpoint& endpoint, grpc::ClientContext& context) {
    // A member without a leader would let the call wait.
    context.AddMetadata("hasleader", "true");
    auto stream = endpoint.lease->LeaseKeepAlive(&context);
    pb::LeaseKeepAliveRequest request;
    request.set_id(static_cast<int64_t>(lease));
    pb::LeaseKeepAliveResponse response;
    const bool has_answer = stream->Write(request) && stream->Read(&response);
    seconds_left = response.ttl();
    stream->WritesDone();
    if (has_answer) context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (has_answer) return grpc::Status::OK;
    if (!status.ok()) return status;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended without an answer");
  };
  Status status;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    status = Try(options_.lease_timeout, keep_alive);
    if (status.ok() || status.error().code != ErrorCode::kUnavailable) break;
  }
  CAIRNFS_RETURN_IF_ERROR(status);
  if (seconds_left <= 0) return MakeError(ErrorCode::kNotFound, "the lease has ended");
  return milliseconds(std::chrono::seconds(seconds_left));
}

Status EtcdStoreImpl::TryRevokeLease(kv::LeaseId lease) {
  pb::LeaseRevokeRequest request;
  request.set_id(static_cast<int64_t>(lease));
  pb::LeaseRevokeResponse response;
  Status revoked = Try(options_.lease_timeout, [&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.lease->LeaseRevoke(&context, request, &response);
  });
  if (!revoked.ok() && revoked.error().code == ErrorCode::kNotFound) return {};
  return revoked;
}

Status EtcdStoreImpl::RevokeLease(kv::LeaseId lease) {
  kv::Retry retry(options_.retry);
  for (;;) {
    Status revoked = TryRevokeLease(lease);
    if (revoked.ok() || revoked.error().code != ErrorCode::kUnavailable || !retry.Wait()) return revoked;
  }
}

// Watches.

Result<EtcdStoreImpl::Now> EtcdStoreImpl::ReadNow(grpc::ClientContext& context) {
  const size_t index = current_.load();
  Endpoint& endpoint = *endpoints_[index];
  pb::RangeRequest request;
  request.set_key(keys_.Key(""));
  request.set_count_only(true);
  pb::RangeResponse response;
  const grpc::Status status =
      TryCall(*endpoint.channel, options_, options_.retry.try_timeout, context,
              [&](grpc::ClientContext& connected) { return endpoint.kv->Range(&connected, request, &response); });
  if (status.ok()) return Now{static_cast<uint64_t>(response.header().revision()), response.header().cluster_id()};
  Error error = ErrorOf(endpoint.address, status);
  if (error.code == ErrorCode::kUnavailable) LeaveEndpoint(index);
  return error;
}

Result<std::unique_ptr<kv::KvWatch>> EtcdStoreImpl::Watch(std::string_view begin, std::string_view end,
                                                          uint64_t after_revision, kv::WatchCallbacks callbacks) {
  auto state = std::make_shared<WatchState>();
  state->begin = keys_.Key(begin);
  state->end = keys_.RangeEnd(end);
  state->callbacks = std::move(callbacks);
  if (after_revision == 0) {
    // "From now on" is a revision that is read now. Where it cannot be, the watch begins with `lost`.
    grpc::ClientContext context;
    Result<Now> now = ReadNow(context);
    after_revision = now.ok() ? now->revision : kNotKnown;
    if (now.ok()) state->cluster = now->cluster;
  }
  return RemoteWatch::Start(options_.retry, after_revision, [this, state](RemoteWatch& watch, uint64_t& after) {
    return Follow(watch, *state, after);
  });
}

bool EtcdStoreImpl::Follow(RemoteWatch& watch, WatchState& state, uint64_t& after) {
  Now now;
  {
    grpc::ClientContext context;
    RemoteWatch::Scope scope(watch, context);
    Result<Now> read = ReadNow(context);
    if (!read.ok()) return false;
    now = *read;
  }
  // A restored backup has another cluster id, or at least an older revision.
  const bool is_another = state.cluster != 0 && state.cluster != now.cluster;
  state.cluster = now.cluster;
  if (after == kNotKnown) {
    after = now.revision;
    state.callbacks.lost(after);
  } else if (now.revision < after || is_another) {
    after = now.revision;
    state.callbacks.TellWentBack(after);
  }
  const size_t index = current_.load();
  bool is_compacted = false;
  {
    grpc::ClientContext context;
    RemoteWatch::Scope scope(watch, context);
    context.AddMetadata("hasleader", "true");  // a member that is cut off ends the stream
    auto stream = endpoints_[index]->watch->Watch(&context);
    is_compacted = FollowStream(*stream, state, after);
    context.TryCancel();
    static_cast<void>(stream->Finish());  // whatever ended it, it is made anew
  }
  if (!is_compacted) {
    LeaveEndpoint(index);
    return true;
  }
  grpc::ClientContext context;
  RemoteWatch::Scope scope(watch, context);
  Result<Now> read = ReadNow(context);
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
  // With what was told last, which Tell leaves out: etcd before 3.4.36 and 3.5.18 silently leaves out what was deleted
  // at the revision that a watch starts at when the history was compacted there.
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

Status EtcdStoreImpl::CompactHistory(uint64_t revisions_kept) {
  grpc::ClientContext now_context;
  CAIRNFS_ASSIGN_OR_RETURN(Now now, ReadNow(now_context));
  if (now.revision <= revisions_kept) return {};
  pb::CompactionRequest request;
  request.set_revision(static_cast<int64_t>(now.revision - revisions_kept));
  pb::CompactionResponse response;
  Status compacted = TryLong([&](Endpoint& endpoint, grpc::ClientContext& context) {
    return endpoint.kv->Compact(&context, request, &response);
  });
  if (!compacted.ok() && compacted.error().code == ErrorCode::kStale) return {};  // somebody else did it
  return compacted;
}

}  // namespace

Result<std::unique_ptr<EtcdStore>> EtcdStore::Create(const EtcdOptions& options) {
  if (options.endpoints.empty()) return MakeError(ErrorCode::kInvalidArgument, "no endpoint of etcd is named");
  for (const std::string& endpoint : options.endpoints) {
    CAIRNFS_RETURN_IF_ERROR(CheckAddress(endpoint, /*port_min=*/1));
  }
  if (options.prefix.empty() || options.prefix.size() > kPrefixBytesMax) {
    return MakeError(ErrorCode::kInvalidArgument, "the prefix of the keys in etcd must have 1 to 256 bytes");
  }
  return std::unique_ptr<EtcdStore>(std::make_unique<EtcdStoreImpl>(options));
}

}  // namespace cairnfs::kvnet
