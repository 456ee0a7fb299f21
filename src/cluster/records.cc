#include "cluster/records.h"

#include <bit>
#include <cmath>

#include "base/coding.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kRecordVersion = 1;
constexpr char kMembers = 'M';

Error Corrupt(std::string_view record, std::string_view why) {
  return MakeError(ErrorCode::kCorrupt, std::string(record) + " does not decode: " + std::string(why));
}

// The error of a record whose fields have all been read; nullopt: none.
std::optional<Error> FramingError(std::string_view record, uint8_t version, const Decoder& decoder) {
  if (!decoder.Finished()) return Corrupt(record, "it is cut short or too long");
  if (version != kRecordVersion) return Corrupt(record, "unknown record version");
  return std::nullopt;
}

constexpr std::string_view kNoWeight = "its weight is not a number from 0 up";
bool IsWeight(double weight) { return std::isfinite(weight) && weight >= 0; }

}  // namespace

std::string NodeRecord::Encode() const {
  return Encoder()
      .U8(kRecordVersion)
      .U64(std::bit_cast<uint64_t>(weight))
      .LengthPrefixed(name)
      .LengthPrefixed(address)
      .LengthPrefixed(domain)
      .Take();
}

Result<NodeRecord> NodeRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  NodeRecord record;
  const uint8_t version = decoder.U8();
  record.weight = std::bit_cast<double>(decoder.U64());
  record.name = decoder.LengthPrefixed();
  record.address = decoder.LengthPrefixed();
  record.domain = decoder.LengthPrefixed();
  if (auto error = FramingError("node record", version, decoder)) return *error;
  if (!IsWeight(record.weight)) return Corrupt("node record", kNoWeight);
  return record;
}

std::string SessionRecord::Encode() const {
  return Encoder().U8(kRecordVersion).U64(incarnation).U64(lease).LengthPrefixed(place).Take();
}

Result<SessionRecord> SessionRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  SessionRecord record;
  const uint8_t version = decoder.U8();
  record.incarnation = decoder.U64();
  record.lease = decoder.U64();
  record.place = decoder.LengthPrefixed();
  if (auto error = FramingError("session record", version, decoder)) return *error;
  return record;
}

std::string OutRecord::Encode() const { return Encoder().U8(kRecordVersion).Time(since).Text(found_by.AsKey()).Take(); }

Result<OutRecord> OutRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  OutRecord record;
  const uint8_t version = decoder.U8();
  record.since = decoder.Time();
  const auto found_by = NodeId::FromKey(decoder.Text(NodeId::kBytes));
  if (auto error = FramingError("out record", version, decoder)) return *error;
  record.found_by = found_by.value_or(NodeId());
  return record;
}

Error WasRemoved(const NodeId& id) {
  return MakeError(ErrorCode::kPermission,
                   "node " + id.ToHex() +
                       " was removed from the cluster, which does not count on its chunks any more: to begin as a new "
                       "node, give an empty data directory; to come back with these chunks, join again with cairnfs "
                       "cluster join --force (where nodes have certificates, either way with a new token)");
}

std::string DrainRecord::Encode() const { return Encoder().U8(kRecordVersion).U8(is_empty ? 1 : 0).Take(); }

Result<DrainRecord> DrainRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  const uint8_t is_empty = decoder.U8();
  if (auto error = FramingError("drain record", version, decoder)) return *error;
  if (is_empty > 1) return Corrupt("drain record", "it is neither empty nor not");
  return DrainRecord{is_empty == 1};
}

std::string PlaceRecord::Encode() const {
  return Encoder()
      .U8(kRecordVersion)
      .U8(takes_name ? 1 : 0)
      .Text(of.AsKey())
      .U64(std::bit_cast<uint64_t>(weight))
      .LengthPrefixed(name)
      .LengthPrefixed(domain)
      .Take();
}

Result<PlaceRecord> PlaceRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  PlaceRecord record;
  const uint8_t version = decoder.U8();
  const uint8_t takes_name = decoder.U8();
  const auto of = NodeId::FromKey(decoder.Text(NodeId::kBytes));
  record.weight = std::bit_cast<double>(decoder.U64());
  record.name = decoder.LengthPrefixed();
  record.domain = decoder.LengthPrefixed();
  if (auto error = FramingError("place record", version, decoder)) return *error;
  if (takes_name > 1) return Corrupt("place record", "it neither takes the name nor leaves it");
  if (!IsWeight(record.weight)) return Corrupt("place record", kNoWeight);
  record.takes_name = takes_name == 1;
  record.of = of.value_or(NodeId());
  return record;
}

Result<std::vector<NodeInfo>> ReadJoined(const Context& context, kv::KvStore& store) {
  const std::string prefix = KeyOf(MemberKey::kJoined, {}).substr(0, 2);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, store.Range(context, prefix, kv::PrefixEnd(prefix), 0));
  std::vector<NodeInfo> joined;
  for (const kv::KvEntry& entry : range.entries) {
    const auto parsed = ParseMemberKey(entry.key);
    const auto record = NodeRecord::Decode(entry.value);
    if (!parsed || !record.ok()) continue;
    NodeInfo node;
    node.id = parsed->id;
    node.name = record->name;
    node.address = record->address;
    node.weight = 0;
    joined.push_back(std::move(node));
  }
  return joined;
}

std::string KeyOf(MemberKey kind, const NodeId& id) {
  return Encoder().U8(kMembers).U8(static_cast<uint8_t>(kind)).Text(id.AsKey()).Take();
}

std::optional<ParsedMemberKey> ParseMemberKey(std::string_view key) {
  Decoder decoder(key);
  const char members = static_cast<char>(decoder.U8());
  const MemberKey kind{static_cast<char>(decoder.U8())};
  const auto id = NodeId::FromKey(decoder.Text(NodeId::kBytes));
  if (!decoder.Finished() || members != kMembers || !id) return std::nullopt;
  switch (kind) {
    case MemberKey::kNode:
    case MemberKey::kSession:
    case MemberKey::kFull:
    case MemberKey::kOut:
    case MemberKey::kRemoved:
    case MemberKey::kDrain:
    case MemberKey::kPlace:
    case MemberKey::kJoined: return ParsedMemberKey{kind, *id};
  }
  return std::nullopt;
}

}  // namespace cairnfs::cluster
