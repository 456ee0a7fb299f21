#include "cluster/epochs.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/coding.h"
#include "cluster/held_dumps.h"
#include "cluster/membership.h"
#include "cluster/records.h"

namespace cairnfs::cluster {
namespace {

constexpr uint8_t kEpochRecordVersion = 1;
constexpr std::string_view kAnnouncementKey = "WA";
constexpr std::string_view kPartPrefix = "WN";
constexpr size_t kErrorBytesMax = 500;

std::string PartKey(const NodeId& id) { return std::string(kPartPrefix) + std::string(id.AsKey()); }

Result<EpochState::Announcement> DecodeAnnouncement(const kv::KvEntry& entry) {
  Decoder decoder(entry.value);
  const uint8_t version = decoder.U8();
  const EpochState::Announcement announced{decoder.U64(), entry.revision};
  if (decoder.Finished() && version == kEpochRecordVersion) return announced;
  return MakeError(ErrorCode::kCorrupt, "the announcement of a collection does not decode");
}

Result<EpochState::Epoch> DecodeEpoch(const kv::KvEntry& entry) {
  Decoder decoder(entry.value);
  const uint8_t version = decoder.U8();
  const EpochState::Epoch epoch{entry.revision, decoder.U64()};
  if (decoder.Finished() && version == kEpochRecordVersion) return epoch;
  return MakeError(ErrorCode::kCorrupt, "the epoch of a collection does not decode");
}

Status TakeEntry(const kv::KvEntry& entry, EpochState& state) {
  if (entry.key == kAnnouncementKey) {
    CAIRNFS_ASSIGN_OR_RETURN(state.announced, DecodeAnnouncement(entry));
  } else if (entry.key == Epochs::EpochKey()) {
    CAIRNFS_ASSIGN_OR_RETURN(state.epoch, DecodeEpoch(entry));
  } else if (entry.key == Epochs::HoldKey()) {
    state.hold = entry.value;
  } else if (entry.key.starts_with(kPartPrefix)) {
    const auto id = NodeId::FromKey(std::string_view(entry.key).substr(kPartPrefix.size()));
    auto part = CollectionPart::Decode(entry.value);
    if (id && part.ok()) state.parts[*id] = *std::move(part);  // one that does not decode counts as not told
  }
  return {};
}

uint64_t RevisionOf(const std::optional<EpochState::Announcement>& announced) {
  return announced ? announced->revision : 0;
}

}  // namespace

std::string CollectionPart::Encode() const {
  return Encoder()
      .U8(kEpochRecordVersion)
      .U8(static_cast<uint8_t>(phase))
      .U64(announcement)
      .U64(chunks_freed)
      .U64(bytes_freed)
      .U64(ended_seconds)
      .LengthPrefixed(std::string_view(error).substr(0, kErrorBytesMax))
      .Take();
}

Result<CollectionPart> CollectionPart::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  const uint8_t phase = decoder.U8();
  CollectionPart part;
  part.phase = static_cast<Phase>(phase);
  part.announcement = decoder.U64();
  part.chunks_freed = decoder.U64();
  part.bytes_freed = decoder.U64();
  part.ended_seconds = decoder.U64();
  part.error = std::string(decoder.LengthPrefixed());
  const bool is_phase =
      phase >= static_cast<uint8_t>(Phase::kRecording) && phase <= static_cast<uint8_t>(Phase::kFailed);
  if (decoder.Finished() && version == kEpochRecordVersion && is_phase) return part;
  return MakeError(ErrorCode::kCorrupt, "a node's part in a collection does not decode");
}

std::optional<NodeId> EpochState::FindUnless(const std::function<bool(const CollectionPart&)>& fulfils) const {
  for (const NodeId& node : sessions) {
    const auto part = parts.find(node);
    const bool has_part = part != parts.end() && part->second.announcement == RevisionOf(announced);
    if (!has_part || !fulfils(part->second)) return node;
  }
  return std::nullopt;
}

bool EpochState::IsOver() const {
  return !announced || !FindUnless([](const CollectionPart& part) { return part.has_ended(); });
}

bool EpochState::IsSwept() const {
  return std::any_of(parts.begin(), parts.end(), [this](const auto& part) {
    return part.second.phase == CollectionPart::Phase::kBegun && part.second.announcement == RevisionOf(announced);
  });
}

const std::string& Epochs::EpochKey() {
  static const std::string key = "WE";
  return key;
}

const std::string& Epochs::HoldKey() {
  static const std::string key = "WH";
  return key;
}

Result<EpochState> Epochs::Read(const Context& context) {
  const std::string sessions = KeyOf(MemberKey::kSession, {}).substr(0, 2);
  const std::array<kv::KvSpan, 2> spans = {
      kv::KvSpan{std::string(kAnnouncementKey), kv::PrefixEnd(std::string(kPartPrefix))},
      kv::KvSpan{sessions, kv::PrefixEnd(sessions)}};
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvSnapshot snapshot, store_.Read(context, spans));
  EpochState state;
  state.revision = snapshot.revision;
  for (const kv::KvEntry& entry : snapshot.ranges[0].entries) CAIRNFS_RETURN_IF_ERROR(TakeEntry(entry, state));
  for (const kv::KvEntry& entry : snapshot.ranges[1].entries) {
    if (const auto key = ParseMemberKey(entry.key)) state.sessions.insert(key->id);
  }
  return state;
}

Result<EpochState> Epochs::ReadAnnounced(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange range, store_.Range(context, "W", kPartPrefix, 0));
  EpochState state;
  state.revision = range.revision;
  for (const kv::KvEntry& entry : range.entries) CAIRNFS_RETURN_IF_ERROR(TakeEntry(entry, state));
  return state;
}

Result<uint64_t> Epochs::ReadEpoch(const Context& context) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, store_.Get(context, EpochKey()));
  return entry ? entry->revision : uint64_t{0};
}

Status Epochs::Announce(const Context& context, const EpochState& seen) {
  const auto now = static_cast<uint64_t>(Clock::WallTime().seconds) * 1'000'000;
  const uint64_t number = std::max(now, seen.announced ? seen.announced->number + 1 : 1);
  kv::Transaction transaction;
  transaction.IfRevision(std::string(kAnnouncementKey), RevisionOf(seen.announced))
      .IfAbsent(HoldKey())
      .IfAbsent(HoldingKey())
      .Put(std::string(kAnnouncementKey), Encoder().U8(kEpochRecordVersion).U64(number).Take());
  const auto committed = store_.Commit(context, transaction);
  return committed.ok() ? Status() : Status(committed.error());
}

Status Epochs::Begin(const Context& context, const EpochState& seen) {
  kv::Transaction transaction;
  transaction.IfRevision(std::string(kAnnouncementKey), RevisionOf(seen.announced))
      .IfRevision(EpochKey(), seen.epoch ? seen.epoch->revision : 0)
      .Put(EpochKey(), Encoder().U8(kEpochRecordVersion).U64(RevisionOf(seen.announced)).Take());
  const auto committed = store_.Commit(context, transaction);
  return committed.ok() ? Status() : Status(committed.error());
}

Result<uint64_t> Epochs::Tell(const Context& context, const CollectionPart& part) {
  CAIRNFS_ASSIGN_OR_RETURN(const Membership::Session session, membership_.session());
  kv::Transaction transaction;
  transaction.writes.push_back({PartKey(membership_.self()), part.Encode(), session.lease});
  return store_.Commit(context, transaction);
}

Status Epochs::Hold(const Context& context, const std::string& why) {
  const auto committed = store_.Commit(context, kv::Transaction().Put(HoldKey(), why));
  return committed.ok() ? Status() : Status(committed.error());
}

Status Epochs::Release(const Context& context) {
  const auto committed = store_.Commit(context, kv::Transaction().Delete(HoldKey()));
  return committed.ok() ? Status() : Status(committed.error());
}

}  // namespace cairnfs::cluster
