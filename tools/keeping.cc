#include "keeping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "cairnfs/cairnfs.h"
#include "retention/values.h"

namespace cairnfs::tools {
namespace {

using retention::Protection;

constexpr const char* kPinFile = "PINNED";
constexpr size_t kAttributeBytesMax = 64 * 1024;
constexpr off_t kMetricsBytesMax = 1 << 20;
constexpr int kLooksAtOpen = 10;
constexpr std::chrono::milliseconds kBetweenLooks{20};

void NoteUnknown(Protection& protection, const std::string& what, const Error& why) {
  if (protection.unknown.empty()) protection.unknown = fmt::format("{} cannot be told: {}", what, why.message);
}

// nullopt: it cannot be told, and `protection` says why.
std::optional<bool> HasOpen(const std::string& path, Protection& protection, std::string* silent) {
  const auto count = ReadAttribute(path, CAIRNFS_XATTR_OPEN_FILES);
  if (!count.ok() && errno == ETIMEDOUT) {
    protection.unknown = "whether it is open cannot be told: a host does not say what it has open";
    if (silent != nullptr) *silent = protection.unknown;
    return std::nullopt;
  }
  if (count.ok() && *count) return **count != "0";
  const bool is_refused = !count.ok() && count.error().code == ErrorCode::kPermission;
  protection.unknown = is_refused    ? "whether it is open is told to its owner and root alone"
                       : !count.ok() ? "whether it is open cannot be told: " + count.error().message
                                     : "whether it is open cannot be told: this daemon does not say";
  return std::nullopt;
}

// The object in the file; null: there is none.
Result<nlohmann::json> ReadMetricsFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 && errno == ENOENT) return nlohmann::json();
  if (file < 0) return ErrnoError(errno, "it cannot be opened");
  struct stat info = {};
  std::string text;
  Status status;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kMetricsBytesMax) {
    status = MakeError(ErrorCode::kInvalidArgument, "it is no regular file of at most 1 MiB");
  } else {
    text.resize(static_cast<size_t>(info.st_size));
    const ssize_t got = pread(file, text.data(), text.size(), 0);
    if (got < 0) status = ErrnoError(errno, "it cannot be read");
    text.resize(got < 0 ? 0 : static_cast<size_t>(got));
  }
  close(file);
  if (!status.ok()) return status.error();
  if (text.size() != static_cast<size_t>(info.st_size)) {
    return MakeError(ErrorCode::kInvalidArgument, "it changes while it is read");
  }
  constexpr int kLevelsMax = 64;
  auto json = retention::IsShallowJson(text, kLevelsMax)
                  ? nlohmann::json::parse(retention::WithoutNan(text), nullptr, false)
                  : nlohmann::json();
  if (json.is_object()) return json;
  return MakeError(ErrorCode::kInvalidArgument, "it is no object in JSON of at most 64 levels");
}

}  // namespace

nlohmann::ordered_json ProtectionJson(const Protection& protection) {
  nlohmann::ordered_json json;
  json["pinned"] = protection.pinned;
  json["sealed"] = protection.sealed;
  json["held_until"] = protection.held_until ? nlohmann::ordered_json(protection.held_until->seconds) : nullptr;
  return json;
}

Result<std::optional<std::string>> ReadAttribute(const std::string& path, const char* name) {
  std::string text(kAttributeBytesMax, '\0');
  const ssize_t size = lgetxattr(path.c_str(), name, text.data(), text.size());
  if (size < 0 && (errno == ENODATA || errno == ENOTSUP)) return std::optional<std::string>();
  if (size < 0) return ErrnoError(errno, fmt::format("cannot read {} of {}", name, path));
  text.resize(static_cast<size_t>(size));
  return std::optional(std::move(text));
}

Protection ReadProtection(const std::string& path) {
  Protection protection;
  const auto pin = ReadAttribute(path, CAIRNFS_XATTR_PINNED);
  if (!pin.ok()) NoteUnknown(protection, "whether it is pinned", pin.error());
  struct stat info = {};
  const bool has_file = lstat((path + "/" + kPinFile).c_str(), &info) == 0;
  if (!has_file && errno != ENOENT) NoteUnknown(protection, "whether it is pinned", ErrnoError(errno, kPinFile));
  protection.pinned = (pin.ok() && *pin) || has_file;
  const auto seal = ReadAttribute(path, CAIRNFS_XATTR_SEALED);
  if (!seal.ok()) NoteUnknown(protection, "whether it is sealed", seal.error());
  protection.sealed = seal.ok() && *seal && retention::IsSealed(**seal);
  if (seal.ok() && *seal == "sealing") protection.unknown = "it is being sealed";  // for now
  const auto held = ReadAttribute(path, CAIRNFS_XATTR_HELD_UNTIL);
  if (!held.ok()) NoteUnknown(protection, "whether it is held", held.error());
  if (!held.ok() || !*held) return protection;
  const auto until = retention::ParseHeldUntil(**held);
  if (until.ok()) protection.held_until = *until;
  if (!until.ok()) NoteUnknown(protection, "until when it is held", until.error());
  return protection;
}

// The release of a file follows its close.
Protection ReadProtectionAndOpen(const std::string& path, OwnOpens own_opens, std::string* silent) {
  Protection protection = ReadProtection(path);
  if (silent != nullptr && !silent->empty()) {
    protection.unknown = *silent;
    return protection;
  }
  for (int look = 1;; ++look) {
    const auto open = HasOpen(path, protection, silent);
    protection.open = open.value_or(false);
    if (!protection.open || own_opens == OwnOpens::kNone || look == kLooksAtOpen) return protection;
    Clock::SleepFor(kBetweenLooks);
  }
}

Metrics ReadMetrics(const std::string& path, const retention::Policy& policy) {
  Metrics metrics;
  std::optional<nlohmann::json> in_file;  // read when the first is asked for
  for (const retention::BestRule& rule : policy.keep_best) {
    const auto text = ReadAttribute(path, (CAIRNFS_XATTR_METRIC_PREFIX + rule.metric).c_str());
    if (!text.ok()) metrics.unknown = "its metrics cannot be told: " + text.error().message;
    if (text.ok() && *text) {
      const auto value = retention::ParseMetric(**text);
      if (value.ok()) metrics.values[rule.metric] = *value;
      if (!value.ok())
        metrics.notes.push_back(fmt::format("the metric {} of {}: {}", rule.metric, path, value.error().message));
      continue;
    }
    if (!in_file) {
      auto read = ReadMetricsFile(path + "/" + policy.metrics_file);
      in_file = nlohmann::json();
      if (read.ok()) {
        in_file = *std::move(read);
      } else {
        metrics.unknown = fmt::format("its metrics cannot be told: {}: {}", policy.metrics_file, read.error().message);
      }
    }
    const auto found = in_file->find(rule.metric);
    if (found == in_file->end()) continue;
    if (found->is_number() && std::isfinite(found->get<double>())) {
      metrics.values[rule.metric] = found->get<double>();
    } else {
      metrics.notes.push_back(fmt::format("{} in {}/{} is to be a finite number, not a {}: it counts as missing",
                                          rule.metric, path, policy.metrics_file, found->type_name()));
    }
  }
  return metrics;
}

}  // namespace cairnfs::tools
