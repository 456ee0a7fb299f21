#include "daemon/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <numeric>

#include "base/comma_list.h"
#include "base/machine_limits.h"
#include "daemon/config_keys.h"
#include "fuse/server.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

// The parser goes one call deeper with each dot of a key, and a file of any size could use up the stack.
constexpr size_t kConfigBytesMax = 32 * kKiB;

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

Error UnknownKey(std::string_view name) {
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("unknown key '{}'; the nearest valid key is '{}'", name, NearestKey(name)));
}

std::string KindOf(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "a list";
  if (node.is_number()) return "a number";
  return node.is_boolean() ? "true or false" : "a date or time";
}

ConfigValue ValueOf(const toml::node& node) {
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* number = node.as_integer()) return number->get();
  if (const auto* number = node.as_floating_point()) return number->get();
  if (const auto* text = node.as_string()) return text->get();
  const auto* array = node.as_array();
  if (array == nullptr) return OtherValue{KindOf(node)};
  std::vector<std::string> words;
  for (const toml::node& element : *array) {
    const auto* word = element.as_string();
    if (word == nullptr) return OtherValue{"a list with " + KindOf(element) + " in it"};
    words.push_back(word->get());
  }
  return words;
}

Status ApplyTable(const std::string& path, const toml::table& table, Config& config) {
  for (const auto& [name, node] : table) {
    std::string where = fmt::format("{}:{}", path, name.source().begin.line);
    const ConfigKey* key = FindKey(name.str());
    if (key == nullptr) {
      Error error = UnknownKey(name.str());
      if (node.is_table()) error.message += " (keys stand at the top level: there are no [sections])";
      return error.WithContext(where);
    }
    Status stored = StoreValue(*key, ValueOf(node), config);
    if (!stored.ok()) return stored.error().WithContext(fmt::format("{}: {}", where, key->name));
  }
  return {};
}

// "ro" among the words for the kernel means read_only: if only the kernel took the mount for read-only, the daemon
// would go on writing times of access. "rw" is the default.
void TakeReadOnlyWords(Config& config) {
  auto& words = config.mount_options;
  config.read_only |= std::find(words.begin(), words.end(), "ro") != words.end();
  std::erase_if(words, [](const std::string& word) { return word == "ro" || word == "rw"; });
}

// Only a regular file has an end that is sure to come.
Result<std::string> ReadSmallFile(const std::string& path) {
  const std::string failure = "cannot read the configuration " + path;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait for its writer
  if (fd < 0) return ErrnoError(errno, failure);
  std::string text(kConfigBytesMax + 1, '\0');
  struct stat info;
  const bool looked = fstat(fd, &info) == 0;
  const bool is_regular = looked && S_ISREG(info.st_mode);
  const ssize_t size = is_regular ? pread(fd, text.data(), text.size(), 0) : 0;
  const int error = errno;
  close(fd);
  if (!looked || size < 0) return ErrnoError(error, failure);
  if (!is_regular) return MakeError(ErrorCode::kInvalidArgument, failure + ": it is not a regular file");
  if (static_cast<size_t>(size) > kConfigBytesMax) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}: it is larger than {} KiB", failure, kConfigBytesMax / kKiB));
  }
  text.resize(static_cast<size_t>(size));
  return text;
}

}  // namespace

Status ReadConfigFile(const std::string& path, Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  try {
    toml::table table = toml::parse(text, path);
    CAIRNFS_RETURN_IF_ERROR(ApplyTable(path, table, config));
    TakeReadOnlyWords(config);
    return {};
  } catch (const toml::parse_error& error) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{}:{}: not valid TOML: {}", path, error.source().begin.line, error.description()));
  }
}

Status ApplyKey(std::string_view name, std::string_view value, Config& config) {
  const ConfigKey* key = FindKey(name);
  if (key == nullptr) return UnknownKey(name);
  if (value.empty() && key->kind != ConfigKey::Kind::kFlag) {
    return MakeError(ErrorCode::kInvalidArgument, fmt::format("{}: needs a value: {}=VALUE", name, name));
  }
  if (auto stored = StoreText(*key, value, config); !stored.ok()) return stored.error().WithContext(name);
  return {};
}

Status ApplyMountOptions(std::string_view options, Config& config) {
  for (std::string_view word : SplitAtCommas(options)) {
    if (word.empty() || fuse::IsFstabWord(word)) continue;
    if (word == "ro" || word == "rw") {
      config.read_only = word == "ro";
    } else if (fuse::IsMountFlag(word)) {
      config.mount_options.emplace_back(word);
    } else {
      size_t equals = word.find('=');
      std::string_view value = equals == std::string_view::npos ? std::string_view{} : word.substr(equals + 1);
      Status applied = ApplyKey(word.substr(0, equals), value, config);
      if (!applied.ok()) return applied.error().WithContext("option -o");
      TakeReadOnlyWords(config);
    }
  }
  return {};
}

Status MakePathsAbsolute(Config& config, const std::string& base) {
  for (std::string* path : {&config.data, &config.mount_point, &config.log_file, &config.tls_ca,
                            &config.tls_certificate, &config.tls_key}) {
    if (path->empty() || path->front() == '/' || (path == &config.log_file && *path == kLogToJournal)) continue;
    std::error_code error;
    stdfs::path absolute = base.empty() ? stdfs::absolute(*path, error) : stdfs::path(base) / *path;
    if (error) return ErrnoError(error.value(), fmt::format("cannot make {} an absolute path", *path));
    *path = absolute.lexically_normal().string();
  }
  return {};
}

uint64_t DefaultPoolSize() {
  static const uint64_t size = [] {
    const uint64_t memory = UsableMemory();
    const uint64_t daemons = 1 + DaemonsBeside();
    return memory == UINT64_MAX ? 256 * kMiB : std::clamp<uint64_t>(memory / 4 / daemons, 64 * kMiB, 8 * kGiB);
  }();
  return size;
}

std::string NearestKey(std::string_view name) {
  std::string nearest;
  size_t distance_min = SIZE_MAX;
  for (const ConfigKey& key : ConfigKeys()) {
    size_t distance = EditDistance(name, key.name);
    if (distance < distance_min) {
      distance_min = distance;
      nearest = key.name;
    }
  }
  return nearest;
}

}  // namespace cairnfs::daemon
