#include "kvnet/kv_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/clock.h"
#include "kv.grpc.pb.h"
#include "kvnet/channel.h"
#include "kvnet/kv_convert.h"
#include "kvnet/names_service.h"
#include "rpc/guarded_port.h"
#include "rpc/status.h"

namespace cairnfs::kvnet {
namespace {

// The size of one part of an answer; one entry may be larger.
constexpr size_t kPartBytes = 1 << 20;
constexpr size_t kEntryOverheadBytes = 16;
constexpr size_t kSpansMax = 1 << 14;
constexpr int kBatchMessageBytesMax = 48 << 20;  // a batch of transactions, as the standby gets it
constexpr auto kShutdownGrace = std::chrono::milliseconds(200);

grpc::Status Refused(const std::string& why) { return rpc::ToGrpc(MakeError(ErrorCode::kInvalidArgument, why)); }

grpc::Status TooMany(int watches_max) {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          "the host that serves the metadata has " + std::to_string(watches_max) +
              " watches, and serves no more: each host keeps three, one for each of its ranks that is in cairnfs "
              "commit, and one for each file of which a lock is waited for there; let fewer ranks commit at once, or "
              "keep the metadata of so many hosts in an etcd"};
}

// Counts the watches. gRPC may end a call a moment after its server is shut down.
class WatchCount {
 public:
  explicit WatchCount(int count_max) : count_max_(count_max) {}
  int count_max() const { return count_max_; }
  bool Add() {
    MutexLock lock(mutex_);
    ++count_;
    return count_ <= count_max_;
  }
  void Remove() {
    MutexLock lock(mutex_);
    --count_;
    removed_.NotifyAll();
  }
  void WaitForNone() {
    MutexLock lock(mutex_);
    while (count_ != 0) removed_.Wait(mutex_);
  }

 private:
  const int count_max_;
  Mutex mutex_;
  CondVar removed_;
  int count_ GUARDED_BY(mutex_) = 0;
};

// One watch of a client. gRPC's threads and the watch's own meet here; it destroys itself when the call is over.
class WatchStream final : public grpc::ServerWriteReactor<proto::WatchReply> {
 public:
  // `admit`: whether the client may be told, which it may not where `store` is null; asked at the beginning and before
  // each reply.
  WatchStream(kv::HostedStore* store, const proto::WatchRequest& request, WatchCount& watches,
              std::function<Status()> admit)
      : watches_(watches), admit_(std::move(admit)) {
    const bool has_room = watches_.Add();
    if (const Status admitted = admit_(); !admitted.ok()) {
      Refuse(rpc::ToGrpc(admitted.error()));
      return;
    }
    if (!has_room) {
      Refuse(TooMany(watches_.count_max()));
      return;
    }
    kv::WatchCallbacks callbacks;
    callbacks.changed = [this](const std::vector<kv::KvEvent>& events, uint64_t revision) {
      Send(ToProto(events, revision));
    };
    callbacks.lost = [this](uint64_t revision) {
      proto::WatchReply reply;
      reply.set_lost(true);
      reply.set_revision(revision);
      Send(std::move(reply));
    };
    Status begun = Begin(*store, request, std::move(callbacks));
    if (!begun.ok()) Refuse(rpc::ToGrpc(begun.error()));
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    is_writing_ = false;
    if (!ok) has_ended_ = true;
    if (has_ended_) FinishOnce();
    written_.NotifyAll();
  }
  void OnCancel() override {
    MutexLock lock(mutex_);
    has_ended_ = true;
    if (!is_writing_) FinishOnce();
    written_.NotifyAll();
  }
  void OnDone() override {
    watch_.reset();  // its callbacks see has_ended_
    WatchCount& watches = watches_;
    delete this;
    watches.Remove();
  }

 private:
  // Begins the watch, and sends the first reply before anything that the watch tells.
  Status Begin(kv::HostedStore& store, const proto::WatchRequest& request, kv::WatchCallbacks callbacks) {
    proto::WatchReply first;
    first.set_opening(store.opening());
    CAIRNFS_ASSIGN_OR_RETURN(const bool was_at, store.WasAt(request.opening(), request.after_revision()));
    first.set_went_back(!was_at);
    first.set_revision(request.after_revision());
    if (first.went_back()) {
      CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot now, store.Read({}, {}));
      first.set_revision(now.revision);
    }
    {
      MutexLock lock(mutex_);
      reply_ = std::move(first);
      is_writing_ = true;  // so that the watch waits
    }
    CAIRNFS_ASSIGN_OR_RETURN(watch_,
                             store.WatchAfter(request.begin(), request.end(), reply_.revision(), std::move(callbacks)));
    StartWrite(&reply_);
    return {};
  }
  // Waits until the reply before is on its way: changes that a slow client does not take stay in the store's history.
  void Send(proto::WatchReply reply) {
    const Status admitted = admit_();
    MutexLock lock(mutex_);
    if (!admitted.ok() && !has_ended_) {
      has_ended_ = true;
      if (!is_writing_) FinishOnce();
    }
    while (is_writing_ && !has_ended_) written_.Wait(mutex_);
    if (has_ended_) return;
    reply_ = std::move(reply);
    is_writing_ = true;
    StartWrite(&reply_);
  }
  void Refuse(const grpc::Status& why) {
    MutexLock lock(mutex_);
    has_ended_ = is_finished_ = true;
    Finish(why);
  }
  void FinishOnce() REQUIRES_LOCK(mutex_) {
    if (!std::exchange(is_finished_, true)) Finish(grpc::Status::CANCELLED);
  }

  WatchCount& watches_;
  const std::function<Status()> admit_;
  Mutex mutex_;
  CondVar written_;
  proto::WatchReply reply_;  // of gRPC while is_writing_
  bool is_writing_ GUARDED_BY(mutex_) = false;
  bool has_ended_ GUARDED_BY(mutex_) = false;
  bool is_finished_ GUARDED_BY(mutex_) = false;
  std::unique_ptr<kv::KvWatch> watch_;
};

// The parts of an answer, each sent once it is large enough.
class PartWriter {
 public:
  PartWriter(grpc::ServerContext& context, grpc::ServerWriter<proto::ReadPart>& writer)
      : context_(context), writer_(writer) {}

  // False: the client is gone.
  bool Add(kv::HostedStore::Piece piece) {
    if (piece.span != part_.span() && !Send()) return false;
    part_.set_span(static_cast<uint32_t>(piece.span));
    part_.set_revision(piece.revision);
    part_.set_more(!piece.entry);
    is_empty_ = false;
    if (!piece.entry) return true;
    bytes_ += piece.entry->key.size() + piece.entry->value.size() + kEntryOverheadBytes;
    proto::Entry& to = *part_.add_entries();
    to.set_key(std::move(piece.entry->key));
    to.set_value(std::move(piece.entry->value));
    to.set_revision(piece.entry->revision);
    return bytes_ < kPartBytes || Send();
  }
  bool End(uint64_t revision) {
    if (is_sent_) return Send();
    part_.set_revision(revision);  // an answer without entries says so much
    is_empty_ = false;
    return Send();
  }

 private:
  bool Send() {
    if (is_empty_) return is_alive_;
    is_alive_ = is_alive_ && writer_.Write(part_) && !context_.IsCancelled();
    is_sent_ = is_empty_ = true;
    part_.clear_entries();
    part_.set_more(false);
    bytes_ = 0;
    return is_alive_;
  }

  grpc::ServerContext& context_;
  grpc::ServerWriter<proto::ReadPart>& writer_;
  proto::ReadPart part_;
  size_t bytes_ = 0;
  bool is_empty_ = true, is_sent_ = false, is_alive_ = true;
};

using ServiceBase = proto::Kv::WithCallbackMethod_Watch<proto::Kv::Service>;

}  // namespace

class KvService::Impl final : public ServiceBase {
 public:
  Impl(StoreOf store, Admit admit, int watches_max)
      : store_of_(std::move(store)), admit_(std::move(admit)), watches_(watches_max) {}
  ~Impl() override { watches_.WaitForNone(); }

  grpc::Status Read(grpc::ServerContext* context, const proto::ReadRequest* request,
                    grpc::ServerWriter<proto::ReadPart>* writer) override {
    const Result<kv::HostedStore*> store = AdmitCall(*context);
    if (!store.ok()) return rpc::ToGrpc(store.error());
    if (request->spans_size() > static_cast<int>(kSpansMax)) return Refused("a read of too many spans");
    if (request->to_the_end() && request->spans_size() != 1) return Refused("to_the_end goes with one span");
    // Sent as it is read. However large an answer is, this process holds one part of it, and what gRPC has on its way.
    PartWriter parts(*context, *writer);
    Result<uint64_t> revision = (*store)->ReadPieces(
        SpansOf(*request), [&](kv::HostedStore::Piece piece) { return parts.Add(std::move(piece)); });
    if (!revision.ok()) return rpc::ToGrpc(revision.error());
    return parts.End(*revision) ? grpc::Status::OK : grpc::Status::CANCELLED;
  }

  grpc::Status Commit(grpc::ServerContext* context, const proto::CommitRequest* request,
                      proto::CommitReply* reply) override {
    const Result<kv::HostedStore*> store = AdmitCall(*context);
    if (!store.ok()) return rpc::ToGrpc(store.error());
    Result<kv::Transaction> transaction = FromProto(*request);
    if (!transaction.ok()) return rpc::ToGrpc(transaction.error());
    if (!request->has_slot()) return CommitCompares(**store, *transaction, reply);
    Result<kv::SlottedAnswer> answer = (*store)->CommitSlotted(*transaction, FromProto(request->slot()));
    if (!answer.ok()) return rpc::ToGrpc(answer.error());
    *reply = ToProto(*answer);
    return grpc::Status::OK;
  }

  grpc::Status GrantLease(grpc::ServerContext* context, const proto::GrantLeaseRequest* request,
                          proto::GrantLeaseReply* reply) override {
    const Result<kv::HostedStore*> store = AdmitCall(*context);
    if (!store.ok()) return rpc::ToGrpc(store.error());
    constexpr uint64_t kTtlMax = INT64_MAX / 1'000'000;
    Result<kv::LeaseId> lease =
        (*store)->GrantLease({}, std::chrono::milliseconds(std::min(request->ttl_ms(), kTtlMax)));
    if (!lease.ok()) return rpc::ToGrpc(lease.error());
    reply->set_lease(*lease);
    return grpc::Status::OK;
  }

  grpc::Status KeepLeaseAlive(grpc::ServerContext* context, const proto::LeaseRequest* request,
                              proto::KeepLeaseAliveReply* reply) override {
    const Result<kv::HostedStore*> store = AdmitCall(*context);
    if (!store.ok()) return rpc::ToGrpc(store.error());
    Result<std::chrono::milliseconds> left = (*store)->KeepLeaseAlive({}, request->lease());
    if (!left.ok()) return rpc::ToGrpc(left.error());
    reply->set_left_ms(static_cast<uint64_t>(left->count()));
    if (const auto room = (*store)->RoomForNames()) reply->set_room_for_names(*room);
    return grpc::Status::OK;
  }

  grpc::Status RevokeLease(grpc::ServerContext* context, const proto::LeaseRequest* request,
                           proto::RevokeLeaseReply* /*reply*/) override {
    const Result<kv::HostedStore*> store = AdmitCall(*context);
    if (!store.ok()) return rpc::ToGrpc(store.error());
    Status revoked = (*store)->RevokeLease({}, request->lease());
    return revoked.ok() ? grpc::Status::OK : rpc::ToGrpc(revoked.error());
  }

  grpc::ServerWriteReactor<proto::WatchReply>* Watch(grpc::CallbackServerContext* context,
                                                     const proto::WatchRequest* request) override {
    kv::HostedStore* const store = store_of_();
    auto admit = [this, context, store]() -> Status {
      const Result<kv::HostedStore*> now = AdmitCall(*context);
      if (!now.ok()) return now.error();
      return store != nullptr ? Status() : Status(NotServed());  // it may be served only since
    };
    return new WatchStream(store, *request, watches_, admit);
  }

 private:
  // Never null.
  Result<kv::HostedStore*> AdmitCall(const grpc::ServerContextBase& call) const {
    if (admit_) CAIRNFS_RETURN_IF_ERROR(admit_(call));
    if (kv::HostedStore* store = store_of_()) return store;
    return NotServed();
  }
  static Error NotServed() {
    return MakeError(ErrorCode::kUnavailable, "this host does not serve the names, or not yet");
  }
  static std::vector<kv::KvSpan> SpansOf(const proto::ReadRequest& request) {
    std::vector<kv::KvSpan> spans;
    for (const proto::Span& span : request.spans()) {
      const bool is_key = span.end().empty() && !request.to_the_end();
      spans.push_back({span.begin(), is_key ? span.begin() + '\0' : span.end(), span.limit()});
    }
    return spans;
  }

  static grpc::Status CommitCompares(kv::HostedStore& store, const kv::Transaction& transaction,
                                     proto::CommitReply* reply) {
    if (!transaction.writes.empty()) return Refused("a transaction with writes and without a slot");
    Result<uint64_t> revision = store.Commit({}, transaction);
    if (!revision.ok() && revision.error().code != ErrorCode::kConflict) return rpc::ToGrpc(revision.error());
    reply->set_committed(revision.ok());
    if (revision.ok()) reply->set_revision(*revision);
    return grpc::Status::OK;
  }

  const StoreOf store_of_;
  const Admit admit_;
  WatchCount watches_;
};

KvService::KvService(StoreOf store, Admit admit, int watches_max)
    : impl_(std::make_unique<Impl>(std::move(store), std::move(admit), watches_max)) {}
KvService::~KvService() = default;
grpc::Service& KvService::service() { return *impl_; }

namespace {

class Server final : public KvServer {
 public:
  // `host` may be null.
  Server(KvService::StoreOf store, kv::NamesHost* host)
      : service_(std::move(store), [this](const grpc::ServerContextBase& call) -> Status {
          const auto node = port_->Admit(call);
          return node.ok() ? Status() : Status(node.error());
        }) {
    if (host == nullptr) return;
    names_ = std::make_unique<NamesService>(*host,
                                            [this](const grpc::ServerContextBase& call) { return port_->Admit(call); });
  }
  ~Server() override {
    if (port_) port_->Close();
    if (server_ == nullptr) return;
    server_->Shutdown(Clock::LibraryDeadline(kShutdownGrace));
    server_->Wait();
  }
  const std::string& address() const override { return port_->address(); }
  uint64_t refused_total() const override { return port_->refused_total(); }

  Status Listen(const std::string& listen, Guard guard) {
    constexpr int kPingMs = 5'000, kPingTimeoutMs = 3'000, kPingIntervalMinMs = 1'000;
    CAIRNFS_RETURN_IF_ERROR(CheckAddress(listen, /*port_min=*/0));
    grpc::ServerBuilder builder;
    port_.emplace(builder, rpc::PortGuard{guard.tls, std::move(guard.is_trusted), std::move(guard.check_member)});
    builder.RegisterService(&service_.service());
    if (names_ != nullptr) builder.RegisterService(&names_->service());
    builder.SetMaxReceiveMessageSize(names_ == nullptr ? KvService::kMessageBytesMax : kBatchMessageBytesMax);
    // A client that is gone without a word would keep its watches here.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingIntervalMinMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) return MakeError(ErrorCode::kUnavailable, "cannot serve at " + listen);
    Status opened = port_->Open(listen);
    if (opened.ok()) return {};
    return MakeError(ErrorCode::kUnavailable, "cannot listen on " + listen +
                                                  ": it is in use, no address of this host, or needs rights (" +
                                                  opened.error().message + ")");
  }

 private:
  KvService service_;
  std::unique_ptr<NamesService> names_;  // null: there is no standby, nor may there be one
  std::unique_ptr<grpc::Server> server_;
  std::optional<rpc::GuardedPort> port_;
};

}  // namespace

Result<std::unique_ptr<KvServer>> KvServer::Start(kv::HostedStore& store, const std::string& listen, Guard guard) {
  auto server = std::make_unique<Server>([&store] { return &store; }, nullptr);
  CAIRNFS_RETURN_IF_ERROR(server->Listen(listen, std::move(guard)));
  return std::unique_ptr<KvServer>(std::move(server));
}

Result<std::unique_ptr<KvServer>> KvServer::Start(kv::NamesHost& host, const std::string& listen, Guard guard) {
  auto server = std::make_unique<Server>([&host] { return host.serving(); }, &host);
  CAIRNFS_RETURN_IF_ERROR(server->Listen(listen, std::move(guard)));
  return std::unique_ptr<KvServer>(std::move(server));
}

}  // namespace cairnfs::kvnet
