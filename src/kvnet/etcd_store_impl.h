// EtcdStore's insides, which etcd_store.cc (transactions, leases), etcd_reads.cc, etcd_overlap.cc, etcd_space.cc and
// etcd_watches.cc share.
// Room-internal: gRPC is in here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <optional>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "etcd.grpc.pb.h"
#include "kv/commit_slots.h"
#include "kvnet/channel.h"
#include "kvnet/etcd_convert.h"
#include "kvnet/etcd_room.h"
#include "kvnet/etcd_store.h"
#include "kvnet/remote_watch.h"

namespace cairnfs::kvnet {

// etcd's default --max-txn-ops is 128, and each transaction also compares and puts its slot.
inline constexpr size_t kEtcdOperationsMax = 128;
inline constexpr size_t kEtcdPrefixBytesMax = 256;

struct EtcdEndpoint {
  EtcdEndpoint(const std::string& address, const RemoteOptions& options)
      : address(address),
        channel(MakeChannel(address, options)),
        kv(etcdserverpb::KV::NewStub(channel)),
        lease(etcdserverpb::Lease::NewStub(channel)),
        maintenance(etcdserverpb::Maintenance::NewStub(channel)),
        watch(etcdserverpb::Watch::NewStub(channel)) {}
  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<etcdserverpb::KV::Stub> kv;
  const std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  const std::unique_ptr<etcdserverpb::Maintenance::Stub> maintenance;
  const std::unique_ptr<etcdserverpb::Watch::Stub> watch;

  // Of the thread that looks at the room (EtcdStoreImpl::Look).
  Clock::time_point silent_until{}, quota_until{};  // it is not asked before
  std::optional<uint64_t> quota;                    // 0: it has none; nullopt: not asked yet
};

class EtcdStoreImpl final : public EtcdStore, private kv::SlotTransport {
 public:
  explicit EtcdStoreImpl(const EtcdOptions& options)
      : options_(options.remote), keys_(options.prefix), slots_(*this, options.remote.retry) {
    for (const std::string& address : options.endpoints) {
      endpoints_.push_back(std::make_unique<EtcdEndpoint>(address, options.remote));
    }
  }

  Result<std::optional<kv::KvEntry>> Get(const Context& context, std::string_view key) override;
  Result<kv::KvRange> Range(const Context& context, std::string_view begin, std::string_view end,
                            size_t limit) override;
  Result<uint64_t> VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                const EntryVisitor& visit) override;
  Result<kv::KvSnapshot> Read(const Context& context, std::span<const kv::KvSpan> spans) override;
  Result<uint64_t> Commit(const Context& context, const kv::Transaction& transaction) override;
  Status Sync(const Context&) override { return {}; }
  kv::KvLimits limits() const override {
    // etcd's default --max-request-bytes is 1.5 MiB; the rest is for prefixes, field tags and the slot.
    return kv::KvLimits{.operations_per_transaction_max = kEtcdOperationsMax - 1, .transaction_bytes_max = 1'280 << 10};
  }
  Result<kv::LeaseId> GrantLease(const Context& context, std::chrono::milliseconds ttl) override;
  Result<std::chrono::milliseconds> KeepLeaseAlive(const Context& context, kv::LeaseId lease) override;
  Status RevokeLease(const Context& context, kv::LeaseId lease) override;
  Result<std::unique_ptr<kv::KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                             uint64_t after_revision, kv::WatchCallbacks callbacks) override;
  std::optional<uint64_t> RoomForNames() const override;
  Status Housekeep(const Context& context, Compacts compacts) override;
  Status CompactHistory(const Context& context, uint64_t revisions_kept) override;
  Result<std::optional<std::string>> FindOverlap(const Context& context, std::string_view header) override;

 private:
  // A span to be read, in etcd's terms.
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

  Result<kv::SlottedAnswer> TryCommit(const Context& context, const kv::Transaction& transaction,
                                      const kv::SlotClaim* slot) override;
  // What is answered in etcd's place, where there is no room for it; nullopt: it may be sent.
  std::optional<Result<kv::SlottedAnswer>> RefuseForRoom(const Context& context, const kv::Transaction& transaction,
                                                         const kv::SlotClaim& slot);
  enum class Needs { kRoom, kNothing, kConflict };
  Result<Needs> NeedsOf(const Context& context, const kv::Transaction& transaction);
  void WaitToRemove(const Context& context, const kv::Transaction& transaction);
  Status CompactWhereDue(const Context& context);
  Status CompactEarly(const Context& context, uint64_t revision);
  enum class Waits { kNot, kForFile };  // kForFile: until it is written
  Status Compact(const Context& context, uint64_t revision, Waits waits);
  // Asks the members how much room there is, or waits until another thread has.
  void Look(const Context& context) EXCLUDES_LOCK(look_mutex_);
  std::optional<EtcdRoom::Space> SpaceOf(const Context& context, EtcdEndpoint& endpoint);
  // nullopt: the context expired first.
  std::optional<uint64_t> QuotaOf(const Context& context, EtcdEndpoint& endpoint);

  Result<kv::SlottedAnswer> AfterNoSpace(const Context& context, const Error& refused, const kv::SlotClaim& slot);
  Result<kv::LeaseId> TryGrantLease(const Context& context, std::chrono::milliseconds ttl) override;
  Status TryRevokeLease(const Context& context, kv::LeaseId lease) override;

  // `send(endpoint, call)` to the current endpoint. After kUnavailable the next one is the current one.
  template <typename Send>
  Status Try(const Context& context, std::chrono::milliseconds timeout, const Send& send) {
    const size_t index = current_.load();
    EtcdEndpoint& endpoint = *endpoints_[index];
    const grpc::Status status = TryCall(context, *endpoint.channel, options_, timeout,
                                        [&](grpc::ClientContext& call) { return send(endpoint, call); });
    if (status.ok()) return {};
    Error error = EtcdError(endpoint.address, status);
    if (error.code == ErrorCode::kUnavailable) LeaveEndpoint(index);
    return error;
  }
  // As Try, again and again until the answer is another one than kUnavailable, or the time is over.
  template <typename Send>
  Status TryLong(const Context& context, const Send& send) {
    return kv::TryUntilAnswered(context, options_.retry,
                                [&](const Context& limited) { return Try(limited, options_.retry.try_timeout, send); });
  }
  void LeaveEndpoint(size_t index) { current_.compare_exchange_strong(index, (index + 1) % endpoints_.size()); }

  Result<kv::KvSnapshot> ReadSpans(const Context& context, const std::vector<Span>& spans);
  // kStale: the revision that it reads at was compacted meanwhile.
  Result<kv::KvSnapshot> ReadSpansOnce(const Context& context, const std::vector<Span>& spans);
  Result<etcdserverpb::TxnResponse> ReadFirstPages(const Context& context, std::span<const Span> spans,
                                                   uint64_t revision);
  Status ReadPages(const Context& context, const Span& span, uint64_t revision, kv::KvRange& range);
  // Takes the entries of a page. True: there are more, and they are wanted.
  bool Take(const Span& span, etcdserverpb::RangeResponse& page, kv::KvRange& range) const;
  static etcdserverpb::RangeRequest PageOf(const Span& span, size_t have, uint64_t revision);

  Result<bool> IsOfCluster(const Context& context, const std::string& prefix, std::string_view header);
  Result<Now> ReadNow(const Context& context);
  bool Follow(const Context& context, WatchState& state, uint64_t& after);
  // Tells the changes that come, until the stream breaks or says that the history is gone (true).
  bool FollowStream(grpc::ClientReaderWriter<etcdserverpb::WatchRequest, etcdserverpb::WatchResponse>& stream,
                    WatchState& state, uint64_t& after);
  void Tell(etcdserverpb::WatchResponse& response, WatchState& state, uint64_t& after);

  const RemoteOptions options_;
  const EtcdKeys keys_;
  std::vector<std::unique_ptr<EtcdEndpoint>> endpoints_;  // constant after construction
  std::atomic<size_t> current_{0};

  EtcdRoom room_;  // self-synchronised
  Mutex look_mutex_;
  CondVar looked_;
  bool is_looking_ GUARDED_BY(look_mutex_) = false;
  Clock::time_point compacted_at_ = Clock::Now();  // of Housekeep

  kv::CommitSlots slots_;  // self-synchronised; ends before what it sends with
};

}  // namespace cairnfs::kvnet
