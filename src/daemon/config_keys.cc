#include "daemon/config_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "daemon/cluster_config.h"
#include "daemon/network.h"
#include "daemon/size_text.h"

namespace cairnfs::daemon {
namespace {

using Kind = ConfigKey::Kind;

constexpr uint64_t kDayMs = 24 * 3600 * uint64_t{1000};
constexpr uint64_t kCopiesMax = 16;
constexpr double kWeightMax = 1e6;
constexpr std::string_view kAutomatic = "chosen automatically";

template <typename Texts>
std::string Quoted(const Texts& texts) {
  std::string list;
  for (const auto& text : texts) list += fmt::format("{}\"{}\"", list.empty() ? "" : ", ", text);
  return list;
}

std::string Describe(const ConfigValue& value) {
  struct Visitor {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(int64_t number) const { return fmt::format("{}", number); }
    std::string operator()(double number) const { return fmt::format("{}", number); }
    std::string operator()(const std::string& text) const { return "\"" + text + "\""; }
    std::string operator()(const std::vector<std::string>& words) const { return "[" + Quoted(words) + "]"; }
    std::string operator()(const OtherValue& other) const { return other.kind; }
  };
  return std::visit(Visitor{}, value);
}

std::string FormatNumber(Kind kind, uint64_t value) {
  if (kind == Kind::kSize) return FormatSizeExact(value);
  if (kind == Kind::kDuration) return FormatDurationMs(value);
  return fmt::format("{}", value);
}

Status StoreNumber(const ConfigKey& key, uint64_t number, Config& config) {
  bool in_range = number >= key.value_min && number <= key.value_max;
  if (!in_range && !(number == 0 && !key.zero_means.empty())) {
    const std::string or_zero = key.zero_means.empty() ? "" : fmt::format(", or be 0 ({})", key.zero_means);
    return InvalidArgument(fmt::format("must lie between {} and {}{}, not {}", FormatNumber(key.kind, key.value_min),
                                       FormatNumber(key.kind, key.value_max), or_zero, FormatNumber(key.kind, number)));
  }
  config.*std::get<uint64_t Config::*>(key.target) = number;
  return {};
}

Status StoreQuantity(const ConfigKey& key, const ConfigValue& value, Config& config) {
  if (const auto* number = std::get_if<int64_t>(&value)) {
    if (key.kind == Kind::kDuration && *number != 0) {
      return InvalidArgument(fmt::format("needs a unit: ms, s, min, h or d, for example \"{}s\"", *number));
    }
    if (*number < 0) return InvalidArgument(fmt::format("must not be negative, but is {}", *number));
    return StoreNumber(key, static_cast<uint64_t>(*number), config);
  }
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr || key.kind == Kind::kCount) {
    const char* right = key.kind == Kind::kSize       ? "a size such as \"256MiB\""
                        : key.kind == Kind::kDuration ? "a duration such as \"5s\""
                                                      : "a whole number";
    return InvalidArgument(fmt::format("must be {}, not {}", right, Describe(value)));
  }
  CAIRNFS_ASSIGN_OR_RETURN(uint64_t number, key.kind == Kind::kSize ? ParseSize(*text) : ParseDurationMs(*text));
  return StoreNumber(key, number, config);
}

Status CheckAddress(const std::string& text) {
  if (ParseHostPort(text).ok()) return {};
  return InvalidArgument(fmt::format(
      "must be ADDRESS:PORT, for example \"127.0.0.1:9464\" (an IPv6 address in brackets), not \"{}\"", text));
}

Status StoreString(const ConfigKey& key, const ConfigValue& value, Config& config) {
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return InvalidArgument(fmt::format("must be a text in quotes, not {}", Describe(value)));
  if (text->find('\0') != std::string::npos) return InvalidArgument("must not contain a NUL byte");
  if (key.kind == Kind::kPath && text->empty()) return InvalidArgument("must be a path, not an empty text");
  if (key.kind == Kind::kAddress && !text->empty()) CAIRNFS_RETURN_IF_ERROR(CheckAddress(*text));
  if (key.kind == Kind::kStore && !text->empty()) CAIRNFS_RETURN_IF_ERROR(CheckMetadata(*text));
  if (key.kind == Kind::kChoice && std::find(key.choices.begin(), key.choices.end(), *text) == key.choices.end()) {
    return InvalidArgument(fmt::format("must be one of {}, not \"{}\"", Quoted(key.choices), *text));
  }
  config.*std::get<std::string Config::*>(key.target) = *text;
  return {};
}

Status StoreWeight(const ConfigKey& key, const ConfigValue& value, Config& config) {
  double weight = 0;
  if (const auto* whole = std::get_if<int64_t>(&value)) {
    weight = static_cast<double>(*whole);
  } else if (const auto* number = std::get_if<double>(&value)) {
    weight = *number;
  } else {
    return InvalidArgument(fmt::format("must be a number such as 1.5, not {}", Describe(value)));
  }
  if (weight != kWeightOfCapacity && !(weight >= 0 && weight <= kWeightMax)) {
    return InvalidArgument(fmt::format(
        "must lie between 0 (gets no new chunks) and {}, or be -1 (the capacity of the disk in TiB), not {}",
        kWeightMax, weight));
  }
  config.*std::get<double Config::*>(key.target) = weight;
  return {};
}

Status StoreNetworks(const ConfigKey& key, const ConfigValue& value, Config& config) {
  std::vector<std::string> networks;
  if (const auto* text = std::get_if<std::string>(&value)) {
    if (!text->empty()) networks.push_back(*text);
  } else if (const auto* words = std::get_if<std::vector<std::string>>(&value)) {
    networks = *words;
  } else {
    return InvalidArgument(
        fmt::format("must be a network such as \"10.0.0.0/8\", or a list of them, not {}", Describe(value)));
  }
  for (const std::string& network : networks) {
    if (auto parsed = ParseNetwork(network); !parsed.ok()) return parsed.error();
  }
  config.*std::get<std::vector<std::string> Config::*>(key.target) = std::move(networks);
  return {};
}

const std::vector<ConfigKey>& Table() {
  static const std::vector<ConfigKey> table = {
      {"data", Kind::kPath, &Config::data},
      {"mount_point", Kind::kPath, &Config::mount_point},
      {"pool_size", Kind::kSize, &Config::pool_size, 32 * kMiB, kTiB, kAutomatic},
      {"touch_pool", Kind::kFlag, &Config::touch_pool},
      {"cache_size", Kind::kSize, &Config::cache_size, kMiB, kTiB, kAutomatic},
      {"segment_size", Kind::kSize, &Config::segment_size, 4 * kMiB, 4 * kGiB, kAutomatic},
      {"free_segments_max", Kind::kSize, &Config::free_segments_max, kMiB, 1024 * kTiB, kAutomatic},
      {"reserve", Kind::kSize, &Config::reserve, kMiB, 1024 * kTiB, kAutomatic},
      {"metadata_cache_size", Kind::kSize, &Config::metadata_cache_size, kMiB, kTiB},
      {"read_ahead", Kind::kSize, &Config::read_ahead, 0, 16 * kGiB},
      {"mmap_read_ahead", Kind::kSize, &Config::mmap_read_ahead, 4 * kKiB, kGiB},
      {"passthrough", Kind::kFlag, &Config::passthrough},
      {"worker_threads", Kind::kCount, &Config::worker_threads, 1, 1024, kAutomatic},
      {"waiting_threads", Kind::kCount, &Config::waiting_threads, 1, 4096},
      {"verify_threads", Kind::kCount, &Config::verify_threads, 1, 1024, kAutomatic},
      {"receive_threads", Kind::kCount, &Config::receive_threads, 1, 64},
      {"max_background", Kind::kCount, &Config::max_background, 2, 65535},
      {"flush_interval", Kind::kDuration, &Config::flush_interval_ms, 10, 4000},
      {"commit_wait_max", Kind::kDuration, &Config::commit_wait_max_ms, 1000, kDayMs},
      {"stop_deadline", Kind::kDuration, &Config::stop_deadline_ms, 1000, kDayMs, "as long as it takes"},
      {"rename", Kind::kChoice, &Config::rename, 0, 0, "", {"ordered", "durable"}},
      {"trash", Kind::kDuration, &Config::trash_ms, 1000, 365 * kDayMs, "nothing goes to the trash"},
      {"collect_after", Kind::kSize, &Config::collect_after, 1, 1024 * kTiB, "the default"},
      {"collect_rate", Kind::kSize, &Config::collect_rate, kMiB, kTiB, "unbounded"},
      {"collect_delay", Kind::kDuration, &Config::collect_delay_ms, 0, kDayMs},
      {"allow_other", Kind::kFlag, &Config::allow_other},
      {"read_only", Kind::kFlag, &Config::read_only},
      {"guard", Kind::kFlag, &Config::guard},
      {"mount_options", Kind::kWords, &Config::mount_options},
      {"direct_io", Kind::kFlag, &Config::direct_io},
      {"io_uring", Kind::kFlag, &Config::io_uring},
      {"dedup", Kind::kChoice, &Config::dedup, 0, 0, "", {"mount", "owner", ""}},
      {"log_level", Kind::kChoice, &Config::log_level, 0, 0, "", {"trace", "debug", "info", "warning", "error", "off"}},
      {"log_file", Kind::kText, &Config::log_file},
      {"metrics_address", Kind::kAddress, &Config::metrics_address},
      {"metadata", Kind::kStore, &Config::metadata},
      {"serve_metadata", Kind::kAddress, &Config::serve_metadata},
      {"listen", Kind::kAddress, &Config::listen},
      {"advertise", Kind::kAddress, &Config::advertise},
      {"serve_join", Kind::kAddress, &Config::serve_join},
      {"tls_ca", Kind::kText, &Config::tls_ca},
      {"tls_certificate", Kind::kText, &Config::tls_certificate},
      {"tls_key", Kind::kText, &Config::tls_key},
      {"trusted_network", Kind::kNetworks, &Config::trusted_network},
      {"trust_public_network", Kind::kFlag, &Config::trust_public_network},
      {"node_name", Kind::kText, &Config::node_name},
      {"failure_domain", Kind::kText, &Config::failure_domain},
      {"weight", Kind::kWeight, &Config::weight},
      {"copies", Kind::kCount, &Config::copies, 1, kCopiesMax},
      {"min_replicas", Kind::kCount, &Config::min_replicas, 1, kCopiesMax, "as many as copies"},
      {"durability", Kind::kChoice, &Config::durability, 0, 0, "", {"replicated", "local"}},
      {"lease", Kind::kDuration, &Config::lease_ms, 1000, 600'000},
      {"out_after", Kind::kDuration, &Config::out_after_ms, 1000, 30 * kDayMs},
      {"repair_rate", Kind::kSize, &Config::repair_rate, kMiB, kTiB},
      {"metadata_wait", Kind::kDuration, &Config::metadata_wait_ms, 1000, kDayMs},
  };
  return table;
}

}  // namespace

std::span<const ConfigKey> ConfigKeys() { return Table(); }

const ConfigKey* FindKey(std::string_view name) {
  for (const ConfigKey& key : Table()) {
    if (key.name == name) return &key;
  }
  return nullptr;
}

Status StoreValue(const ConfigKey& key, const ConfigValue& value, Config& config) {
  switch (key.kind) {
    case Kind::kSize:
    case Kind::kDuration:
    case Kind::kCount: return StoreQuantity(key, value, config);
    case Kind::kFlag: {
      const auto* flag = std::get_if<bool>(&value);
      if (flag == nullptr) return InvalidArgument(fmt::format("must be true or false, not {}", Describe(value)));
      config.*std::get<bool Config::*>(key.target) = *flag;
      return {};
    }
    case Kind::kWords: {
      const auto* words = std::get_if<std::vector<std::string>>(&value);
      if (words == nullptr) {
        return InvalidArgument(
            fmt::format("must be a list of texts such as [\"noexec\", \"noatime\"], not {}", Describe(value)));
      }
      config.*std::get<std::vector<std::string> Config::*>(key.target) = *words;
      return {};
    }
    case Kind::kWeight: return StoreWeight(key, value, config);
    case Kind::kNetworks: return StoreNetworks(key, value, config);
    case Kind::kPath:
    case Kind::kChoice:
    case Kind::kAddress:
    case Kind::kStore:
    case Kind::kText: return StoreString(key, value, config);
  }
  return {};
}

Status StoreText(const ConfigKey& key, std::string_view text, Config& config) {
  if (key.kind == Kind::kFlag) {
    if (text == "true" || text == "yes" || text == "1" || text.empty()) return StoreValue(key, true, config);
    if (text == "false" || text == "no" || text == "0") return StoreValue(key, false, config);
  }
  if (key.kind == Kind::kCount || key.kind == Kind::kSize || key.kind == Kind::kDuration) {
    int64_t number = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code == std::errc{} && end == text.data() + text.size()) return StoreValue(key, number, config);
  }
  if (key.kind == Kind::kWeight) {
    double number = 0;
    auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (code == std::errc{} && end == text.data() + text.size()) return StoreValue(key, number, config);
  }
  if (key.kind == Kind::kWords) return StoreValue(key, std::vector<std::string>{std::string(text)}, config);
  return StoreValue(key, std::string(text), config);
}

}  // namespace cairnfs::daemon
