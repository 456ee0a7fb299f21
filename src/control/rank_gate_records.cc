#include "control/rank_gate_records.h"

#include "base/coding.h"

namespace cairnfs::control {
namespace {

constexpr uint8_t kVersion = 1;
constexpr char kStateKey = '0', kElectedKey = '1', kRankKey = '2';
constexpr char kNumbered = '#', kNamed = '=';
constexpr size_t kPrefixBytes = 1 + 8;  // B and the inode number
constexpr size_t kNumberedKeyBytes = kPrefixBytes + 2 + 8;

std::string WithSuffix(InodeId directory, char suffix) {
  std::string key = GatePrefix(directory);
  key.push_back(suffix);
  return key;
}

Error Damaged(std::string_view what) {
  return MakeError(ErrorCode::kCorrupt, "a record of a rank gate does not decode: " + std::string(what));
}

}  // namespace

std::string GatePrefix(InodeId directory) { return Encoder().Text(kGatesPrefix).BigEndianU64(directory.value).Take(); }
std::string GateStateKey(InodeId directory) { return WithSuffix(directory, kStateKey); }
std::string GateElectedKey(InodeId directory) { return WithSuffix(directory, kElectedKey); }
std::string GateRanksPrefix(InodeId directory) { return WithSuffix(directory, kRankKey); }

std::string GateRankKey(InodeId directory, const std::optional<unsigned>& rank, std::string_view id) {
  std::string key = GateRanksPrefix(directory);
  key.push_back(rank ? kNumbered : kNamed);
  return key + (rank ? Encoder().BigEndianU64(*rank).Take() : std::string(id));
}

std::optional<unsigned> RankOfKey(std::string_view key) {
  if (key.size() != kNumberedKeyBytes || key[kPrefixBytes + 1] != kNumbered) return std::nullopt;
  return static_cast<unsigned>(Decoder(key.substr(kPrefixBytes + 2)).BigEndianU64());
}

std::optional<InodeId> DirectoryOfGateKey(std::string_view key) {
  if (key.size() <= kPrefixBytes || !key.starts_with(kGatesPrefix)) return std::nullopt;
  return InodeId{Decoder(key.substr(kGatesPrefix.size())).BigEndianU64()};
}

std::string GateState::Encode() const {
  return Encoder()
      .U8(kVersion)
      .U32(generation)
      .U32(ranks)
      .U8(static_cast<uint8_t>(phase))
      .Time(changed)
      .U64(final_parent.value)
      .LengthPrefixed(final_name)
      .LengthPrefixed(message)
      .Take();
}

Result<GateState> DecodeGateState(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  GateState state;
  state.generation = decoder.U32();
  state.ranks = decoder.U32();
  const uint8_t phase = decoder.U8();
  state.changed = decoder.Time();
  state.final_parent.value = decoder.U64();
  state.final_name = decoder.LengthPrefixed();
  state.message = decoder.LengthPrefixed();
  if (!decoder.Finished() || version != kVersion || phase > static_cast<uint8_t>(GatePhase::kFailed)) {
    return Damaged("state");
  }
  state.phase = static_cast<GatePhase>(phase);
  return state;
}

std::string GateVisitor::Encode() const {
  return Encoder()
      .U8(kVersion)
      .U32(generation)
      .U8(waits ? 1 : 0)
      .LengthPrefixed(host)
      .U64(incarnation)
      .U64(call)
      .Take();
}

Result<GateVisitor> DecodeGateVisitor(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  GateVisitor visitor;
  visitor.generation = decoder.U32();
  visitor.waits = decoder.U8() != 0;
  visitor.host = decoder.LengthPrefixed();
  visitor.incarnation = decoder.U64();
  visitor.call = decoder.U64();
  if (!decoder.Finished() || version != kVersion) return Damaged("rank");
  return visitor;
}

}  // namespace cairnfs::control
