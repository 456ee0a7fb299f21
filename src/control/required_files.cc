#include "control/required_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/printable.h"

namespace cairnfs::control {
namespace {

constexpr std::string_view kOf = "-of-";
constexpr uint64_t kPartsMax = 1'000'000;  // names that say more are taken for names without numbers

constexpr size_t kNumbersMax = 10'000;  // strangers make names, too

bool IsDigit(char byte) { return byte >= '0' && byte <= '9'; }

// nullopt: they are no number, or too large a one.
std::optional<uint64_t> NumberOf(std::string_view digits) {
  uint64_t number = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = !digits.empty() && code == std::errc{} && end == digits.data() + digits.size();
  return is_number && number <= kPartsMax ? std::optional(number) : std::nullopt;
}

struct Part {
  uint64_t number, count;
};

// By the last NUMBER-of-NUMBER in the name.
std::optional<Part> PartOf(std::string_view name) {
  for (size_t at = name.rfind(kOf); at != std::string_view::npos && at > 0; at = name.rfind(kOf, at - 1)) {
    size_t begin = at, end = at + kOf.size();
    while (begin > 0 && IsDigit(name[begin - 1])) --begin;
    while (end < name.size() && IsDigit(name[end])) ++end;
    const auto number = NumberOf(name.substr(begin, at - begin));
    const auto count = NumberOf(name.substr(at + kOf.size(), end - at - kOf.size()));
    if (number && count && *count > 0) return Part{*number, *count};
  }
  return std::nullopt;
}

}  // namespace

Result<RequiredFiles> RequiredFiles::Parse(const std::vector<std::string>& requirements) {
  if (requirements.size() > retention::kGlobsMax) {
    return InvalidArgument(
        fmt::format("--require may be given {} times, not {}", retention::kGlobsMax, requirements.size()));
  }
  RequiredFiles required;
  for (const std::string& text : requirements) {
    std::string pattern = text;
    std::optional<uint64_t> count;
    const size_t sign = text.rfind('=');
    const bool has_count = sign != std::string::npos && sign + 1 < text.size() &&
                           std::all_of(text.begin() + static_cast<ptrdiff_t>(sign) + 1, text.end(), IsDigit);
    if (has_count) {
      pattern = text.substr(0, sign);
      count = NumberOf(std::string_view(text).substr(sign + 1));
      if (!count || *count == 0) {
        return InvalidArgument(
            fmt::format("--require '{}': the count lies between 1 and {}; for a name that ends so, "
                        "write [=] for the sign",
                        Printable(text), kPartsMax));
      }
    }
    auto glob = retention::Glob::Parse(pattern);
    if (!glob.ok()) return glob.error().WithContext("--require");
    required.requirements_.push_back({.text = text, .glob = *std::move(glob), .count = count});
  }
  return required;
}

void RequiredFiles::Add(std::string_view name) {
  for (Requirement& requirement : requirements_) {
    if (!requirement.glob.Matches(name)) continue;
    ++requirement.found;
    if (requirement.count) continue;
    const auto part = PartOf(name);
    if (!part || numbers_ > kNumbersMax) continue;
    if (requirement.parts[part->count].insert(part->number).second) ++numbers_;
  }
}

std::string RequiredFiles::Missing() const {
  if (numbers_ > kNumbersMax) {
    return fmt::format("the names that match have more than {} numbers: say =COUNT", kNumbersMax);
  }
  std::string missing;
  const auto add = [&](const Requirement& requirement, uint64_t found, uint64_t wanted) {
    if (found >= wanted) return;
    missing += fmt::format("{}of {} files '{}' {} there", missing.empty() ? "" : ", ", wanted,
                           Printable(requirement.text), found == 0 ? "none is" : fmt::format("{} are", found));
  };
  for (const Requirement& requirement : requirements_) {
    add(requirement, requirement.found, requirement.count.value_or(1));
    for (const auto& [count, numbers] : requirement.parts) add(requirement, numbers.size(), count);
  }
  return missing;
}

}  // namespace cairnfs::control
