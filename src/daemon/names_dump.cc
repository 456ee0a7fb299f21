#include "daemon/names_dump.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "base/hex.h"
#include "base/utc_text.h"
#include "cluster/epochs.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_setup.h"
#include "daemon/cluster_store.h"
#include "daemon/data_directory.h"
#include "daemon/storage.h"
#include "kv/hosted_store.h"
#include "kv/local_store.h"
#include "meta/load.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

Result<std::unique_ptr<ClusterStore>> OpenRemote(const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::OpenForCommand(config));
  const auto header = store->store().Get({}, meta::HeaderKey());
  if (!header.ok()) return ExplainUnreachable(header.error(), config);
  return store;
}

Status DumpDirectory(const Config& config, const meta::DumpWriter::Sink& sink) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto directory, DataDirectory::Open({config.data, false, "dumping"}));
  if (directory->filesystem().empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto storage, Storage::Open(*directory, config, Storage::WhenFull::kOpenForReading));
    CAIRNFS_ASSIGN_OR_RETURN(const auto names, kv::LocalKvStore::Open(storage->engine()));
    return DumpNames({}, *names, meta::DumpHead::Of::kHostAlone, sink);
  }
  std::error_code error;
  if (!stdfs::exists(directory->shared_path(), error)) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("the names of filesystem {} are not in {}: ask a host that is mounted, or say where "
                                 "they are with --metadata",
                                 directory->filesystem(), directory->path()));
  }
  Config serving = config;
  serving.serve_metadata = "here";
  CAIRNFS_ASSIGN_OR_RETURN(const auto store, ClusterStore::Open(directory.get(), serving, ClusterStore::Serve::kNo));
  return DumpNames({}, store->store(), meta::DumpHead::Of::kCluster, sink);
}

// The whole dump into the store, which nobody else uses before it is done.
Status LoadInto(kv::KvStore& store, const meta::DumpSource& source, const meta::DumpSummary& expected) {
  meta::NamesLoader loader(store);
  CAIRNFS_RETURN_IF_ERROR(loader.Begin({}));
  std::vector<kv::KvWrite> last;
  auto load = [&](std::string_view key, std::string_view value) -> Status {
    kv::KvWrite entry = meta::EntryToLoad(key, value);
    if (key != meta::ClusterSettingsKey()) return loader.Put({}, entry.key, *entry.value);
    last.push_back(std::move(entry));
    return {};
  };
  CAIRNFS_ASSIGN_OR_RETURN(const meta::DumpSummary read, meta::ReadDump(source, load));
  if (read.digest != expected.digest) {
    return MakeError(ErrorCode::kCorrupt, "the file was changed while it was loaded: call again");
  }
  last.push_back({cluster::Epochs::HoldKey(),
                  fmt::format("the names were loaded from a dump of {}", UtcText(expected.head.taken))});
  return loader.Finish({}, last);
}

// Of settings nothing was looked at yet.
Status CheckSettings(std::string_view key, std::string_view value) {
  if (key != meta::ClusterSettingsKey()) return {};
  const auto settings = ClusterSettings::Decode(value);
  return settings.ok() ? Status() : Status(settings.error());
}

Status LoadRemote(const meta::DumpSource& source, const meta::DumpSummary& dump, const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto store, OpenRemote(config));
  CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*store, config));
  const Status loaded = LoadInto(store->store(), source, dump);
  if (loaded.ok()) return {};
  if (loaded.error().code == ErrorCode::kAlreadyExists) {
    return MakeError(ErrorCode::kAlreadyExists,
                     fmt::format("{} is not empty, and a dump is loaded into an empty store alone: give another prefix",
                                 config.metadata));
  }
  return loaded.error().WithContext("loading into " + config.metadata);
}

Status CheckIsOfDump(const DataDirectory& directory, const std::string& filesystem) {
  if (directory.is_new()) return {};
  if (directory.filesystem() != filesystem) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} {}, and the dump is of filesystem {}: give the data directory of one of its nodes, or an empty "
                    "one",
                    directory.path(),
                    directory.filesystem().empty() ? "is that of a host alone"
                                                   : "belongs to filesystem " + directory.filesystem(),
                    filesystem));
  }
  std::error_code error;
  if (!stdfs::exists(directory.shared_path(), error)) return {};
  return MakeError(ErrorCode::kAlreadyExists,
                   fmt::format("{} has names already: move it away first, where they are not to be used any more",
                               directory.shared_path()));
}

// In a folder of its own, which becomes DATA/shared once all is in it.
Status LoadIntoFolder(const meta::DumpSource& source, const meta::DumpSummary& dump, const DataDirectory& directory) {
  const std::string folder = directory.loading_path();
  std::error_code error;
  stdfs::remove_all(folder, error);
  if (error) return ErrnoError(error.value(), "cannot empty " + folder);
  {
    kv::RocksOptions options;
    options.path = folder;
    CAIRNFS_ASSIGN_OR_RETURN(const auto engine, kv::OpenRocksEngine(options));
    CAIRNFS_ASSIGN_OR_RETURN(const auto store, kv::HostedStore::Open(*engine));
    CAIRNFS_RETURN_IF_ERROR(LoadInto(*store, source, dump));
  }
  return directory.TakeLoaded();
}

Status LoadHere(const meta::DumpSource& source, const Config& config, LoadedNames& loaded) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto directory, DataDirectory::Open({config.data, true, "loading"}));
  const std::string filesystem = ToHex(loaded.dump.head.filesystem);
  CAIRNFS_RETURN_IF_ERROR(CheckIsOfDump(*directory, filesystem));
  loaded.where = directory->path();
  loaded.made_data_directory = directory->is_new();
  if (directory->is_new()) CAIRNFS_RETURN_IF_ERROR(directory->JoinFilesystem(filesystem));
  CAIRNFS_RETURN_IF_ERROR(LoadIntoFolder(source, loaded.dump, *directory));
  return directory->is_new() ? MakeNode(*directory, config, filesystem) : Status();
}

}  // namespace

Status DumpNames(const Context& context, kv::KvStore& store, meta::DumpHead::Of of, const meta::DumpWriter::Sink& sink,
                 const KeepEntry& keep) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto header, store.Get(context, meta::HeaderKey()));
  if (!header) return MakeError(ErrorCode::kNotFound, "there is no filesystem in the metadata");
  CAIRNFS_ASSIGN_OR_RETURN(const auto decoded, meta::FilesystemHeader::Decode(header->value));
  meta::DumpWriter writer(sink);
  CAIRNFS_RETURN_IF_ERROR(writer.Begin({of, decoded.uuid, Clock::WallTime(), CAIRNFS_VERSION}));
  Status written;
  auto take = [&](const kv::KvEntryView& entry) {
    if (!meta::IsInDump(entry.key)) return true;
    written = meta::CheckDumpEntry(entry.key, entry.value);
    if (written.ok()) written = writer.Add(entry.key, entry.value);
    if (written.ok() && keep) written = keep(entry.key, entry.value);
    if (context.Expired()) written = MakeError(ErrorCode::kInterrupted, "the dump was stopped");
    return written.ok();
  };
  CAIRNFS_ASSIGN_OR_RETURN(const uint64_t revision, store.VisitDurable(context, "", "", take));
  if (!written.ok() && written.error().code == ErrorCode::kCorrupt) {
    return written.error().WithContext("a record is damaged, and no load would take it; cairnfs check finds the file");
  }
  CAIRNFS_RETURN_IF_ERROR(written);
  return writer.Finish(revision);
}

Status DumpOffline(const Config& config, const meta::DumpWriter::Sink& sink) {
  if (config.metadata.empty()) return DumpDirectory(config, sink);
  CAIRNFS_ASSIGN_OR_RETURN(const auto store, OpenRemote(config));
  CAIRNFS_RETURN_IF_ERROR(ReadCluster(store->store()));
  return DumpNames({}, store->store(), meta::DumpHead::Of::kCluster, sink);
}

Result<meta::DumpSource> OpenDump(const std::string& path) {
  const int opened = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (opened < 0) return ErrnoError(errno, "cannot open " + path);
  const std::shared_ptr<const int> file(new int(opened), [](const int* fd) {
    close(*fd);
    delete fd;
  });
  return meta::DumpSource([file, path](uint64_t offset, size_t size) -> Result<std::string> {
    std::string bytes(size, '\0');
    size_t done = 0;
    while (done < size) {
      const ssize_t got = pread(*file, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoError(errno, fmt::format("cannot read {} at byte {}", path, offset + done));
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    bytes.resize(done);
    return bytes;
  });
}

Result<meta::DumpSummary> ReadDumpFile(const std::string& path) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::DumpSource source, OpenDump(path));
  auto summary = meta::ReadDump(source, CheckSettings);
  if (!summary.ok()) return summary.error().WithContext(path);
  return summary;
}

Result<LoadedNames> LoadNames(const std::string& path, const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::DumpSource source, OpenDump(path));
  LoadedNames loaded;
  CAIRNFS_ASSIGN_OR_RETURN(loaded.dump, ReadDumpFile(path));
  if (loaded.dump.head.of == meta::DumpHead::Of::kHostAlone) {
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} is the dump of a host alone, which no other store can hold: to make a cluster of "
                                 "that host, call cairnfs cluster init with its data directory",
                                 path));
  }
  loaded.where = config.metadata;
  CAIRNFS_RETURN_IF_ERROR(config.metadata.empty() ? LoadHere(source, config, loaded)
                                                  : LoadRemote(source, loaded.dump, config));
  return loaded;
}

}  // namespace cairnfs::daemon
