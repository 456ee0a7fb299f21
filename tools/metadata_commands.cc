#include "metadata_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hex.h"
#include "base/utc_text.h"
#include "commands.h"
#include "daemon/directory_lock.h"
#include "daemon/exit_codes.h"
#include "daemon/names_dump.h"
#include "daemon/size_text.h"
#include "output.h"
#include "progress.h"

namespace cairnfs::tools {
namespace {

constexpr int kDumpTries = 5;  // where the store forgets what is being read

// A file that takes its name once all of it is durable.
class FileInTheMaking {
 public:
  explicit FileInTheMaking(std::string path) : path_(std::move(path)), partial_(path_ + ".partial") {}
  ~FileInTheMaking() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(partial_.c_str());
  }
  FileInTheMaking(const FileInTheMaking&) = delete;

  const std::string& partial() const { return partial_; }
  uint64_t size() const { return size_; }

  Status Open() {
    fd_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd_ >= 0 ? Status() : Status(ErrnoError(errno, "cannot make " + partial_));
  }
  Status Empty() {
    size_ = 0;
    return ftruncate(fd_, 0) == 0 ? Status() : Status(ErrnoError(errno, "cannot empty " + partial_));
  }
  Status Append(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(size_));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoError(errno, "cannot write " + partial_);
      size_ += static_cast<uint64_t>(written);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return {};
  }
  Status Sync() { return fsync(fd_) == 0 ? Status() : Status(ErrnoError(errno, "cannot sync " + partial_)); }
  Status TakeName() {
    if (rename(partial_.c_str(), path_.c_str()) != 0) return ErrnoError(errno, "cannot make " + path_);
    close(std::exchange(fd_, -1));
    const std::string folder = std::filesystem::path(Absolute(path_)).parent_path().string();
    const int directory = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const bool synced = directory >= 0 && fsync(directory) == 0;
    const int failure = errno;
    if (directory >= 0) close(directory);
    return synced ? Status() : Status(ErrnoError(failure, "cannot sync the directory " + folder));
  }

 private:
  const std::string path_, partial_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// By the daemon, where one runs; else from the data directory, or the store that was named.
Status WriteDump(const MetadataCommand& command, const meta::DumpWriter::Sink& sink) {
  daemon::Config config;
  config.metadata = command.metadata;
  if (!command.metadata.empty()) return daemon::DumpOffline(config, sink);
  CAIRNFS_ASSIGN_OR_RETURN(const Location location, Locate(command.target));
  config.data = location.data;
  if (!daemon::IsInUse(location.data)) return daemon::DumpOffline(config, sink);
  CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect(location));
  return client.DumpNames(sink);
}

Result<meta::DumpSummary> Dump(const MetadataCommand& command, ProgressLine& line) {
  FileInTheMaking file(command.file);
  CAIRNFS_RETURN_IF_ERROR(file.Open());
  auto take = [&](std::string_view bytes) -> Status {
    CAIRNFS_RETURN_IF_ERROR(file.Append(bytes));
    line.Show("dumping: " + daemon::FormatSize(file.size()));
    return {};
  };
  for (int tries = 1;; ++tries) {
    CAIRNFS_RETURN_IF_ERROR(file.Empty());
    const Status dumped = WriteDump(command, take);
    if (dumped.ok()) break;
    if (dumped.error().code != ErrorCode::kStale || tries == kDumpTries) return dumped.error();
  }
  CAIRNFS_RETURN_IF_ERROR(file.Sync());
  line.Show("verifying " + command.file);
  CAIRNFS_ASSIGN_OR_RETURN(meta::DumpSummary summary, daemon::ReadDumpFile(file.partial()));
  CAIRNFS_RETURN_IF_ERROR(file.TakeName());
  return summary;
}

nlohmann::ordered_json JsonOf(const meta::DumpSummary& dump) {
  return {{"filesystem", ToHex(dump.head.filesystem)},
          {"of", dump.head.of == meta::DumpHead::Of::kCluster ? "cluster" : "host alone"},
          {"taken_seconds", dump.head.taken.seconds},
          {"program", dump.head.program},
          {"revision", dump.revision},
          {"entries", dump.entries},
          {"bytes", dump.bytes}};
}

std::string TextOf(const meta::DumpSummary& dump) {
  return fmt::format("filesystem {}, of {}, at revision {} of its store\ntaken {} by cairnfs {}\n{} records, {}\n",
                     ToHex(dump.head.filesystem),
                     dump.head.of == meta::DumpHead::Of::kCluster ? "a cluster" : "a host alone", dump.revision,
                     UtcText(dump.head.taken), dump.head.program, dump.entries, daemon::FormatSize(dump.bytes));
}

void PrintDump(const meta::DumpSummary& dump, bool json) { Print(json ? JsonOf(dump).dump() + "\n" : TextOf(dump)); }

}  // namespace

int RunMetadataDump(const MetadataCommand& command) {
  ProgressLine line(!command.json);
  auto dumped = Dump(command, line);
  line.Clear();
  if (!dumped.ok()) return Fail(dumped.error());
  PrintDump(*dumped, command.json);
  return daemon::kExitDone;
}

int RunMetadataShow(const MetadataCommand& command) {
  auto summary = daemon::ReadDumpFile(command.file);
  if (!summary.ok()) return Fail(summary.error());
  PrintDump(*summary, command.json);
  return daemon::kExitDone;
}

int RunMetadataLoad(const MetadataCommand& command) {
  daemon::Config config;
  config.metadata = command.metadata;
  if (!command.target.data.empty()) config.data = Absolute(command.target.data);
  auto loaded = daemon::LoadNames(command.file, config);
  if (!loaded.ok()) return Fail(loaded.error());
  if (command.json) {
    nlohmann::ordered_json json = JsonOf(loaded->dump);
    json["loaded_into"] = loaded->where;
    Print(json.dump() + "\n");
    return daemon::kExitDone;
  }
  Print(
      fmt::format("{}is loaded into {}\n"
                  "Mount every host with a configuration that says so. Then cairnfs check MOUNTPOINT names the files "
                  "whose chunks are gone.\n"
                  "Nothing is collected until cairnfs gc --after-restore allows it.\n",
                  TextOf(loaded->dump), loaded->where));
  return daemon::kExitDone;
}

}  // namespace cairnfs::tools
