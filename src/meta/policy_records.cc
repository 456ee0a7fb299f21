#include "meta/policy_records.h"

#include "base/coding.h"
#include "meta/records.h"

namespace cairnfs::meta {
namespace {

constexpr char kPolicyLetter = 'A';
constexpr char kAppliedSuffix = 'r';
constexpr char kReportLetter = 'S';
constexpr uint8_t kAppliedVersion = 1;

}  // namespace

std::string AppliedRecord::Encode() const {
  Encoder encoder;
  encoder.U8(kAppliedVersion).U64(revision).Time(at).Time(next).U32(looks_in_vain);
  return encoder.LengthPrefixed(host).Take();
}

Result<AppliedRecord> AppliedRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  AppliedRecord record;
  record.revision = decoder.U64();
  record.at = decoder.Time();
  record.next = decoder.Time();
  record.looks_in_vain = decoder.U32();
  record.host = decoder.LengthPrefixed();
  if (decoder.Finished() && version == kAppliedVersion) return record;
  return MakeError(ErrorCode::kCorrupt, "the record of how a policy was applied does not decode");
}

std::string PoliciesPrefix() { return {kPolicyLetter}; }
std::string PolicyKeyValue() { return {1}; }

std::string PolicyKey(InodeId directory) {
  return Encoder().Text(PoliciesPrefix()).BigEndianU64(directory.value).Take();
}

std::string AppliedKey(InodeId directory) { return PolicyKey(directory) + kAppliedSuffix; }

std::string AppliedReportKey(InodeId directory) {
  return Encoder().Text({&kReportLetter, 1}).BigEndianU64(directory.value).Take();
}

std::optional<InodeId> InodeOfPolicyKey(std::string_view key) { return InodeOfKey(key, PoliciesPrefix()); }

std::optional<InodeId> InodeOfAppliedKey(std::string_view key) {
  if (!key.ends_with(kAppliedSuffix)) return std::nullopt;
  const auto directory = InodeOfPolicyKey(key.substr(0, key.size() - 1));
  return directory && key == AppliedKey(*directory) ? directory : std::nullopt;
}

void DropPolicy(InodeId directory, kv::Transaction& transaction) {
  transaction.Delete(PolicyKey(directory)).Delete(AppliedKey(directory)).Delete(AppliedReportKey(directory));
}

Status EndPolicy(const Context& context, kv::KvStore& store, InodeId directory, kv::Transaction& transaction) {
  transaction.Delete(AppliedKey(directory)).Delete(AppliedReportKey(directory));
  return TouchPolicy(context, store, directory, transaction);
}

Status TouchPolicy(const Context& context, kv::KvStore& store, InodeId directory, kv::Transaction& transaction) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, store.Get(context, PolicyKey(directory)));
  if (entry) transaction.Put(PolicyKey(directory), PolicyKeyValue());
  return {};
}

}  // namespace cairnfs::meta
