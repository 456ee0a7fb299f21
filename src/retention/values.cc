#include "retention/values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <charconv>
#include <cmath>
#include <vector>

#include "cairnfs/cairnfs.h"
#include "retention/glob.h"
#include "retention/policy.h"

namespace cairnfs::retention {
namespace {

constexpr int64_t kSecondsMax = 253'402'300'799;  // the end of the year 9999
constexpr char kNameMark = '-';
constexpr int kNibble = 16;
constexpr size_t kNameBytesMax = 255;
constexpr std::string_view kMetricPrefix = CAIRNFS_XATTR_METRIC_PREFIX;

// The places of the letters that lie in no string of the JSON text.
struct OutsideStrings {
  explicit OutsideStrings(std::string_view text) {
    bool is_inside = false;
    for (size_t i = 0; i < text.size(); ++i) {
      if (is_inside && text[i] == '\\') {
        ++i;
      } else if (text[i] == '"') {
        is_inside = !is_inside;
      } else if (!is_inside) {
        places.push_back(i);
      }
    }
  }
  std::vector<size_t> places;
};

Error WrongValue(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

}  // namespace

// Prefix, letters, and for a name that is not too long "-" and two letters for each of its bytes.
bool IsGoingName(std::string_view name) {
  constexpr size_t kShort = kGoingPrefix.size() + kGoingLetters;
  const auto is_letter = [](char letter) { return letter >= 'a' && letter <= 'z'; };
  if (!name.starts_with(kGoingPrefix) || name.size() < kShort) return false;
  const std::string_view letters = name.substr(kGoingPrefix.size(), kGoingLetters), rest = name.substr(kShort);
  if (!std::all_of(letters.begin(), letters.end(), is_letter)) return false;
  if (rest.empty()) return true;
  return rest[0] == kNameMark && rest.size() > 1 && rest.size() % 2 == 1 &&
         std::all_of(rest.begin() + 1, rest.end(), is_letter);
}

std::string GoingName(std::string_view letters, std::string_view name) {
  assert(letters.size() == kGoingLetters);
  std::string going = std::string(kGoingPrefix) + std::string(letters);
  if (going.size() + 1 + 2 * name.size() > kNameBytesMax) return going;
  going += kNameMark;
  for (const char byte : name) {
    const auto value = static_cast<unsigned char>(byte);
    going += static_cast<char>('a' + value / kNibble);
    going += static_cast<char>('a' + value % kNibble);
  }
  return going;
}

std::optional<std::string> NameBeforeGoing(std::string_view going) {
  constexpr size_t kShort = kGoingPrefix.size() + kGoingLetters;
  if (!IsGoingName(going) || going.size() == kShort) return std::nullopt;
  const std::string_view letters = going.substr(kShort + 1);
  std::string name;
  for (size_t i = 0; i < letters.size(); i += 2) {
    const int high = letters[i] - 'a', low = letters[i + 1] - 'a';
    if (high >= kNibble || low >= kNibble) return std::nullopt;
    name += static_cast<char>(high * kNibble + low);
  }
  const bool is_name =
      name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  return is_name && !IsGoingName(name) ? std::optional(name) : std::nullopt;
}

std::string RemovalMarkText(const RemovalMark& mark) {
  std::string text = mark.going;
  for (const std::string& pattern : mark.keep_inside) text += "/" + pattern;
  return text;
}

Result<RemovalMark> ParseRemovalMark(std::string_view value) {
  RemovalMark mark{.going = std::string(value.substr(0, value.find('/')))};
  if (!IsGoingName(mark.going)) return WrongValue("its value is the name that it is removed by");
  for (size_t at = mark.going.size(); at < value.size() && mark.keep_inside.size() <= kGlobsMax;) {
    const size_t end = std::min(value.find('/', at + 1), value.size());
    mark.keep_inside.emplace_back(value.substr(at + 1, end - at - 1));
    at = end;
  }
  const auto globs = ParseGlobs(mark.keep_inside);
  if (!globs.ok()) return globs.error();
  if (mark.keep_inside.empty() || NameBeforeGoing(mark.going)) return mark;
  return WrongValue("something is to stay in it, and the name that it is removed by does not tell its own");
}

bool IsSealed(std::string_view value) { return value == "1" || value == "sealing" || value == "below"; }

bool IsMetric(std::string_view name) { return name.starts_with(kMetricPrefix) && name.size() > kMetricPrefix.size(); }

bool IsRetentionAttribute(std::string_view name) {
  return name == CAIRNFS_XATTR_RETAIN || name == CAIRNFS_XATTR_PINNED || name == CAIRNFS_XATTR_HELD_UNTIL ||
         name == CAIRNFS_XATTR_REMOVING || IsMetric(name);
}

Status CheckValue(std::string_view name, std::string_view value) {
  assert(IsRetentionAttribute(name));
  if (name == CAIRNFS_XATTR_PINNED && value != "1") return WrongValue("a pin has the value 1; its removal unpins");
  if (name == CAIRNFS_XATTR_REMOVING) {
    const auto mark = ParseRemovalMark(value);
    return mark.ok() ? Status() : Status(mark.error());
  }
  if (name == CAIRNFS_XATTR_RETAIN) {
    const auto policy = ParsePolicy(value);
    return policy.ok() ? Status() : Status(policy.error());
  }
  if (name == CAIRNFS_XATTR_HELD_UNTIL) {
    const auto until = ParseHeldUntil(value);
    return until.ok() ? Status() : Status(until.error());
  }
  if (!IsMetric(name)) return {};
  const auto metric = ParseMetric(value);
  return metric.ok() ? Status() : Status(metric.error());
}

bool IsShallowJson(std::string_view text, int levels) {
  int depth = 0;
  for (const OutsideStrings at(text); const size_t i : at.places) {
    if (text[i] == '[' || text[i] == '{') ++depth;
    if (text[i] == ']' || text[i] == '}') --depth;
    if (depth > levels) return false;
  }
  return true;
}

std::string WithoutNan(std::string_view text) {
  std::string result;
  size_t copied = 0;
  for (const OutsideStrings at(text); const size_t i : at.places) {
    if (i < copied) continue;
    for (const std::string_view word : {"NaN", "-Infinity", "Infinity"}) {
      if (!text.substr(i).starts_with(word)) continue;
      result.append(text.substr(copied, i - copied)).append("null");
      copied = i + word.size();
      break;
    }
  }
  return result.append(text.substr(copied));
}

Result<Timestamp> ParseHeldUntil(std::string_view value) {
  int64_t seconds = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), seconds);
  const bool is_time =
      code == std::errc{} && end == value.data() + value.size() && seconds >= 0 && seconds <= kSecondsMax;
  if (is_time) return Timestamp{.seconds = seconds, .nanoseconds = 0};
  return WrongValue("a hold is to end at a time in whole seconds since 1970, before the year 10000");
}

std::string HeldUntilText(const Timestamp& until) { return std::to_string(std::min(until.seconds, kSecondsMax)); }

Result<double> ParseMetric(std::string_view value) {
  double number = 0;
  const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (code == std::errc{} && end == value.data() + value.size() && std::isfinite(number)) return number;
  return WrongValue("a metric is to be a finite number, as 0.25");
}

}  // namespace cairnfs::retention
