// EtcdStore's insides, which etcd_store.cc (transactions, leases), etcd_reads.cc, etcd_overlap.cc and
// etcd_watches.cc share.
// Room-internal: gRPC is in here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "etcd.grpc.pb.h"
#include "kv/commit_slots.h"
#include "kvnet/channel.h"
#include "kvnet/etcd_convert.h"
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
        watch(etcdserverpb::Watch::NewStub(channel)) {}
  const std::string address;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<etcdserverpb::KV::Stub> kv;
  const std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  const std::unique_ptr<etcdserverpb::Watch::Stub> watch;
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
  kv::CommitSlots slots_;  // self-synchronised; ends before what it sends with
};

}  // namespace cairnfs::kvnet
