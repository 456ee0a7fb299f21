#include "daemon/setup_config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/printable.h"
#include "cluster/membership.h"
#include "daemon/size_text.h"

namespace cairnfs::daemon {
namespace {

namespace setup_fs = std::filesystem;

std::string ConfigText(const Config& config, std::string_view made_by) {
  const Config defaults;
  std::string text = fmt::format("# Written by cairnfs cluster {}. See cairnfs.toml(5).\n", made_by);
  auto line = [&](std::string_view key, const std::string& value) { text += fmt::format("{} = {}\n", key, value); };
  auto words = [&](std::string_view key, const std::string& value, const std::string& unless) {
    if (value != unless) line(key, QuotedText(value));
  };
  words("data", config.data, defaults.data);
  words("dedup", config.dedup, "");
  words("mount_point", config.mount_point, defaults.mount_point);
  words("metadata", config.metadata, "");
  words("serve_metadata", config.serve_metadata, "");
  words("listen", config.listen, "");
  words("advertise", config.advertise, "");
  words("node_name", config.node_name, "");
  words("failure_domain", config.failure_domain, "");
  words("serve_join", config.serve_join, "");
  words("tls_ca", config.tls_ca, "");
  words("tls_certificate", config.tls_certificate, "");
  words("tls_key", config.tls_key, "");
  std::string networks;
  for (const std::string& network : config.trusted_network)
    networks += (networks.empty() ? "" : ", ") + QuotedText(network);
  if (!networks.empty()) line("trusted_network", "[" + networks + "]");
  if (config.trust_public_network) line("trust_public_network", "true");
  line("copies", fmt::format("{}", config.copies));
  if (config.min_replicas != 0) line("min_replicas", fmt::format("{}", config.min_replicas));
  if (config.lease_ms != defaults.lease_ms) line("lease", QuotedText(FormatDurationMs(config.lease_ms)));
  if (config.out_after_ms != defaults.out_after_ms)
    line("out_after", QuotedText(FormatDurationMs(config.out_after_ms)));
  return text;
}

Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int failure = errno;
  if (fd >= 0) close(fd);
  if (!synced) return ErrnoError(failure, "cannot sync the directory " + path);
  return {};
}

}  // namespace

std::string QuotedText(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

Status CheckTexts(const Config& config) {
  struct Named {
    std::string_view key;
    const std::string& value;
  };
  for (const Named& text :
       {Named{"data", config.data}, Named{"mount_point", config.mount_point}, Named{"metadata", config.metadata},
        Named{"serve_metadata", config.serve_metadata}, Named{"listen", config.listen},
        Named{"advertise", config.advertise}, Named{"serve_join", config.serve_join}, Named{"tls_ca", config.tls_ca},
        Named{"tls_certificate", config.tls_certificate}, Named{"tls_key", config.tls_key},
        Named{"node_name", config.node_name}, Named{"failure_domain", config.failure_domain}}) {
    const bool is_path = text.key == "data" || text.key == "mount_point" || text.key.starts_with("tls_");
    if (!is_path && text.value.size() > cluster::kMemberTextBytesMax) {
      return MakeError(ErrorCode::kInvalidArgument, fmt::format("{} has {} bytes: give one of {} at most", text.key,
                                                                text.value.size(), cluster::kMemberTextBytesMax));
    }
    if (IsPlainText(text.value)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} holds a control character or is no UTF-8, which a configuration cannot hold: give "
                                 "one of printable characters",
                                 text.key));
  }
  return {};
}

Status CheckFileIsFree(const std::string& file, bool overwrite) {
  std::error_code error;
  if (overwrite || !setup_fs::exists(file, error)) return {};
  return MakeError(
      ErrorCode::kAlreadyExists,
      fmt::format("there is a configuration {} already: give --force to overwrite it, or another file with "
                  "--config",
                  file));
}

Status WriteConfig(const std::string& path, const Config& config, std::string_view made_by) {
  const std::string text = ConfigText(config, made_by);
  std::error_code error;
  const std::string folder = setup_fs::path(path).parent_path().string();
  if (!folder.empty()) setup_fs::create_directories(folder, error);
  if (error) return ErrnoError(error.value(), "cannot make the directory " + folder);
  const std::string temporary = path + ".new";
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError(errno, "cannot write the configuration " + path);
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  const int failure = errno;
  close(fd);
  if (!written) return ErrnoError(failure, "cannot write the configuration " + path);
  if (rename(temporary.c_str(), path.c_str()) != 0) return ErrnoError(errno, "cannot write the configuration " + path);
  return SyncFolder(folder.empty() ? "." : folder);
}

}  // namespace cairnfs::daemon
