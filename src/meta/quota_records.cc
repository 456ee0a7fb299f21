#include "meta/quota_records.h"

#include "base/coding.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kQuotaVersion = 1;

std::string KeyOf(std::string_view kind, InodeId inode) {
  return Encoder().Text(kind).BigEndianU64(inode.value).Take();
}

std::optional<InodeId> InodeOf(std::string_view kind, std::string_view key) {
  if (!key.starts_with(kind)) return std::nullopt;
  Decoder decoder(key.substr(kind.size()));
  const InodeId inode{decoder.BigEndianU64()};
  return decoder.Finished() ? std::optional(inode) : std::nullopt;
}

constexpr std::string_view kQuota = "WUq", kShare = "WUh", kUsage = "WUu";

QuotaBytes BytesOf(Decoder& decoder) {
  const uint64_t logical = decoder.U64();
  return {logical, decoder.U64()};
}

Error Corrupt(std::string_view what) { return MakeError(ErrorCode::kCorrupt, std::string(what) + " does not decode"); }

}  // namespace

std::string QuotaRecord::Encode() const {
  return Encoder().U8(kQuotaVersion).U8(static_cast<uint8_t>(state)).U64(limit.logical).U64(limit.unique).Take();
}

Result<QuotaRecord> QuotaRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8(), state = decoder.U8();
  QuotaRecord record;
  record.limit = BytesOf(decoder);
  const bool is_state = state <= static_cast<uint8_t>(State::kTaking);
  if (!decoder.Finished() || version != kQuotaVersion || !is_state) return Corrupt("the record of a quota");
  record.state = static_cast<State>(state);
  return record;
}

std::string QuotaShare::Encode() const {
  return Encoder().U8(kQuotaVersion).U64(bytes.logical).U64(bytes.unique).Take();
}

Result<QuotaShare> QuotaShare::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  QuotaShare share;
  share.bytes = BytesOf(decoder);
  if (decoder.Finished() && version == kQuotaVersion) return share;
  return Corrupt("a host's share of a quota");
}

std::string UsageRecord::Encode() const {
  return Encoder().U8(kQuotaVersion).U64(quota.value).U64(bytes.logical).U64(bytes.unique).Take();
}

Result<UsageRecord> UsageRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  UsageRecord record;
  record.quota.value = decoder.U64();
  record.bytes = BytesOf(decoder);
  if (decoder.Finished() && version == kQuotaVersion && record.quota.value != 0) return record;
  return Corrupt("what a file counts for a quota");
}

std::string QuotasPrefix() { return "WU"; }
std::string QuotaKey(InodeId directory) { return KeyOf(kQuota, directory); }
std::string QuotaSharePrefix(InodeId directory) { return KeyOf(kShare, directory); }
std::string QuotaShareKey(InodeId directory, std::string_view node) { return QuotaSharePrefix(directory).append(node); }
std::string UsageKey(InodeId inode) { return KeyOf(kUsage, inode); }

std::optional<InodeId> InodeOfQuotaKey(std::string_view key) { return InodeOf(kQuota, key); }
std::optional<InodeId> InodeOfUsageKey(std::string_view key) { return InodeOf(kUsage, key); }

std::optional<QuotaShareKeyParts> DecodeQuotaShareKey(std::string_view key) {
  constexpr size_t kPrefixBytes = kShare.size() + sizeof(uint64_t);
  if (key.size() != kPrefixBytes + kNodeIdBytes) return std::nullopt;
  const auto directory = InodeOf(kShare, key.substr(0, kPrefixBytes));
  if (!directory) return std::nullopt;
  return QuotaShareKeyParts{*directory, std::string(key.substr(kPrefixBytes))};
}

std::optional<kv::KvWrite> UsageOf(InodeId inode, const FileRecord& record) {
  if (record.quota.value == 0) return std::nullopt;
  return kv::KvWrite{UsageKey(inode),
                     UsageRecord{record.quota, {record.allocated_bytes, record.unique_bytes}}.Encode()};
}

}  // namespace cairnfs::meta
