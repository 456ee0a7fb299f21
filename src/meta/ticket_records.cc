#include "meta/ticket_records.h"

#include <cassert>

#include "base/coding.h"
#include "base/hex.h"
#include "base/printable.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kTicketVersion = 1;
constexpr std::string_view kPrefix = "WT";
constexpr char kClaimSuffix = 'c';
constexpr size_t kTicketBytes = sizeof(TicketId);

}  // namespace

std::string TicketRecord::Encode() const {
  assert(groups.size() <= kGroupsMax);
  Encoder encoder;
  encoder.U8(kTicketVersion).U8(static_cast<uint8_t>(state)).Time(taken).Time(ended).U32(uid).U32(gid);
  encoder.Varint(groups.size());
  for (const uint32_t group : groups) encoder.U32(group);
  encoder.U64(directory.value).U64(from_parent.value).U64(to_parent.value);
  return encoder.LengthPrefixed(from_name).LengthPrefixed(to_name).LengthPrefixed(reason).Take();
}

Result<TicketRecord> TicketRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8(), state = decoder.U8();
  TicketRecord record;
  record.taken = decoder.Time();
  record.ended = decoder.Time();
  record.uid = decoder.U32();
  record.gid = decoder.U32();
  const uint64_t group_count = decoder.Varint();
  for (uint64_t i = 0; i < group_count && i < kGroupsMax && decoder.ok(); ++i) record.groups.push_back(decoder.U32());
  record.directory.value = decoder.U64();
  record.from_parent.value = decoder.U64();
  record.to_parent.value = decoder.U64();
  record.from_name = decoder.LengthPrefixed();
  record.to_name = decoder.LengthPrefixed();
  record.reason = decoder.LengthPrefixed();
  if (!decoder.Finished() || version != kTicketVersion || state > static_cast<uint8_t>(State::kFailed) ||
      group_count > kGroupsMax) {
    return MakeError(ErrorCode::kCorrupt, "the record of a ticket does not decode");
  }
  record.state = static_cast<State>(state);
  return record;
}

std::string TicketsPrefix() { return std::string(kPrefix); }
std::string TicketKey(TicketId id) { return Encoder().Text(kPrefix).BigEndianU64(id).Take(); }
std::string TicketClaimKey(TicketId id) { return TicketKey(id) + kClaimSuffix; }

std::optional<TicketId> TicketOfKey(std::string_view key) {
  if (!key.starts_with(kPrefix) || key.size() != kPrefix.size() + kTicketBytes) return std::nullopt;
  return Decoder(key.substr(kPrefix.size())).BigEndianU64();
}

std::optional<TicketId> TicketOfClaimKey(std::string_view key) {
  if (key.empty() || key.back() != kClaimSuffix) return std::nullopt;
  return TicketOfKey(key.substr(0, key.size() - 1));
}

std::string BytesLackKey() { return "WL"; }

std::string TicketText(TicketId id) { return ToHex(Encoder().BigEndianU64(id).Take()); }

Result<TicketId> ParseTicket(std::string_view text) {
  const auto bytes = FromHex(text);
  const TicketId id = bytes && bytes->size() == kTicketBytes ? Decoder(*bytes).BigEndianU64() : 0;
  if (id != 0) return id;
  return InvalidArgument("\"" + Printable(text) +
                         "\" is no ticket: one has 16 hexadecimal digits, as cairnfs commit --async prints it");
}

}  // namespace cairnfs::meta
