// The messages of kv.proto and what they stand for. Room-internal: protobuf is in here.
#pragma once

#include "kv.pb.h"
#include "kv/shared_store.h"
#include "kv/slots.h"

namespace cairnfs::kvnet {

proto::CommitRequest ToProto(const kv::Transaction& transaction, const kv::SlotClaim* slot);
// kInvalidArgument: a compare of a kind that there is not.
Result<kv::Transaction> FromProto(const proto::CommitRequest& request);
kv::SlotClaim FromProto(const proto::Slot& slot);

proto::CommitReply ToProto(const kv::SlottedAnswer& answer);
kv::SlottedAnswer FromProto(const proto::CommitReply& reply);

proto::WatchReply ToProto(const std::vector<kv::KvEvent>& events, uint64_t revision);
std::vector<kv::KvEvent> EventsOf(proto::WatchReply& reply);  // takes the bytes out of it

}  // namespace cairnfs::kvnet
