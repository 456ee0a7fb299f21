#include "metadata_commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hex.h"
#include "base/printable.h"
#include "base/utc_text.h"
#include "commands.h"
#include "control/client.h"
#include "daemon/config.h"
#include "daemon/directory_lock.h"
#include "daemon/exit_codes.h"
#include "daemon/names_dump.h"
#include "daemon/promotion.h"
#include "daemon/size_text.h"
#include "json_text.h"
#include "output.h"
#include "progress.h"

namespace cairnfs::tools {
namespace {

constexpr std::chrono::hours kHoldMax{24 * 3650};
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

// 0: nothing is held.
Result<std::chrono::seconds> HoldOf(const MetadataCommand& command) {
  if (command.hold.empty()) return std::chrono::seconds(0);
  const auto hold_ms = daemon::ParseDurationMs(command.hold);
  if (!hold_ms.ok()) return hold_ms.error().WithContext("--hold");
  const std::chrono::seconds hold(*hold_ms / 1000);
  if (hold >= std::chrono::seconds(1) && hold <= kHoldMax) return hold;
  return MakeError(ErrorCode::kInvalidArgument, "--hold must lie between 1s and 3650d");
}

// By the daemon, where one runs; else from the data directory, or the store that was named. The hold, or none.
Result<control::HoldReply> WriteDump(const MetadataCommand& command, const meta::DumpWriter::Sink& sink) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::chrono::seconds hold, HoldOf(command));
  daemon::Config config;
  config.metadata = command.metadata;
  if (command.metadata.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const Location location, Locate(command.target));
    config.data = location.data;
    if (daemon::IsInUse(location.data)) {
      CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect(location));
      return client.DumpNames(hold, sink);
    }
  }
  if (hold != std::chrono::seconds(0)) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "only a mounted host of a cluster can hold the chunks of a dump: call it there, without --metadata");
  }
  CAIRNFS_RETURN_IF_ERROR(daemon::DumpOffline(config, sink));
  return control::HoldReply();
}

struct Dumped {
  meta::DumpSummary summary;
  control::HoldReply hold;
};

Result<Dumped> Dump(const MetadataCommand& command, ProgressLine& line) {
  FileInTheMaking file(command.file);
  CAIRNFS_RETURN_IF_ERROR(file.Open());
  auto take = [&](std::string_view bytes) -> Status {
    CAIRNFS_RETURN_IF_ERROR(file.Append(bytes));
    line.Show("dumping: " + daemon::FormatSize(file.size()));
    return {};
  };
  Dumped dumped;
  for (int tries = 1;; ++tries) {
    CAIRNFS_RETURN_IF_ERROR(file.Empty());
    auto written = WriteDump(command, take);
    if (!written.ok() && (written.error().code != ErrorCode::kStale || tries == kDumpTries)) return written.error();
    if (!written.ok()) continue;
    dumped.hold = *std::move(written);
    break;
  }
  CAIRNFS_RETURN_IF_ERROR(file.Sync());
  line.Show("verifying " + command.file);
  CAIRNFS_ASSIGN_OR_RETURN(dumped.summary, daemon::ReadDumpFile(file.partial()));
  CAIRNFS_RETURN_IF_ERROR(file.TakeName());
  return dumped;
}

Timestamp Seconds(int64_t seconds) { return {seconds, 0}; }

nlohmann::ordered_json JsonOf(const control::HoldReply& hold) {
  return {{"id", hold.id()},
          {"host", hold.host()},
          {"taken_seconds", hold.taken_seconds()},
          {"until_seconds", hold.until_seconds()},
          {"files", hold.records()},
          {"complete", hold.complete()}};
}

std::string TextOf(const control::HoldReply& hold) {
  if (!hold.complete()) {
    return fmt::format("{}  a dump that host {} began at {} and has not ended\n", hold.id(), hold.host(),
                       UtcText(Seconds(hold.taken_seconds())));
  }
  return fmt::format("{}  {} files, taken by host {} at {}, held until {}\n", hold.id(), hold.records(), hold.host(),
                     UtcText(Seconds(hold.taken_seconds())), UtcText(Seconds(hold.until_seconds())));
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

// By the daemon, where one runs; else in the data directory itself.
Result<control::PromoteReply> Promote(const MetadataCommand& command) {
  CAIRNFS_ASSIGN_OR_RETURN(const Location location, Locate(command.target));
  if (daemon::IsInUse(location.data)) {
    CAIRNFS_ASSIGN_OR_RETURN(control::Client client, Connect(location));
    control::PromoteRequest request;
    request.set_lose(command.lose);
    return client.Promote(request);
  }
  daemon::Config config;
  config.data = location.data;
  return daemon::PromoteOffline(config, command.lose);
}

void PrintDump(const Dumped& dump, bool json) {
  const bool is_held = dump.hold.id() != 0;
  if (!json) return Print(TextOf(dump.summary) + (is_held ? "held as " + TextOf(dump.hold) : ""));
  nlohmann::ordered_json object = JsonOf(dump.summary);
  if (is_held) object["hold"] = JsonOf(dump.hold);
  Print(object.dump() + "\n");
}

}  // namespace

int RunMetadataDump(const MetadataCommand& command) {
  ProgressLine line(!command.json);
  auto dumped = Dump(command, line);
  line.Clear();
  if (!dumped.ok()) return Fail(dumped.error());
  PrintDump(*dumped, command.json);
  return daemon::kExitDone;
}

int RunMetadataHolds(const MetadataCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  auto holds = located->client.Holds();
  if (!holds.ok()) return Fail(holds.error());
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const control::HoldReply& hold : holds->holds()) {
    if (command.json) json.push_back(JsonOf(hold));
    if (!command.json) Print(TextOf(hold));
  }
  if (command.json) Print(nlohmann::ordered_json{{"holds", json}}.dump() + "\n");
  if (!command.json && holds->holds().empty()) Print("no dump is held\n");
  return daemon::kExitDone;
}

int RunMetadataRelease(const MetadataCommand& command) {
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  const Status released = located->client.ReleaseHold(command.hold_id);
  if (!released.ok()) return Fail(released.error());
  Print(command.json ? nlohmann::ordered_json{{"released", command.hold_id}}.dump() + "\n"
                     : fmt::format("the dump {} is held no more\n", command.hold_id));
  return daemon::kExitDone;
}

int RunMetadataStandby(const MetadataCommand& command) {
  if (command.node.empty() == !command.no_standby) {
    return Fail(MakeError(ErrorCode::kInvalidArgument, "name the standby to be, or give --none"));
  }
  auto located = LocateDaemon(command.target);
  if (!located.ok()) return Fail(located.error());
  control::SetStandbyRequest request;
  request.set_node(command.node);
  request.set_none(command.no_standby);
  auto set = located->client.SetStandby(request);
  if (!set.ok()) return Fail(set.error());
  if (command.json) {
    nlohmann::ordered_json json = {{"standby", command.no_standby ? "" : set->name()}};
    Print(json.dump() + "\n");
  } else if (command.no_standby) {
    Print("the names have no standby\n");
  } else {
    Print(fmt::format("the names are being copied to {}; cairnfs cluster status says when it has all of them\n",
                      Printable(set->name())));
  }
  return daemon::kExitDone;
}

int RunMetadataPromote(const MetadataCommand& command) {
  const auto promoted = Promote(command);
  if (!promoted.ok()) return Fail(promoted.error());
  if (command.json) {
    nlohmann::ordered_json json = {{"promoted", true}};
    json.update(FieldsOf(*promoted));
    Print(json.dump() + "\n");
    return daemon::kExitDone;
  }
  if (promoted->was_primary()) {
    Print("this host serves the names already; cairnfs cluster status says who follows it\n");
    return daemon::kExitDone;
  }
  if (promoted->was_whole()) {
    Print("this host serves the names; nothing that was acknowledged is lost\n");
  } else {
    Print(fmt::format("this host serves the names as of {}, revision {}; what was changed later is lost{}\n",
                      UtcText(Seconds(static_cast<int64_t>(promoted->detached_seconds()))), promoted->own_revision(),
                      promoted->known_revision() > promoted->own_revision()
                          ? fmt::format(" (revisions up to {} at least)", promoted->known_revision())
                          : ""));
  }
  Print("it has no standby now: cairnfs metadata standby NAME\n");
  return daemon::kExitDone;
}

int RunMetadataShow(const MetadataCommand& command) {
  auto summary = daemon::ReadDumpFile(command.file);
  if (!summary.ok()) return Fail(summary.error());
  PrintDump({*summary, {}}, command.json);
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
