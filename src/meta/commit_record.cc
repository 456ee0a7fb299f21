#include "meta/commit_record.h"

#include <algorithm>
#include <cassert>

#include "base/coding.h"
#include "meta/records.h"
#include "meta/refused_commit.h"

namespace cairnfs::meta {
namespace {

constexpr uint8_t kCommitVersion = 1;
constexpr char kCommitLetter = 'J';
constexpr uint8_t kHasTotals = 1;

Error BadCommit(std::string_view record) {
  return MakeError(ErrorCode::kCorrupt, std::string(record) + " does not decode");
}

// A time of zero stands for none: nothing was written in 1970.
Encoder& AddTime(Encoder& encoder, const std::optional<Timestamp>& time) {
  return encoder.Time(time.value_or(Timestamp{}));
}

std::optional<Timestamp> TakeTime(Decoder& decoder) {
  const Timestamp time = decoder.Time();
  return time == Timestamp{} ? std::nullopt : std::optional(time);
}

}  // namespace

std::string CommitRecord::Encode() const {
  assert(node.size() == kNodeIdBytes);
  return Encoder().U8(kCommitVersion).Time(at).U32(uid).Text(node).LengthPrefixed(host).LengthPrefixed(command).Take();
}

Result<CommitRecord> CommitRecord::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  CommitRecord record;
  record.at = decoder.Time();
  record.uid = decoder.U32();
  record.node = decoder.Text(kNodeIdBytes);
  record.host = decoder.LengthPrefixed();
  record.command = decoder.LengthPrefixed();
  if (!decoder.Finished() || version != kCommitVersion) return BadCommit("the record of a commit");
  return record;
}

void CommitPart::Add(const CommitPart& other) {
  if (other.first_write) first_write = std::min(first_write.value_or(*other.first_write), *other.first_write);
  written_bytes += other.written_bytes;
  new_bytes += other.new_bytes;
  write_ns += other.write_ns;
  wait_ns += other.wait_ns;
  // All have their copies once the last host's have.
  copied = copied && other.copied ? std::optional(std::max(*copied, *other.copied)) : std::nullopt;
  if (other.totals) totals = other.totals;
  if (other.durable) durable = other.durable;
}

std::string CommitPart::Encode() const {
  Encoder encoder;
  encoder.U8(kCommitVersion).Time(commit_at);
  AddTime(encoder, first_write).U64(written_bytes).U64(new_bytes).U64(write_ns).U64(wait_ns);
  AddTime(encoder, copied);
  AddTime(encoder, durable).U8(totals ? kHasTotals : 0);
  if (totals) encoder.U64(totals->files).U64(totals->bytes);
  return encoder.Take();
}

Result<CommitPart> CommitPart::Decode(std::string_view value) {
  Decoder decoder(value);
  const uint8_t version = decoder.U8();
  CommitPart part;
  part.commit_at = decoder.Time();
  part.first_write = TakeTime(decoder);
  part.written_bytes = decoder.U64();
  part.new_bytes = decoder.U64();
  part.write_ns = decoder.U64();
  part.wait_ns = decoder.U64();
  part.copied = TakeTime(decoder);
  part.durable = TakeTime(decoder);
  const uint8_t has_totals = decoder.U8();
  if (has_totals == kHasTotals) part.totals = Totals{.files = decoder.U64(), .bytes = decoder.U64()};
  if (!decoder.Finished() || version != kCommitVersion || has_totals > kHasTotals) {
    return BadCommit("a host's part of a commit");
  }
  return part;
}

std::string CommitsPrefix() { return {kCommitLetter}; }
bool IsOfCommitOrRefusal(std::string_view key) {
  return key.starts_with(kCommitLetter) || key.starts_with(RefusalsPrefix());
}

std::string CommitKey(InodeId directory) {
  return Encoder().Text(CommitsPrefix()).BigEndianU64(directory.value).Take();
}

std::string CommitPartKey(InodeId directory, std::string_view node) {
  return Encoder().Text(CommitKey(directory)).Text(node).Take();
}

std::optional<InodeId> InodeOfCommitKey(std::string_view key) { return InodeOfKey(key, CommitsPrefix()); }

std::optional<InodeId> InodeOfCommitPartKey(std::string_view key, std::string_view node) {
  if (!key.ends_with(node)) return std::nullopt;
  return InodeOfCommitKey(key.substr(0, key.size() - node.size()));
}

}  // namespace cairnfs::meta
