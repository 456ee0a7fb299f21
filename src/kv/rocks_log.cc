// RocksDB's info log: its warnings, in a file LOG beside the data.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>

#include "base/clock.h"
#include "base/thread_annotations.h"
#include "kv/rocks_support.h"

namespace cairnfs::kv {
namespace {

constexpr off_t kLogBytesMax = 1 << 20;

// Drops lines that cannot be written, so that a full or dead disk ends nothing. RocksDB 7.8's own logger goes on to use
// a file after a failed write, and then the library as Debian builds it, with assertions, aborts the process.
class WarningLog final : public rocksdb::Logger {
 public:
  explicit WarningLog(std::string path) : rocksdb::Logger(rocksdb::InfoLogLevel::WARN_LEVEL), path_(std::move(path)) {}

  using rocksdb::Logger::Logv;
  // Warnings are rare: the file is opened for each, and not made before the first.
  void Logv(const char* format, va_list arguments) override {
    std::array<char, 2048> line;
    const std::time_t now = Clock::WallTime().seconds;
    struct tm utc {};
    gmtime_r(&now, &utc);
    size_t size = std::strftime(line.data(), line.size(), "%Y-%m-%dT%H:%M:%SZ ", &utc);
    const int words = vsnprintf(line.data() + size, line.size() - size, format, arguments);
    if (words > 0) size = std::min(size + static_cast<size_t>(words), line.size() - 1);
    if (line[size - 1] != '\n') line[std::min(size++, line.size() - 1)] = '\n';
    Append(line.data(), std::min(size, line.size()));
  }

 private:
  void Append(const char* line, size_t size) {
    MutexLock lock(mutex_);
    struct stat info;
    if (stat(path_.c_str(), &info) == 0 && info.st_size >= kLogBytesMax) {
      static_cast<void>(rename(path_.c_str(), (path_ + ".old").c_str()));
    }
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return;
    [[maybe_unused]] const ssize_t written = write(fd, line, size);
    close(fd);
  }

  const std::string path_;
  Mutex mutex_;  // one line at a time
};

}  // namespace

std::shared_ptr<rocksdb::Logger> MakeInfoLog(const std::string& path) {
  return std::make_shared<WarningLog>(path + "/LOG");
}

}  // namespace cairnfs::kv
