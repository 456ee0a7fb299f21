// Transactions as etcd's. Room-internal: protobuf is in here.
#pragma once

#include <grpcpp/support/status.h>

#include <cassert>

#include "etcd.pb.h"
#include "kv/shared_store.h"
#include "kv/slots.h"

namespace cairnfs::kvnet {

// Where a store's keys lie among those of an etcd cluster: below PREFIX, its own keys with 'k' in front and its slots
// with 's'.
class EtcdKeys {
 public:
  explicit EtcdKeys(std::string prefix) : prefix_(std::move(prefix)), key_prefix_(prefix_ + 'k') {}

  std::string Key(std::string_view key) const { return key_prefix_ + std::string(key); }
  // etcd's end of a range that ends at `end`; empty: at the end of the store's keys.
  std::string RangeEnd(std::string_view end) const { return end.empty() ? prefix_ + 'l' : Key(end); }
  std::string Slot(std::string_view slot) const { return prefix_ + 's' + std::string(slot); }
  const std::string& prefix() const { return prefix_; }
  // REQUIRES: it is a key of the store.
  std::string Strip(std::string_view etcd_key) const {
    assert(etcd_key.starts_with(key_prefix_));
    return std::string(etcd_key.substr(key_prefix_.size()));
  }

 private:
  const std::string prefix_, key_prefix_;
};

// When `slot` is not null the request also has its compare and put, and a failure branch that reads it.
etcdserverpb::TxnRequest ToEtcd(const EtcdKeys& keys, const kv::Transaction& transaction, const kv::SlotClaim* slot);
// `slot` as for the request. nullopt: the response does not answer such a request.
std::optional<kv::SlottedAnswer> FromEtcd(const etcdserverpb::TxnResponse& response, const kv::SlotClaim* slot);

// What a read of the slot tells of a transaction that was refused without a look at its slot, or ran all the same. Not
// committed where the slot is not as the claim expects. nullopt: it did not run.
std::optional<kv::SlottedAnswer> FoundInSlot(const etcdserverpb::RangeResponse& read, const kv::SlotClaim& slot);

// The code that etcd's words mean. `status` is not OK; the call was one to `endpoint`.
Error EtcdError(const std::string& endpoint, const grpc::Status& status);

kv::KvEntry ToEntry(const EtcdKeys& keys, etcdserverpb::KeyValue&& from);

}  // namespace cairnfs::kvnet
