#include "kvnet/etcd_store_impl.h"

namespace cairnfs::kvnet {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;

namespace {

// The least time for each endpoint, however many there are: a member that lives needs it to answer.
constexpr milliseconds kLeaseTimeoutMin{100};

}  // namespace

Result<uint64_t> EtcdStoreImpl::Commit(const Context& context, const kv::Transaction& transaction) {
  CAIRNFS_RETURN_IF_ERROR(kv::CheckLimits(transaction, limits()));
  return slots_.Commit(context, transaction);
}

Result<kv::SlottedAnswer> EtcdStoreImpl::TryCommit(const Context& context, const kv::Transaction& transaction,
                                                   const kv::SlotClaim* slot) {
  if (slot != nullptr && !transaction.writes.empty()) {
    if (auto refused = RefuseForRoom(context, transaction, *slot)) return *std::move(refused);
  }
  const pb::TxnRequest request = ToEtcd(keys_, transaction, slot);
  pb::TxnResponse response;
  Status sent = Try(context, options_.retry.try_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.kv->Txn(&call, request, &response);
  });
  if (!sent.ok() && sent.error().code == ErrorCode::kNoSpace && slot != nullptr)
    return AfterNoSpace(context, sent.error(), *slot);
  if (!sent.ok()) return sent.error();
  if (std::optional<kv::SlottedAnswer> answer = FromEtcd(response, slot)) return *std::move(answer);
  return MakeError(ErrorCode::kUnavailable, "etcd answers what it was not asked");
}

// A member that finds its quota used up when it applies a transaction applies it, and answers "no space" all the same
// (quotaApplierV3 in etcd's server/etcdserver/apply.go). Reads are answered in that state too.
Result<kv::SlottedAnswer> EtcdStoreImpl::AfterNoSpace(const Context& context, const Error& refused,
                                                      const kv::SlotClaim& slot) {
  pb::RangeRequest request;
  request.set_key(keys_.Slot(slot.slot));
  pb::RangeResponse response;
  const Status read = Try(context, options_.retry.try_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.kv->Range(&call, request, &response);
  });
  if (!read.ok()) return MakeError(ErrorCode::kUnavailable, refused.message + "; then " + read.error().message);
  if (std::optional<kv::SlottedAnswer> ran = FoundInSlot(response, slot)) return *std::move(ran);
  return refused;
}

// Leases.

Result<kv::LeaseId> EtcdStoreImpl::TryGrantLease(const Context& context, milliseconds ttl) {
  if (ttl <= milliseconds(0)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "a lease of " + std::to_string(ttl.count()) + " ms: it must be longer");
  }
  pb::LeaseGrantRequest request;
  request.set_ttl(std::chrono::ceil<std::chrono::seconds>(ttl).count());
  pb::LeaseGrantResponse response;
  CAIRNFS_RETURN_IF_ERROR(
      Try(context, options_.retry.try_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
        return endpoint.lease->LeaseGrant(&call, request, &response);
      }));
  return static_cast<kv::LeaseId>(response.id());
}

// A grant whose answer was lost leaves a lease that nobody knows; it ends by itself.
Result<kv::LeaseId> EtcdStoreImpl::GrantLease(const Context& context, milliseconds ttl) {
  return kv::TryUntilAnswered(context, options_.retry,
                              [&](const Context& limited) { return TryGrantLease(limited, ttl); });
}

Result<milliseconds> EtcdStoreImpl::KeepLeaseAlive(const Context& context, kv::LeaseId lease) {
  int64_t seconds_left = 0;
  auto keep_alive = [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    // A member without a leader would let the call wait.
    call.AddMetadata("hasleader", "true");
    auto stream = endpoint.lease->LeaseKeepAlive(&call);
    pb::LeaseKeepAliveRequest request;
    request.set_id(static_cast<int64_t>(lease));
    pb::LeaseKeepAliveResponse response;
    const bool has_answer = stream->Write(request) && stream->Read(&response);
    seconds_left = response.ttl();
    stream->WritesDone();
    if (has_answer) call.TryCancel();
    const grpc::Status status = stream->Finish();
    if (has_answer) return grpc::Status::OK;
    if (!status.ok()) return status;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended without an answer");
  };
  const milliseconds each = options_.lease_timeout_all / static_cast<int>(endpoints_.size());
  const milliseconds timeout = std::max(kLeaseTimeoutMin, std::min(options_.lease_timeout, each));
  Status status;
  for (size_t i = 0; i < endpoints_.size(); ++i) {
    status = Try(context, timeout, keep_alive);
    if (status.ok() || status.error().code != ErrorCode::kUnavailable) break;
  }
  CAIRNFS_RETURN_IF_ERROR(status);
  if (seconds_left <= 0) return MakeError(ErrorCode::kNotFound, "the lease has ended");
  return milliseconds(std::chrono::seconds(seconds_left));
}

Status EtcdStoreImpl::TryRevokeLease(const Context& context, kv::LeaseId lease) {
  pb::LeaseRevokeRequest request;
  request.set_id(static_cast<int64_t>(lease));
  pb::LeaseRevokeResponse response;
  Status revoked = Try(context, options_.lease_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.lease->LeaseRevoke(&call, request, &response);
  });
  if (!revoked.ok() && revoked.error().code == ErrorCode::kNotFound) return {};
  return revoked;
}

Status EtcdStoreImpl::RevokeLease(const Context& context, kv::LeaseId lease) {
  return kv::TryUntilAnswered(context, options_.retry,
                              [&](const Context& limited) { return TryRevokeLease(limited, lease); });
}

Status EtcdStoreImpl::CompactHistory(const Context& context, uint64_t revisions_kept) {
  CAIRNFS_ASSIGN_OR_RETURN(const Now now, ReadNow(context));
  if (now.revision <= revisions_kept) return {};
  return kv::TryUntilAnswered(context, options_.retry, [&](const Context& limited) {
    return Compact(limited, now.revision - revisions_kept, Waits::kNot);
  });
}

Status EtcdStoreImpl::Compact(const Context& context, uint64_t revision, Waits waits) {
  pb::CompactionRequest request;
  request.set_revision(static_cast<int64_t>(revision));
  request.set_physical(waits == Waits::kForFile);
  pb::CompactionResponse response;
  Status compacted = Try(context, options_.retry.try_timeout, [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) {
    return endpoint.kv->Compact(&call, request, &response);
  });
  if (!compacted.ok() && compacted.error().code == ErrorCode::kStale) return {};  // somebody else did it
  return compacted;
}

Result<std::unique_ptr<EtcdStore>> EtcdStore::Create(const EtcdOptions& options) {
  if (options.endpoints.empty()) return MakeError(ErrorCode::kInvalidArgument, "no endpoint of etcd is named");
  for (const std::string& endpoint : options.endpoints) {
    CAIRNFS_RETURN_IF_ERROR(CheckAddress(endpoint, /*port_min=*/1));
  }
  if (options.prefix.empty() || options.prefix.size() > kEtcdPrefixBytesMax) {
    return MakeError(ErrorCode::kInvalidArgument, "the prefix of the keys in etcd must have 1 to 256 bytes");
  }
  return std::unique_ptr<EtcdStore>(std::make_unique<EtcdStoreImpl>(options));
}

}  // namespace cairnfs::kvnet
