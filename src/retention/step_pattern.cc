#include "retention/step_pattern.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <charconv>
#include <limits>
#include <utility>

namespace cairnfs::retention {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr int64_t kMatchMemoryBytes = 1 << 20;

Result<uint64_t> ParseStep(std::string_view name, std::string_view digits) {
  uint64_t step = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool is_number = code == std::errc{} && end == digits.data() + digits.size() &&
                         step <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (is_number) return step;
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("the step of '{}' is to be a whole number below 2^63, not '{}'", name, digits));
}

}  // namespace

struct StepPattern::Expression {
  explicit Expression(const std::string& pattern, const re2::RE2::Options& options) : re2(pattern, options) {}
  re2::RE2 re2;
};

StepPattern::StepPattern(std::unique_ptr<Expression> expression) : expression_(std::move(expression)) {}
StepPattern::~StepPattern() = default;
StepPattern::StepPattern(StepPattern&&) noexcept = default;

Result<StepPattern> StepPattern::Parse(const std::string& pattern) {
  if (pattern.empty()) return StepPattern(nullptr);
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(kMatchMemoryBytes);
  options.set_encoding(re2::RE2::Options::EncodingLatin1);  // names are bytes
  auto expression = std::make_unique<Expression>(pattern, options);
  if (!expression->re2.ok()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the pattern '{}' is no regular expression: {}", pattern, expression->re2.error()));
  }
  const int groups = expression->re2.NumberOfCapturingGroups();
  if (groups != 1) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the pattern '{}' has {} groups; it is to have one, which finds the step, as in "
                                 "'step-(\\d+)'; (?:...) groups without finding",
                                 pattern, groups));
  }
  return StepPattern(std::move(expression));
}

Result<std::optional<uint64_t>> StepPattern::StepOf(std::string_view name) const {
  std::string_view digits;
  if (expression_ == nullptr) {
    const size_t last = name.find_last_of(kDigits);
    if (last == std::string_view::npos) return std::optional<uint64_t>();
    const size_t before = name.find_last_not_of(kDigits, last);
    const size_t first = before == std::string_view::npos ? 0 : before + 1;
    digits = name.substr(first, last + 1 - first);
  } else {
    re2::StringPiece group;
    if (!re2::RE2::FullMatch(re2::StringPiece(name.data(), name.size()), expression_->re2, &group)) {
      return std::optional<uint64_t>();
    }
    digits = std::string_view(group.data(), group.size());
  }
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t step, ParseStep(name, digits));
  return std::optional(step);
}

}  // namespace cairnfs::retention
