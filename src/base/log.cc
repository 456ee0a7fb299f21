#include "base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>

namespace cairnfs {
namespace {

// Renaming a symbolic link, such as /dev/stdout, would take it away from everybody.
bool MayBeRotated(const std::string& file) {
  struct stat info;
  if (lstat(file.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode);
}

spdlog::sink_ptr MakeSink(const LogOptions& options) {
  if (options.file.empty() || options.file == "/dev/stderr") return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  if (!MayBeRotated(options.file)) return std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
  return std::make_shared<spdlog::sinks::rotating_file_sink_mt>(options.file, options.file_bytes_max,
                                                                options.old_files_max);
}

}  // namespace

Status CheckLogDirectory(const std::string& file) {
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
  return {};
}

Status InitLog(const LogOptions& options) {
  auto level = spdlog::level::from_str(options.level);
  if (level == spdlog::level::off && options.level != "off") {
    return MakeError(ErrorCode::kInvalidArgument,
                     "unknown log level '" + options.level + "'; use trace, debug, info, warning, error or off");
  }
  CAIRNFS_RETURN_IF_ERROR(CheckLogDirectory(options.file));  // spdlog would make it
  try {
    auto logger = std::make_shared<spdlog::logger>("cairnfs", MakeSink(options));
    logger->set_level(level);
    logger->flush_on(spdlog::level::info);
    logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    spdlog::set_default_logger(std::move(logger));
  } catch (const spdlog::spdlog_ex& exception) {
    return MakeError(ErrorCode::kIo, "cannot open the log file " + options.file + ": " + exception.what());
  }
  return {};
}

}  // namespace cairnfs
