#include "kvnet/etcd_convert.h"

#include <map>

#include "kvnet/channel.h"

namespace cairnfs::kvnet {
namespace {

using etcdserverpb::Compare;

// A compare of a range holds in etcd when every key in it satisfies it. For an empty range etcd looks at a key that
// does not exist, with version and revisions 0.
void AddCompare(const EtcdKeys& keys, const kv::Compare& compare, etcdserverpb::TxnRequest& request) {
  using Kind = kv::Compare::Kind;
  const bool is_range = compare.kind == Kind::kRangeEmpty || compare.kind == Kind::kRangeUnchanged;
  if (is_range && !compare.range_end.empty() && compare.range_end <= compare.key) return;  // holds: no key is in it
  Compare& to = *request.add_compare();
  to.set_key(keys.Key(compare.key));
  if (is_range) to.set_range_end(keys.RangeEnd(compare.range_end));
  switch (compare.kind) {
    case Kind::kRevisionIs:
      to.set_target(Compare::MOD);
      to.set_result(Compare::EQUAL);
      to.set_mod_revision(static_cast<int64_t>(compare.revision));
      return;
    case Kind::kExists:
      to.set_target(Compare::VERSION);
      to.set_result(Compare::GREATER);
      to.set_version(0);
      return;
    case Kind::kRangeEmpty:
      to.set_target(Compare::VERSION);
      to.set_result(Compare::EQUAL);
      to.set_version(0);
      return;
    case Kind::kRangeUnchanged:
      to.set_target(Compare::MOD);
      to.set_result(Compare::LESS);
      to.set_mod_revision(static_cast<int64_t>(compare.revision + 1));
      return;
  }
}

void AddPut(std::string key, const std::string& value, kv::LeaseId lease, etcdserverpb::TxnRequest& request) {
  etcdserverpb::PutRequest& put = *request.add_success()->mutable_request_put();
  put.set_key(std::move(key));
  put.set_value(value);
  put.set_lease(static_cast<int64_t>(lease));
}

}  // namespace

etcdserverpb::TxnRequest ToEtcd(const EtcdKeys& keys, const kv::Transaction& transaction, const kv::SlotClaim* slot) {
  etcdserverpb::TxnRequest request;
  for (const kv::Compare& compare : transaction.compares) AddCompare(keys, compare, request);
  // etcd refuses two writes to one key.
  std::map<std::string_view, const kv::KvWrite*> last;
  for (const kv::KvWrite& write : transaction.writes) last[write.key] = &write;
  for (const auto& [key, write] : last) {
    if (write->value) {
      AddPut(keys.Key(key), *write->value, write->lease, request);
    } else {
      request.add_success()->mutable_request_delete_range()->set_key(keys.Key(key));
    }
  }
  if (slot == nullptr) return request;
  const std::string slot_key = keys.Slot(slot->slot);
  Compare& compare = *request.add_compare();
  compare.set_key(slot_key);
  compare.set_target(Compare::MOD);
  compare.set_result(Compare::EQUAL);
  compare.set_mod_revision(static_cast<int64_t>(slot->expected_revision));
  AddPut(slot_key, slot->value, slot->lease, request);
  request.add_failure()->mutable_request_range()->set_key(slot_key);
  return request;
}

std::optional<kv::SlottedAnswer> FromEtcd(const etcdserverpb::TxnResponse& response, const kv::SlotClaim* slot) {
  kv::SlottedAnswer answer;
  answer.committed = response.succeeded();
  if (answer.committed) answer.revision = static_cast<uint64_t>(response.header().revision());
  if (answer.committed || slot == nullptr) return answer;
  if (response.responses_size() != 1 || !response.responses(0).has_response_range()) return std::nullopt;
  const etcdserverpb::RangeResponse& range = response.responses(0).response_range();
  if (range.kvs_size() == 0) return answer;
  answer.slot_revision = static_cast<uint64_t>(range.kvs(0).mod_revision());
  answer.slot_value = range.kvs(0).value();
  return answer;
}

std::optional<kv::SlottedAnswer> FoundInSlot(const etcdserverpb::RangeResponse& read, const kv::SlotClaim& slot) {
  if (read.kvs_size() > 1) return std::nullopt;
  kv::SlottedAnswer answer;
  if (read.kvs_size() == 1) {
    answer.slot_revision = static_cast<uint64_t>(read.kvs(0).mod_revision());
    answer.slot_value = read.kvs(0).value();
  }
  if (answer.slot_revision == slot.expected_revision) return std::nullopt;
  answer.committed = answer.slot_value == slot.value;
  if (answer.committed) answer.revision = answer.slot_revision;
  return answer;
}

kv::KvEntry ToEntry(const EtcdKeys& keys, etcdserverpb::KeyValue&& from) {
  return kv::KvEntry{keys.Strip(from.key()), std::move(*from.mutable_value()),
                     static_cast<uint64_t>(from.mod_revision())};
}

Error EtcdError(const std::string& endpoint, const grpc::Status& status) {
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
    case grpc::StatusCode::UNIMPLEMENTED:
      return error(ErrorCode::kInvalidArgument,
                   "; what answers there is no etcd: a host that serves the metadata itself is named HOST:PORT, or "
                   "node:HOST:PORT in a configuration, without etcd://");
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

}  // namespace cairnfs::kvnet
