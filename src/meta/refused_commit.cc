#include "meta/refused_commit.h"

#include <algorithm>
#include <cassert>

#include "base/coding.h"

namespace cairnfs::meta {
namespace {

constexpr char kLetter = 'F';
constexpr uint8_t kVersion = 2;
constexpr uint8_t kVersionOfLines = 1;  // its time is in the key, where the directory is now; its causes are lines
constexpr uint64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr size_t kCausesNamedMax = 5;  // in an error's message
constexpr size_t kWhyBytesMax = 512;

std::vector<RefusalCause> CausesOf(std::string_view lines) {
  std::vector<RefusalCause> causes;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    causes.push_back({.why = std::string(line)});
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
  }
  return causes;
}

}  // namespace

std::string RefusalCause::Sentence() const {
  std::string text;
  if (!file.empty()) text += "'" + file + "': ";
  if (!host.empty()) text += "host " + host + ": ";
  return text + why;
}

std::string RefusedCommit::JoinCauses() const {
  std::string text;
  const size_t named = std::min(causes.size(), kCausesNamedMax);
  for (size_t i = 0; i < named; ++i) text += (i > 0 ? "; " : "") + causes[i].Sentence();
  const uint64_t more = causes.size() - named + left_out;
  return more == 0 ? text : text + "; and " + std::to_string(more) + " more";
}

void RefusedCommit::Shorten() {
  if (directory.size() > kDirectoryBytesMax) {
    directory = "..." + directory.substr(directory.size() - kDirectoryBytesMax + 3);
  }
  size_t count = 0, bytes = 0;
  for (; count < causes.size() && count < kCausesMax; ++count) {
    RefusalCause& cause = causes[count];
    cause.why.resize(std::min(cause.why.size(), kWhyBytesMax));
    bytes += cause.file.size() + cause.host.size() + cause.why.size();
    if (bytes > kCausesBytesMax) break;
  }
  left_out += causes.size() - count;
  causes.resize(count);
}

std::string RefusedCommit::Encode() const {
  assert(causes.size() <= kCausesMax);
  Encoder encoder;
  encoder.U8(kVersion).Time(at).U32(uid).LengthPrefixed(host).LengthPrefixed(directory).U64(left_out);
  encoder.Varint(causes.size());
  for (const RefusalCause& cause : causes) {
    encoder.LengthPrefixed(cause.file).LengthPrefixed(cause.host).LengthPrefixed(cause.why);
  }
  return encoder.Take();
}

Result<RefusedCommit> RefusedCommit::Decode(std::string_view key, std::string_view value) {
  Decoder name(key), decoder(value);
  const char letter = static_cast<char>(name.U8());
  const uint64_t number = name.BigEndianU64();
  const uint8_t version = decoder.U8();
  RefusedCommit refused;
  if (version == kVersionOfLines) {
    refused.at = {static_cast<int64_t>(number / kNanosecondsPerSecond),
                  static_cast<uint32_t>(number % kNanosecondsPerSecond)};
    refused.host = decoder.LengthPrefixed();
    refused.directory = decoder.LengthPrefixed();
    refused.causes = CausesOf(decoder.LengthPrefixed());
  } else {
    refused.source = InodeId{number};
    refused.at = decoder.Time();
    refused.uid = decoder.U32();
    refused.host = decoder.LengthPrefixed();
    refused.directory = decoder.LengthPrefixed();
    refused.left_out = decoder.U64();
    const uint64_t count = decoder.Varint();
    for (uint64_t i = 0; i < count && i < kCausesMax && decoder.ok(); ++i) {
      RefusalCause cause;
      cause.file = decoder.LengthPrefixed();
      cause.host = decoder.LengthPrefixed();
      cause.why = decoder.LengthPrefixed();
      refused.causes.push_back(std::move(cause));
    }
  }
  const bool is_known = version == kVersion || version == kVersionOfLines;
  if (!name.ok() || letter != kLetter || !decoder.Finished() || !is_known) {
    return MakeError(ErrorCode::kCorrupt, "the record of a refused commit does not decode");
  }
  return refused;
}

std::string RefusalsPrefix() { return {kLetter}; }

std::string RefusalsPrefix(InodeId directory) {
  return Encoder().Text(RefusalsPrefix()).BigEndianU64(directory.value).Take();
}

std::string RefusalKey(InodeId directory, std::string_view node) {
  return Encoder().Text(RefusalsPrefix(directory)).Text(node).Take();
}

}  // namespace cairnfs::meta
