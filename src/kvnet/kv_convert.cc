#include "kvnet/kv_convert.h"

#include <array>

namespace cairnfs::kvnet {
namespace {

constexpr std::array<std::pair<kv::Compare::Kind, proto::Compare::Kind>, 4> kKinds = {{
    {kv::Compare::Kind::kRevisionIs, proto::Compare::REVISION_IS},
    {kv::Compare::Kind::kExists, proto::Compare::EXISTS},
    {kv::Compare::Kind::kRangeEmpty, proto::Compare::RANGE_EMPTY},
    {kv::Compare::Kind::kRangeUnchanged, proto::Compare::RANGE_UNCHANGED},
}};

Result<kv::Compare> CompareFromProto(const proto::Compare& compare) {
  for (const auto& [kind, proto_kind] : kKinds) {
    if (proto_kind == compare.kind()) return kv::Compare{kind, compare.key(), compare.range_end(), compare.revision()};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "a compare of the kind " + std::to_string(compare.kind()) + ", which this server does not know");
}

}  // namespace

proto::CommitRequest ToProto(const kv::Transaction& transaction, const kv::SlotClaim* slot) {
  proto::CommitRequest request;
  for (const kv::Compare& compare : transaction.compares) {
    proto::Compare& to = *request.add_compares();
    for (const auto& [kind, proto_kind] : kKinds) {
      if (kind == compare.kind) to.set_kind(proto_kind);
    }
    to.set_key(compare.key);
    to.set_range_end(compare.range_end);
    to.set_revision(compare.revision);
  }
  for (const kv::KvWrite& write : transaction.writes) {
    proto::Write& to = *request.add_writes();
    to.set_key(write.key);
    if (write.value) to.set_value(*write.value);
    to.set_lease(write.lease);
  }
  if (transaction.makes_names_for) request.set_makes_names_for(*transaction.makes_names_for);
  request.set_may_lengthen(transaction.may_lengthen);
  if (slot == nullptr) return request;
  proto::Slot& to = *request.mutable_slot();
  to.set_name(slot->slot);
  to.set_expected_revision(slot->expected_revision);
  to.set_value(slot->value);
  to.set_lease(slot->lease);
  return request;
}

Result<kv::Transaction> FromProto(const proto::CommitRequest& request) {
  kv::Transaction transaction;
  for (const proto::Compare& compare : request.compares()) {
    CAIRNFS_ASSIGN_OR_RETURN(kv::Compare converted, CompareFromProto(compare));
    transaction.compares.push_back(std::move(converted));
  }
  for (const proto::Write& write : request.writes()) {
    std::optional<std::string> value = write.has_value() ? std::optional<std::string>(write.value()) : std::nullopt;
    transaction.writes.push_back(kv::KvWrite{write.key(), std::move(value), write.lease()});
  }
  if (request.has_makes_names_for()) transaction.makes_names_for = request.makes_names_for();
  transaction.may_lengthen = request.may_lengthen();
  return transaction;
}

kv::SlotClaim FromProto(const proto::Slot& slot) {
  return kv::SlotClaim{slot.name(), slot.expected_revision(), slot.value(), slot.lease()};
}

proto::CommitReply ToProto(const kv::SlottedAnswer& answer) {
  proto::CommitReply reply;
  reply.set_committed(answer.committed);
  reply.set_revision(answer.revision);
  reply.set_slot_revision(answer.slot_revision);
  reply.set_slot_value(answer.slot_value);
  return reply;
}

kv::SlottedAnswer FromProto(const proto::CommitReply& reply) {
  return kv::SlottedAnswer{reply.committed(), reply.revision(), reply.slot_revision(), reply.slot_value()};
}

proto::WatchReply ToProto(const std::vector<kv::KvEvent>& events, uint64_t revision) {
  proto::WatchReply reply;
  for (const kv::KvEvent& event : events) {
    proto::Event& to = *reply.add_events();
    to.set_key(event.key);
    if (event.value) to.set_value(*event.value);
    to.set_revision(event.revision);
  }
  reply.set_revision(revision);
  return reply;
}

std::vector<kv::KvEvent> EventsOf(proto::WatchReply& reply) {
  std::vector<kv::KvEvent> events;
  events.reserve(static_cast<size_t>(reply.events_size()));
  for (proto::Event& event : *reply.mutable_events()) {
    std::optional<std::string> value;
    if (event.has_value()) value = std::move(*event.mutable_value());
    events.push_back(kv::KvEvent{std::move(*event.mutable_key()), std::move(value), event.revision()});
  }
  return events;
}

}  // namespace cairnfs::kvnet
