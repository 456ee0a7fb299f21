#include "control/rank_gate_records.h"

#include "base/coding.h"

namespace cairnfs::control {
namespace {

constexpr uint8_t kVersion = 2;
// Of a state in which fewer ranks may do, or files are required: older programs take no part in such a commit.
constexpr uint8_t kVersionWithNeeds = 3;
constexpr char kStateKey = '3', kRankKey = '4';
constexpr char kNumbered = '#', kNamed = '=';
constexpr size_t kPrefixBytes = 1 + 8;  // B and the inode number

std::string KeyOf(InodeId directory, char kind) {
  std::string key = Encoder().Text(kGatesPrefix).BigEndianU64(directory.value).Take();
  key.push_back(kind);
  return key;
}

Error Damaged(std::string_view what) {
  return MakeError(ErrorCode::kCorrupt, "a record of a rank gate does not decode: " + std::string(what));
}

}  // namespace

std::string GateStateKey(InodeId directory) { return KeyOf(directory, kStateKey); }

std::optional<InodeId> DirectoryOfStateKey(std::string_view key) {
  if (key.size() != kPrefixBytes + 1 || !key.starts_with(kGatesPrefix) || key.back() != kStateKey) return std::nullopt;
  return InodeId{Decoder(key.substr(kGatesPrefix.size())).BigEndianU64()};
}

std::string GateRanksPrefix(InodeId directory, uint64_t try_id) {
  return KeyOf(directory, kRankKey) + Encoder().BigEndianU64(try_id).Take();
}

std::string GateRankName(const std::optional<unsigned>& rank, std::string_view id) {
  if (rank) return kNumbered + Encoder().BigEndianU64(*rank).Take();
  return kNamed + std::string(id);
}

std::optional<unsigned> NumberOfRank(std::string_view name) {
  if (name.size() != 1 + 8 || name.front() != kNumbered) return std::nullopt;
  return static_cast<unsigned>(Decoder(name.substr(1)).BigEndianU64());
}

std::string GateState::Encode() const {
  const bool has_needs = at_least != 0 || !required.empty();
  Encoder encoder;
  encoder.U8(has_needs ? kVersionWithNeeds : kVersion)
      .U64(try_id)
      .U32(ranks)
      .U8(static_cast<uint8_t>(phase))
      .U64(final_parent.value)
      .LengthPrefixed(final_name)
      .LengthPrefixed(renamer)
      .LengthPrefixed(message);
  if (has_needs) {
    encoder.U32(at_least).Varint(required.size());
    for (const std::string& requirement : required) encoder.LengthPrefixed(requirement);
  }
  return encoder.Take();
}

Result<GateState> DecodeGateState(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  GateState state;
  state.try_id = decoder.U64();
  state.ranks = decoder.U32();
  const uint8_t phase = decoder.U8();
  state.final_parent.value = decoder.U64();
  state.final_name = decoder.LengthPrefixed();
  state.renamer = decoder.LengthPrefixed();
  state.message = decoder.LengthPrefixed();
  if (version == kVersionWithNeeds) {
    state.at_least = decoder.U32();
    for (uint64_t left = decoder.Varint(); left > 0 && decoder.ok(); --left) {
      state.required.emplace_back(decoder.LengthPrefixed());
    }
  }
  const bool is_known = version == kVersion || version == kVersionWithNeeds;
  if (!decoder.Finished() || !is_known || phase > static_cast<uint8_t>(GatePhase::kFailed)) {
    return Damaged("state");
  }
  state.phase = static_cast<GatePhase>(phase);
  return state;
}

std::string GateRank::Encode() const { return Encoder().U8(kVersion).U64(call_id).LengthPrefixed(host).Take(); }

Result<GateRank> DecodeGateRank(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  GateRank rank;
  rank.call_id = decoder.U64();
  rank.host = decoder.LengthPrefixed();
  if (!decoder.Finished() || version != kVersion) return Damaged("rank");
  return rank;
}

}  // namespace cairnfs::control
