#include "retention/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "retention/glob.h"
#include "retention/step_pattern.h"
#include "retention/values.h"

namespace cairnfs::retention {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kRuleSecondsMax = int64_t{1} << 40;
constexpr size_t kMetricNameBytesMax = 200;

Error Wrong(std::string message) { return MakeError(ErrorCode::kInvalidArgument, std::move(message)); }

Status CheckCount(std::string_view what, uint64_t count) {
  if (count >= 1 && count <= kCountMax) return {};
  return Wrong(fmt::format("{} is to be a whole number from 1 to 2^63 - 1, not {}", what, count));
}

Status CheckBest(const std::vector<BestRule>& rules) {
  if (rules.size() > kBestRulesMax) return Wrong(fmt::format("keep_best has at most {} rules", kBestRulesMax));
  for (const BestRule& rule : rules) {
    if (rule.metric.empty() || rule.metric.size() > kMetricNameBytesMax) {
      return Wrong(fmt::format("the name of a metric has 1 to {} bytes", kMetricNameBytesMax));
    }
    CAIRNFS_RETURN_IF_ERROR(CheckCount("the count of keep_best", rule.count));
  }
  return {};
}

// No way out of the checkpoint.
bool IsFileName(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name.find('/') == name.npos &&
         name.find('\0') == name.npos;
}

Result<uint64_t> CountOf(const std::string& key, const ordered_json& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  return Wrong(fmt::format("{} of a policy is to be a whole number from 1 on, not {}", key, value.dump()));
}

Result<std::string> TextOf(const std::string& key, const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  return Wrong(fmt::format("{} of a policy is to be a text, not {}", key, value.dump()));
}

Result<std::vector<std::string>> TextsOf(const std::string& key, const ordered_json& value) {
  std::vector<std::string> texts;
  for (const ordered_json& one : value) {
    CAIRNFS_ASSIGN_OR_RETURN(std::string text, TextOf("each of " + key, one));
    texts.push_back(std::move(text));
  }
  return texts;
}

Result<BestRule> BestRuleOf(const ordered_json& value) {
  const bool has_keys = value.is_object() && value.size() == 3 && value.contains("metric") &&
                        value.contains("better") && value.contains("count");
  const bool is_sound = has_keys && value["metric"].is_string() && value["count"].is_number_unsigned() &&
                        (value["better"] == "min" || value["better"] == "max");
  if (!is_sound) {
    return Wrong(
        "a rule of keep_best is to have the keys metric (a text), better (\"min\" or \"max\") and count (a "
        "whole number), not " +
        value.dump());
  }
  return BestRule{.metric = value["metric"].get<std::string>(),
                  .better = value["better"] == "min" ? Better::kMin : Better::kMax,
                  .count = value["count"].get<uint64_t>()};
}

Result<AbandonedRule> AbandonedRuleOf(const ordered_json& value) {
  const bool has_keys =
      value.is_object() && value.size() == 2 && value.contains("pattern") && value.contains("unwritten_seconds");
  if (!has_keys || !value["pattern"].is_string()) {
    return Wrong(
        "a rule of abandoned is to have the keys pattern (a text) and unwritten_seconds (a whole number), not " +
        value.dump());
  }
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seconds, CountOf("unwritten_seconds", value["unwritten_seconds"]));
  return AbandonedRule{.pattern = value["pattern"].get<std::string>(),
                       .unwritten_for = std::chrono::seconds(std::min(seconds, uint64_t{kCountMax}))};
}

Status TakeKey(const std::string& key, const ordered_json& value, Policy& policy) {
  if (key == "keep_last") {
    CAIRNFS_ASSIGN_OR_RETURN(policy.keep_last, CountOf(key, value));
  } else if (key == "keep_every") {
    CAIRNFS_ASSIGN_OR_RETURN(policy.keep_every, CountOf(key, value));
  } else if (key == "keep_for_seconds") {
    CAIRNFS_ASSIGN_OR_RETURN(const uint64_t seconds, CountOf(key, value));
    policy.keep_for = std::chrono::seconds(std::min(seconds, uint64_t{kCountMax}));
  } else if (key == "match") {
    CAIRNFS_ASSIGN_OR_RETURN(policy.match, TextOf(key, value));
  } else if (key == "metrics_file") {
    CAIRNFS_ASSIGN_OR_RETURN(policy.metrics_file, TextOf(key, value));
  } else if (key == "keep_inside" && value.is_array() && value.size() <= kGlobsMax) {
    CAIRNFS_ASSIGN_OR_RETURN(policy.keep_inside, TextsOf(key, value));
  } else if (key == "abandoned" && value.is_array() && value.size() <= kGlobsMax) {
    for (const ordered_json& one : value) {
      CAIRNFS_ASSIGN_OR_RETURN(AbandonedRule rule, AbandonedRuleOf(one));
      policy.abandoned.push_back(std::move(rule));
    }
  } else if (key == "keep_without_metric" && value.is_boolean()) {
    policy.keep_without_metric = value.get<bool>();
  } else if (key == "keep_best" && value.is_array() && value.size() <= kBestRulesMax) {
    for (const ordered_json& one : value) {
      CAIRNFS_ASSIGN_OR_RETURN(BestRule rule, BestRuleOf(one));
      policy.keep_best.push_back(std::move(rule));
    }
  } else {
    return Wrong(
        fmt::format("a policy has no key {} with the value {}; it has keep_last, keep_every, keep_best (at most "
                    "{} rules), keep_for_seconds, keep_without_metric (true or false), match, metrics_file, "
                    "keep_inside (at most {} patterns) and abandoned (at most {} rules)",
                    key, value.dump(), kBestRulesMax, kGlobsMax, kGlobsMax));
  }
  return {};
}

}  // namespace

Status CheckAbandoned(const std::vector<AbandonedRule>& rules) {
  if (rules.size() > kGlobsMax) return Wrong(fmt::format("abandoned has at most {} rules", kGlobsMax));
  for (const AbandonedRule& rule : rules) {
    const auto glob = Glob::Parse(rule.pattern);
    if (!glob.ok()) return glob.error().WithContext("abandoned");
    if (rule.unwritten_for.count() >= 1 && rule.unwritten_for.count() <= kRuleSecondsMax) continue;
    return Wrong(
        fmt::format("the time of abandoned is to be at least a second and at most {} s, as in '*.tmp*:24h', not {} s",
                    kRuleSecondsMax, rule.unwritten_for.count()));
  }
  return {};
}

Status CheckPolicy(const Policy& policy) {
  if (!policy.HasRules()) {
    return Wrong("a policy says what stays: by one or more of keep-last, keep-every, keep-best and keep-for");
  }
  if (policy.keep_last) CAIRNFS_RETURN_IF_ERROR(CheckCount("keep-last", *policy.keep_last));
  if (policy.keep_every) CAIRNFS_RETURN_IF_ERROR(CheckCount("keep-every", *policy.keep_every));
  CAIRNFS_RETURN_IF_ERROR(CheckBest(policy.keep_best));
  if (policy.keep_for && (policy.keep_for->count() < 1 || policy.keep_for->count() > kRuleSecondsMax)) {
    return Wrong(
        fmt::format("keep-for is to be a time of at least a second, as 30d, not {} s", policy.keep_for->count()));
  }
  if (policy.keep_without_metric && policy.keep_best.empty()) {
    return Wrong("keep-without-metric is for keep-best, which says what the metric is");
  }
  if (!IsFileName(policy.metrics_file)) {
    return Wrong("the file of metrics is to be the name of a file right in the checkpoint, as metrics.json");
  }
  const auto inside = ParseGlobs(policy.keep_inside);
  if (!inside.ok()) return inside.error().WithContext("keep-inside");
  CAIRNFS_RETURN_IF_ERROR(CheckAbandoned(policy.abandoned));
  const auto pattern = StepPattern::Parse(policy.match);
  return pattern.ok() ? Status() : Status(pattern.error());
}

std::string PolicyText(const Policy& policy) {
  ordered_json json = ordered_json::object();
  if (policy.keep_last) json["keep_last"] = *policy.keep_last;
  if (policy.keep_every) json["keep_every"] = *policy.keep_every;
  for (const BestRule& rule : policy.keep_best) {
    json["keep_best"].push_back(
        {{"metric", rule.metric}, {"better", rule.better == Better::kMin ? "min" : "max"}, {"count", rule.count}});
  }
  if (policy.keep_for) json["keep_for_seconds"] = static_cast<uint64_t>(policy.keep_for->count());
  if (policy.keep_without_metric) json["keep_without_metric"] = true;
  if (!policy.match.empty()) json["match"] = policy.match;
  if (policy.metrics_file != Policy().metrics_file) json["metrics_file"] = policy.metrics_file;
  if (!policy.keep_inside.empty()) json["keep_inside"] = policy.keep_inside;
  for (const AbandonedRule& rule : policy.abandoned) {
    json["abandoned"].push_back({{"pattern", rule.pattern}, {"unwritten_seconds", rule.unwritten_for.count()}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Result<Policy> ParsePolicy(std::string_view text) {
  if (text.size() > kPolicyBytesMax) return Wrong(fmt::format("a policy has at most {} bytes", kPolicyBytesMax));
  constexpr int kLevelsMax = 3;  // the rules of keep_best
  if (!IsShallowJson(text, kLevelsMax)) return Wrong("a policy has no values that lie as deep as this");
  std::vector<std::set<std::string>> keys;  // of the objects that lie in each other
  std::optional<std::string> twice;
  const auto note = [&](int, ordered_json::parse_event_t event, const ordered_json& value) {
    if (event == ordered_json::parse_event_t::object_start) keys.emplace_back();
    if (event == ordered_json::parse_event_t::object_end) keys.pop_back();
    if (event == ordered_json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  const auto json = ordered_json::parse(text, note, false);
  if (!json.is_object()) return Wrong("a policy is to be an object in JSON, as {\"keep_last\":3}");
  if (twice) return Wrong(fmt::format("an object of a policy has each key once, and not {} twice", *twice));
  Policy policy;
  for (const auto& [key, value] : json.items()) CAIRNFS_RETURN_IF_ERROR(TakeKey(key, value, policy));
  CAIRNFS_RETURN_IF_ERROR(CheckPolicy(policy));
  return policy;
}

Result<uint64_t> ParseCount(std::string_view what, std::string_view text) {
  uint64_t count = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool is_number = code == std::errc{} && end == text.data() + text.size();
  if (is_number && CheckCount(what, count).ok()) return count;
  return Wrong(fmt::format("{} is to be a whole number from 1 to 2^63 - 1, not '{}'", what, text));
}

Result<BestRule> ParseBestRule(std::string_view text) {
  const size_t last = text.rfind(':');
  const size_t before = last == text.npos || last == 0 ? text.npos : text.rfind(':', last - 1);
  const std::string_view better = before == text.npos ? "" : text.substr(before + 1, last - before - 1);
  if (better != "min" && better != "max") {
    return Wrong(fmt::format("keep-best is to be METRIC:min:N or METRIC:max:N, as val_loss:min:2, not '{}'", text));
  }
  BestRule rule{.metric = std::string(text.substr(0, before)), .better = better == "min" ? Better::kMin : Better::kMax};
  CAIRNFS_ASSIGN_OR_RETURN(rule.count, ParseCount("the count of keep-best", text.substr(last + 1)));
  CAIRNFS_RETURN_IF_ERROR(CheckBest({rule}));
  return rule;
}

std::string BestRuleText(const BestRule& rule) {
  return fmt::format("the {} with the {} {}", rule.count, rule.better == Better::kMin ? "lowest" : "highest",
                     rule.metric);
}

}  // namespace cairnfs::retention
