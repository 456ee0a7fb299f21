#include "daemon/last_end.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <utility>

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

std::string TimeText(int64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  tm parts{};
  char text[64];
  if (localtime_r(&time, &parts) == nullptr || strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z", &parts) == 0) {
    return fmt::format("@{}", seconds);
  }
  return text;
}

// When the write-ahead logs of RocksDB were written last: a sync point writes there at its end.
std::optional<int64_t> LastWritten(const std::string& metadata) {
  std::optional<int64_t> latest;
  std::error_code error;
  for (stdfs::directory_iterator entry(metadata, error), end; !error && entry != end; entry.increment(error)) {
    struct stat info;
    if (entry->path().extension() != ".log" || stat(entry->path().c_str(), &info) != 0) continue;
    latest = std::max(latest.value_or(0), static_cast<int64_t>(info.st_mtime));
  }
  return latest;
}

}  // namespace

LastEnd LookAtLastEnd(const std::string& data, const std::string& state, std::vector<std::string> mount_points) {
  return {data, state, std::move(mount_points), LastWritten(data + "/metadata")};
}

std::string DescribeLastEnd(const LastEnd& end) {
  std::string text =
      fmt::format("{} was not closed cleanly (\"{}\"): what no sync point covered may be lost", end.data, end.state);
  if (end.written_at) text += fmt::format("; something was made durable last at {}", TimeText(*end.written_at));
  if (end.mount_points.empty()) return text;
  std::string where;
  for (const std::string& mount_point : end.mount_points) where += (where.empty() ? "" : ", ") + mount_point;
  return text + fmt::format(
                    ". The daemon that served {} died: programs got ENOTCONN there (\"Transport endpoint is not "
                    "connected\"), which TensorFlow tells as \"is not a directory\", torch as \"unexpected pos\" or "
                    "\"Parent directory ... does not exist\". What "
                    "they had open stays broken: start them again from their last checkpoint",
                    where);
}

}  // namespace cairnfs::daemon
