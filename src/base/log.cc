#include "base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/printable.h"

namespace cairnfs {
namespace {

constexpr uint64_t kDiskPerFile = 1024;
constexpr size_t kFileBytesMin = 64 << 10;

std::string DirectoryOf(const std::string& file) {
  std::string directory = std::filesystem::path(file).parent_path().string();
  return directory.empty() ? "." : directory;
}

// Renaming a symbolic link, such as /dev/stdout, would take it away from everybody.
bool MayBeRotated(const std::string& file) {
  struct stat info;
  if (lstat(file.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode);
}

bool IsStderr(const std::string& file) { return file.empty() || file == "/dev/stderr"; }

// Leaves out the lines of a minute beyond a bound.
class BoundedSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  BoundedSink(spdlog::sink_ptr below, size_t lines_per_minute_max)
      : below_(std::move(below)), lines_per_minute_max_(lines_per_minute_max) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level < spdlog::level::info) return below_->log(message);
    const auto now = Clock::Now();
    if (now - minute_began_ >= std::chrono::minutes(1)) {
      minute_began_ = now;
      lines_ = 0;
    }
    if (lines_ < lines_per_minute_max_) below_->log(message);
    if (lines_ == lines_per_minute_max_) {
      below_->log({message.logger_name, spdlog::level::warn, "too many lines: the rest of this minute is left out"});
    }
    ++lines_;
  }
  void flush_() override { below_->flush(); }
  void set_formatter_(std::unique_ptr<spdlog::formatter> formatter) override {
    below_->set_formatter(std::move(formatter));
  }

 private:
  const spdlog::sink_ptr below_;
  const size_t lines_per_minute_max_;
  Clock::time_point minute_began_{};
  size_t lines_ = 0;
};

// Of the installed log.
struct RotatedFiles {
  dev_t device = 0;
  uint64_t bytes_max = 0;  // 0: there are none
};
RotatedFiles rotated_files;

spdlog::sink_ptr MakeSink(const LogOptions& options) {
  rotated_files = {};
  if (IsStderr(options.file)) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  if (!MayBeRotated(options.file)) return std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
  const std::string directory = DirectoryOf(options.file);
  size_t bytes_max = options.file_bytes_max;
  struct statvfs disk;
  if (statvfs(directory.c_str(), &disk) == 0) {
    const uint64_t share = uint64_t{disk.f_blocks} * disk.f_frsize / kDiskPerFile;
    bytes_max = std::min<size_t>(bytes_max, std::max<uint64_t>(share, kFileBytesMin));
  }
  struct stat info;
  if (stat(directory.c_str(), &info) == 0) rotated_files = {info.st_dev, bytes_max * (1 + options.old_files_max)};
  auto files = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(options.file, bytes_max, options.old_files_max);
  return std::make_shared<BoundedSink>(std::move(files), options.lines_per_minute_max);
}

// The number in front of a line by which the journal knows the message's priority.
class PriorityFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const char priority = PriorityOf(message.level);
    for (char c : {'<', priority, '>'}) line.push_back(c);
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }

 private:
  static char PriorityOf(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::trace:
      case spdlog::level::debug: return '7';
      case spdlog::level::info: return '6';
      case spdlog::level::warn: return '4';
      case spdlog::level::err: return '3';
      default: return '2';
    }
  }
};

// The message, in which names of files may hold any byte: none begins a line of its own.
class MessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = Printable(std::string_view(message.payload.data(), message.payload.size()));
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<MessageFlag>(); }
};

std::unique_ptr<spdlog::formatter> Format(const std::string& pattern) {
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<PriorityFlag>('*').add_flag<MessageFlag>('&').set_pattern(pattern);
  return format;
}

}  // namespace

bool StderrIsJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");  // DEVICE:INODE, in decimal
  struct stat info;
  if (stream == nullptr || fstat(STDERR_FILENO, &info) != 0) return false;
  return stream == std::to_string(info.st_dev) + ":" + std::to_string(info.st_ino);
}

Status CheckLogFile(const std::string& file) {
  std::string directory = std::filesystem::path(file).parent_path().string();
  struct stat info;
  if (directory.empty()) return {};
  if (stat(directory.c_str(), &info) != 0) {
    if (errno == ENOENT) {
      return MakeError(ErrorCode::kNotFound, "cannot open the log file " + file + ": the directory " + directory +
                                                 " does not exist; make it first");
    }
    return ErrnoError(errno, "cannot open the log file " + file + ": " + directory);
  }
  if (!S_ISDIR(info.st_mode)) {
    return MakeError(ErrorCode::kNotDirectory,
                     "cannot open the log file " + file + ": " + directory + " is not a directory");
  }
  if (stat(file.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "cannot open the log file " + file + ": it is a directory; give a file");
  }
  return {};
}

uint64_t LogBytesMaxOn(const std::string& directory) {
  struct stat info;
  if (stat(directory.c_str(), &info) != 0 || info.st_dev != rotated_files.device) return 0;
  return rotated_files.bytes_max;
}

Status InitLog(const LogOptions& options) {
  auto level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "unknown log level '" + options.level + "'; use trace, debug, info, warning, error or off");
  }
  CAIRNFS_RETURN_IF_ERROR(CheckLogFile(options.file));  // spdlog would make it
  try {
    auto logger = std::make_shared<spdlog::logger>("cairnfs", MakeSink(options));
    logger->set_level(level);
    logger->flush_on(spdlog::level::info);
    if (IsStderr(options.file) && (options.to_journal || StderrIsJournal())) {
      logger->set_formatter(Format("%*%&"));
    } else {
      logger->set_formatter(Format("%Y-%m-%dT%H:%M:%S.%e%z %l %&"));
    }
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex& exception) {
    return MakeError(ErrorCode::kIo, "cannot open the log file " + options.file + ": " + exception.what());
  }
  return {};
}

}  // namespace cairnfs
