#include "meta/trash_record.h"

#include <sys/stat.h>

#include "base/coding.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kTrashVersion = 1;
constexpr uint64_t kTrashNsPerSecond = 1'000'000'000;

}  // namespace

std::string TrashRecord::Encode() const {
  return Encoder()
      .U8(kTrashVersion)
      .Time(expires)
      .U32(type)
      .U32(owner)
      .U32(parent_owner)
      .U32(removed_by)
      .U8(by_retention ? 1 : 0)
      .U64(files)
      .U64(bytes)
      .U64(parent.value)
      .LengthPrefixed(name)
      .Take();
}

Result<TrashRecord> TrashRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  TrashRecord record;
  record.expires = decoder.Time();
  record.type = decoder.U32();
  record.owner = decoder.U32();
  record.parent_owner = decoder.U32();
  record.removed_by = decoder.U32();
  const uint8_t by_retention = decoder.U8();
  record.by_retention = by_retention == 1;
  record.files = decoder.U64();
  record.bytes = decoder.U64();
  record.parent.value = decoder.U64();
  record.name = decoder.LengthPrefixed();
  const bool is_sound = decoder.Finished() && version == kTrashVersion && by_retention <= 1 &&
                        (record.type & ~uint32_t{S_IFMT}) == 0 && record.parent.value != 0 && !record.name.empty();
  if (is_sound) return record;
  return MakeError(ErrorCode::kCorrupt, "a record of the trash does not decode");
}

std::string TrashPrefix() { return {kTrashLetter}; }

std::string TrashKey(const TrashKeyParts& parts) {
  return Encoder().Text(TrashPrefix()).BigEndianU64(parts.removed_at_ns).BigEndianU64(parts.inode.value).Take();
}

std::string DoomedKey(InodeId directory) { return TrashKey({0, directory}); }

std::optional<TrashKeyParts> DecodeTrashKey(std::string_view key) {
  Decoder decoder(key);
  const char letter = static_cast<char>(decoder.U8());
  TrashKeyParts parts;
  parts.removed_at_ns = decoder.BigEndianU64();
  parts.inode.value = decoder.BigEndianU64();
  if (!decoder.Finished() || letter != kTrashLetter || parts.inode.value == 0) return std::nullopt;
  return parts;
}

Timestamp TimeOfTrashKey(const TrashKeyParts& parts) {
  return {.seconds = static_cast<int64_t>(parts.removed_at_ns / kTrashNsPerSecond),
          .nanoseconds = static_cast<uint32_t>(parts.removed_at_ns % kTrashNsPerSecond)};
}

}  // namespace cairnfs::meta
