// What the members of an etcd tell of their room, and what is done about it.
#include <algorithm>
#include <charconv>
#include <set>

#include "base/log.h"
#include "kvnet/etcd_store_impl.h"
#include "kvnet/http_get.h"

namespace cairnfs::kvnet {

namespace pb = etcdserverpb;
using std::chrono::milliseconds;

namespace {

constexpr milliseconds kAskTimeout{1'000};
// A member that did not answer, or does not tell its quota, is not asked again meanwhile.
constexpr std::chrono::seconds kSilentFor{10};
// The quota changes only with a restart of the member, and its metrics are long.
constexpr std::chrono::minutes kQuotaHolds{5};
constexpr std::chrono::seconds kQuotaHoldsWhileShort{60};
constexpr uint64_t kQuotaDefault = uint64_t{2} << 30;
constexpr std::string_view kQuotaMetric = "\netcd_server_quota_backend_bytes ";

// What removes waits for so long while next to no room is left, and looks so often.
constexpr milliseconds kRemovalWaitMax{2'000}, kRemovalPoll{200};

// A watch that broke off goes on within seconds; one that asks for older changes reads its range anew.
constexpr uint64_t kRevisionsKept = 100'000;
constexpr std::chrono::minutes kCompactEvery{5};
constexpr milliseconds kShortLease{1'000};

// 0: the member has none.
Result<uint64_t> QuotaIn(std::string_view metrics) {
  const size_t found = metrics.find(kQuotaMetric);
  if (found == std::string_view::npos) return MakeError(ErrorCode::kUnavailable, "its metrics do not have it");
  const std::string_view rest = metrics.substr(found + kQuotaMetric.size());
  double quota = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), quota);
  if (error != std::errc() || !(quota < 1e18)) return MakeError(ErrorCode::kUnavailable, "its metrics are damaged");
  return quota > 0 ? static_cast<uint64_t>(quota) : 0;
}

size_t BytesOf(const kv::Transaction& transaction) {
  size_t bytes = 0;
  for (const kv::KvWrite& write : transaction.writes)
    bytes += write.key.size() + (write.value ? write.value->size() : 0);
  return bytes;
}

}  // namespace

std::optional<uint64_t> EtcdStoreImpl::QuotaOf(const Context& context, EtcdEndpoint& endpoint) {
  if (Clock::Now() < endpoint.quota_until) return endpoint.quota;
  const auto metrics = HttpGet(context.WithTimeout(kAskTimeout), endpoint.address, "/metrics", options_.tls);
  if (context.Expired()) return std::nullopt;
  const Result<uint64_t> told = metrics.ok() ? QuotaIn(*metrics) : metrics.error();
  if (told.ok()) endpoint.quota = *told;
  if (!endpoint.quota) {
    spdlog::warn(
        "etcd at {} does not tell its quota (GET /metrics: {}). 2 GiB are assumed, its default: with a smaller one it "
        "can come to refuse all changes, and of a larger one the rest is not used",
        endpoint.address, told.error().message);
    endpoint.quota = kQuotaDefault;
  }
  const Clock::duration holds = room_.IsShort() ? Clock::duration(kQuotaHoldsWhileShort) : kQuotaHolds;
  endpoint.quota_until = Clock::Now() + (told.ok() ? holds : kSilentFor);
  return endpoint.quota;
}

std::optional<EtcdRoom::Space> EtcdStoreImpl::SpaceOf(const Context& context, EtcdEndpoint& endpoint) {
  if (Clock::Now() < endpoint.silent_until) return std::nullopt;
  pb::StatusResponse told;
  const grpc::Status asked = TryCall(context, *endpoint.channel, options_, kAskTimeout, [&](grpc::ClientContext& call) {
    return endpoint.maintenance->Status(&call, pb::StatusRequest(), &told);
  });
  if (!asked.ok()) {
    if (!context.Expired()) endpoint.silent_until = Clock::Now() + kSilentFor;
    return std::nullopt;
  }
  EtcdRoom::Space space{endpoint.address, static_cast<uint64_t>(std::max<int64_t>(told.dbsizequota(), 0)),
                        static_cast<uint64_t>(told.dbsize()), static_cast<uint64_t>(told.dbsizeinuse()),
                        static_cast<uint64_t>(told.header().revision())};
  if (space.quota_bytes != 0) return space;
  const std::optional<uint64_t> quota = QuotaOf(context, endpoint);
  if (!quota) return std::nullopt;
  space.quota_bytes = *quota;
  return space;
}

void EtcdStoreImpl::Look(const Context& context) {
  MutexLock lock(look_mutex_);
  if (is_looking_) {
    static_cast<void>(context.Wait(look_mutex_, looked_, [this]() REQUIRES_LOCK(look_mutex_) { return !is_looking_; }));
    return;
  }
  is_looking_ = true;
  lock.Unlock();
  const EtcdRoom::Look look = room_.BeginLook();
  std::vector<EtcdRoom::Space> members;
  for (const auto& endpoint : endpoints_) {
    if (auto space = SpaceOf(context, *endpoint)) members.push_back(*std::move(space));
  }
  // What was cut short tells nothing of the members that were not asked.
  if (!context.Expired()) room_.Note(members, look);
  lock.Lock();
  is_looking_ = false;
  looked_.NotifyAll();
}

std::optional<uint64_t> EtcdStoreImpl::RoomForNames() const {
  return room_.IsKnown() ? std::optional(room_.BytesForUsers(0)) : std::nullopt;
}

std::optional<Result<kv::SlottedAnswer>> EtcdStoreImpl::RefuseForRoom(const Context& context,
                                                                      const kv::Transaction& transaction,
                                                                      const kv::SlotClaim& slot) {
  const uint64_t bytes = EtcdCostOf(transaction);
  const bool is_judged = transaction.makes_names_for || transaction.may_lengthen;
  if (is_judged) {
    const auto change = transaction.makes_names_for ? kv::NameChange::kMakes : kv::NameChange::kAlters;
    const uint32_t uid = transaction.makes_names_for.value_or(0);
    if (room_.IsLookDueFor(bytes)) Look(context);
    if (!room_.Judge(change, uid, bytes).ok()) {
      CAIRNFS_ASSIGN_OR_RETURN(const Needs needs, NeedsOf(context, transaction));
      if (needs == Needs::kConflict) return kv::SlottedAnswer{.slot_revision = slot.expected_revision};
      // There may be room since.
      if (needs == Needs::kRoom) CAIRNFS_RETURN_IF_ERROR(room_.Admit(change, uid, bytes));
    }
  } else {
    WaitToRemove(context, transaction);
  }
  room_.NoteLetIn(bytes);
  return std::nullopt;
}

// As a store that judges last of all: what conflicts is told that, and what shortens is let in.
Result<EtcdStoreImpl::Needs> EtcdStoreImpl::NeedsOf(const Context& context, const kv::Transaction& transaction) {
  kv::Transaction compares;
  compares.compares = transaction.compares;
  pb::TxnRequest request = ToEtcd(keys_, compares, nullptr);
  std::set<std::string_view> keys;
  for (const kv::KvWrite& write : transaction.writes) keys.insert(write.key);
  const bool is_measured = !transaction.makes_names_for;
  for (const std::string_view key : keys) {
    if (is_measured) request.add_success()->mutable_request_range()->set_key(keys_.Key(key));
  }
  pb::TxnResponse response;
  CAIRNFS_RETURN_IF_ERROR(Try(
      context, options_.retry.try_timeout,
      [&](EtcdEndpoint& endpoint, grpc::ClientContext& call) { return endpoint.kv->Txn(&call, request, &response); }));
  if (!response.succeeded()) return Needs::kConflict;
  if (!is_measured) return Needs::kRoom;
  size_t before = 0;
  for (const pb::ResponseOp& part : response.responses()) {
    for (const pb::KeyValue& entry : part.response_range().kvs()) {
      before += keys_.Strip(entry.key()).size() + entry.value().size();
    }
  }
  for (const kv::KvWrite& write : transaction.writes)
    before += write.value ? 0 : write.key.size();  // BytesOf counts it
  return BytesOf(transaction) > before ? Needs::kRoom : Needs::kNothing;
}

void EtcdStoreImpl::WaitToRemove(const Context& context, const kv::Transaction& transaction) {
  const bool is_of_lease = std::all_of(transaction.writes.begin(), transaction.writes.end(),
                                       [](const auto& write) { return write.lease != 0; });
  if (is_of_lease) return;  // sessions and locks
  const Context limited = context.WithTimeout(kRemovalWaitMax);
  while (room_.SlowsRemovals() && limited.Sleep(kRemovalPoll)) {
    if (room_.IsLookDue()) Look(limited);
  }
}

Status EtcdStoreImpl::Housekeep(const Context& context, Compacts compacts) {
  if (room_.IsLookDue()) Look(context);
  if (compacts == Compacts::kNo) return {};
  const Status compacted = CompactWhereDue(context);
  // What etcd freed counts as free once it has written a few times since, and while all names are refused nobody else
  // may write. A lease is no revision, and ends by itself.
  if (room_.IsShort()) static_cast<void>(TryGrantLease(context, kShortLease).ok());
  return compacted;
}

Status EtcdStoreImpl::CompactWhereDue(const Context& context) {
  if (const auto revision = room_.CompactionDue()) return CompactEarly(context, *revision);
  if (Clock::Now() - compacted_at_ < kCompactEvery) return {};
  compacted_at_ = Clock::Now();
  return CompactHistory(context, kRevisionsKept);
}

// Waits until the member that is asked has written it, for some seconds: it takes longer the more keys there are, and
// those that are asked for meanwhile queue up.
Status EtcdStoreImpl::CompactEarly(const Context& context, uint64_t revision) {
  const auto began = compacted_at_ = Clock::Now();
  const Status compacted = Compact(context, revision, Waits::kForFile);
  const bool is_known = compacted.ok() || compacted.error().code != ErrorCode::kUnavailable;
  room_.NoteCompacted(revision, is_known ? std::optional(Clock::Now() - began) : std::nullopt);
  return is_known ? compacted : Status();
}

}  // namespace cairnfs::kvnet
