#include "daemon/grow.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/coding.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/log.h"
#include "cluster/holder_lists.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_store.h"
#include "daemon/dedup.h"
#include "daemon/preflight.h"
#include "daemon/storage.h"
#include "daemon/volume.h"
#include "kv/hosted_store.h"
#include "kv/local_store.h"
#include "meta/dump.h"
#include "meta/load.h"
#include "meta/ticket_records.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

Failpoint grow_made("grow.made", Failpoint::Kind::kKill);
Failpoint grow_loaded("grow.loaded", Failpoint::Kind::kKill);
Failpoint grow_noted("grow.noted", Failpoint::Kind::kKill);
Failpoint grow_decided("grow.decided", Failpoint::Kind::kKill);
Failpoint grow_joined("grow.joined", Failpoint::Kind::kKill);

constexpr size_t kListsPerWrite = 4096;

// In a cluster the record of a file says in which directory it is. On a host alone only names do.
class Parents {
 public:
  Status Note(std::string_view key, std::string_view value) {
    CAIRNFS_ASSIGN_OR_RETURN(const meta::DentryRecord dentry, meta::DentryRecord::Decode(value));
    if (S_ISDIR(dentry.type)) return {};
    parents_.emplace_back(dentry.inode.value, Decoder(key.substr(1)).BigEndianU64());
    is_sorted_ = false;
    return {};
  }
  // The record, with its parent.
  Result<std::string> Complete(std::string_view key, std::string_view value) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::InodeRecord record, meta::InodeRecord::Decode(value));
    if (S_ISDIR(record.mode) || record.parent.value != 0) return std::string(value);
    if (!std::exchange(is_sorted_, true)) std::sort(parents_.begin(), parents_.end());
    const uint64_t inode = Decoder(key.substr(1)).BigEndianU64();
    const auto found = std::lower_bound(parents_.begin(), parents_.end(), std::pair(inode, uint64_t{0}));
    if (found != parents_.end() && found->first == inode) record.parent = InodeId{found->second};
    return record.Encode();
  }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> parents_;  // inode, directory: one for each name
  bool is_sorted_ = false;
};

// All names of the host, but not the settings that make a cluster of them.
Status CopyNames(kv::LocalKvStore& names, meta::NamesLoader& loader) {
  Parents parents;
  Status copied;
  auto copy = [&](const kv::KvEntryView& entry) -> Status {
    if (!meta::IsInDump(entry.key)) return {};
    const Status sound = meta::CheckDumpEntry(entry.key, entry.value);
    if (!sound.ok()) return sound.error().WithContext("a record is damaged; cairnfs check finds the file");
    if (entry.key.starts_with('E')) CAIRNFS_RETURN_IF_ERROR(parents.Note(entry.key, entry.value));
    if (!entry.key.starts_with('I')) return loader.Put({}, entry.key, entry.value);
    CAIRNFS_ASSIGN_OR_RETURN(const std::string record, parents.Complete(entry.key, entry.value));
    return loader.Put({}, entry.key, record);
  };
  const auto visited = names.VisitDurable({}, "", "", [&](const kv::KvEntryView& entry) {
    copied = copy(entry);
    return copied.ok();
  });
  CAIRNFS_RETURN_IF_ERROR(visited);
  CAIRNFS_RETURN_IF_ERROR(copied);
  return loader.Flush({});
}

// Tickets stay behind: the hosts of a cluster work on them by other rules.
Status CheckNoTickets(kv::LocalKvStore& names) {
  size_t under_way = 0;
  const std::string prefix = meta::TicketsPrefix();
  const auto visited = names.VisitDurable({}, prefix, kv::PrefixEnd(prefix), [&](const kv::KvEntryView& entry) {
    const auto ticket = meta::TicketRecord::Decode(entry.value);
    if (meta::TicketOfKey(entry.key) && ticket.ok() && ticket->is_under_way()) ++under_way;
    return true;
  });
  if (!visited.ok()) return visited.error();
  if (under_way == 0) return {};
  return MakeError(ErrorCode::kBusy, fmt::format("{} deferred commits are under way: mount it and wait for them, or "
                                                 "rename their directories, and call again",
                                                 under_way));
}

// Repair goes by these lists. A host alone has none, but for those that a growing left that was cut short.
Status WriteHolderLists(Storage& storage, const cluster::NodeId& self) {
  kv::KvEngine& engine = storage.engine();
  std::vector<kv::EngineWrite> writes;
  Status written;
  auto add = [&](std::string key, std::optional<std::string> value) {
    writes.push_back({std::move(key), std::move(value)});
    if (writes.size() < kListsPerWrite || !written.ok()) return;
    written = engine.Write(writes, kv::WriteMode::kUnsynced);
    writes.clear();
  };
  CAIRNFS_RETURN_IF_ERROR(
      cluster::VisitHolders(engine, [&](const Digest& digest) { add(cluster::HolderKey(digest), std::nullopt); }));
  CAIRNFS_RETURN_IF_ERROR(storage.chunks().Sync());  // what is in no index yet
  const std::string holders = cluster::EncodeHolders({self});
  CAIRNFS_RETURN_IF_ERROR(storage.chunks().VisitChunks(
      {}, [&](const Digest& digest, SegmentId) { add(cluster::HolderKey(digest), holders); }));
  CAIRNFS_RETURN_IF_ERROR(written);
  return engine.Write(writes, kv::WriteMode::kSynced);
}

// The host alone, opened.
struct Alone {
  std::unique_ptr<Storage> storage;
  std::unique_ptr<kv::LocalKvStore> names;
  meta::FilesystemHeader header;
};

Result<Alone> OpenAlone(const DataDirectory& directory, const Config& config) {
  Alone alone;
  CAIRNFS_ASSIGN_OR_RETURN(alone.storage, Storage::Open(directory, config));
  CAIRNFS_ASSIGN_OR_RETURN(alone.names, kv::LocalKvStore::Open(alone.storage->engine()));
  CAIRNFS_ASSIGN_OR_RETURN(const auto header, alone.names->Get({}, meta::HeaderKey()));
  if (!header) {
    return MakeError(ErrorCode::kCorrupt,
                     fmt::format("the metadata in {} has no filesystem header; restore the directory from a copy",
                                 directory.metadata_path()));
  }
  CAIRNFS_ASSIGN_OR_RETURN(alone.header, meta::FilesystemHeader::Decode(header->value));
  CAIRNFS_RETURN_IF_ERROR(CheckDedup(config, alone.header.dedup, directory.path()));
  return alone;
}

Result<bool> HoldsFiles(const DataDirectory& directory, const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto storage, Storage::Open(directory, config));
  CAIRNFS_ASSIGN_OR_RETURN(const auto names, kv::LocalKvStore::Open(storage->engine()));
  const std::string inodes = meta::InodeKey({}).substr(0, 1);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange found, names->Range({}, inodes, kv::PrefixEnd(inodes), 2));
  return found.entries.size() > 1;
}

Status RemoveFolder(const std::string& folder) {
  std::error_code error;
  stdfs::remove_all(folder, error);
  return error ? Status(ErrnoError(error.value(), "cannot remove " + folder)) : Status();
}

// Settings that are put after the header tell that chunks may lack copies.
std::vector<kv::KvWrite> SettingsToPut(const Config& config) { return {{SettingsKey(), SettingsOf(config).Encode()}}; }

// What lies in `shared` of a host alone was left by an init that was cut short, and is nobody's.
Status GrowHere(DataDirectory& directory, const Config& config) {
  CAIRNFS_RETURN_IF_ERROR(RemoveFolder(directory.loading_path()));
  CAIRNFS_RETURN_IF_ERROR(RemoveFolder(directory.shared_path()));
  {
    CAIRNFS_ASSIGN_OR_RETURN(const Alone alone, OpenAlone(directory, config));
    CAIRNFS_RETURN_IF_ERROR(CheckNoTickets(*alone.names));
    kv::RocksOptions options;
    options.path = directory.loading_path();
    CAIRNFS_ASSIGN_OR_RETURN(const auto engine, kv::OpenRocksEngine(options));
    CAIRNFS_ASSIGN_OR_RETURN(const auto store, kv::HostedStore::Open(*engine));
    meta::NamesLoader loader(*store);
    CAIRNFS_RETURN_IF_ERROR(loader.Begin({}));
    CAIRNFS_RETURN_IF_ERROR(CopyNames(*alone.names, loader));
    grow_loaded.Pass();
    CAIRNFS_RETURN_IF_ERROR(loader.Finish({}, SettingsToPut(config)));
    CAIRNFS_RETURN_IF_ERROR(alone.storage->OpenChunks(Storage::Purpose::kMount));
    CAIRNFS_RETURN_IF_ERROR(WriteHolderLists(*alone.storage, *cluster::NodeId::FromHex(directory.uuid())));
  }
  grow_noted.Pass();
  CAIRNFS_RETURN_IF_ERROR(directory.TakeLoaded());
  grow_decided.Pass();
  return directory.JoinFilesystem(directory.uuid());
}

Status GrowElsewhere(DataDirectory& directory, const Config& config, bool holds_files) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto opened, ClusterStore::OpenForCommand(config));
  kv::SharedKvStore& store = opened->store();
  const auto reached = store.Get({}, meta::HeaderKey());
  if (!reached.ok()) return ExplainUnreachable(reached.error(), config);
  CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*opened, config));
  std::optional<Alone> alone;
  CAIRNFS_ASSIGN_OR_RETURN(alone, OpenAlone(directory, config));
  CAIRNFS_RETURN_IF_ERROR(CheckNoTickets(*alone->names));
  meta::NamesLoader loader(store);
  const Status begun = loader.Begin({});
  if (!begun.ok() && begun.error().code == ErrorCode::kAlreadyExists) {
    return MakeError(ErrorCode::kAlreadyExists,
                     fmt::format("{} is not empty, and the names in {} need a place of their own: give another prefix",
                                 config.metadata, directory.path()));
  }
  CAIRNFS_RETURN_IF_ERROR(begun);
  CAIRNFS_RETURN_IF_ERROR(CopyNames(*alone->names, loader));
  CAIRNFS_RETURN_IF_ERROR(alone->storage->OpenChunks(Storage::Purpose::kMount));
  CAIRNFS_RETURN_IF_ERROR(WriteHolderLists(*alone->storage, *cluster::NodeId::FromHex(directory.uuid())));
  std::vector<kv::KvWrite> last = SettingsToPut(config);
  if (!holds_files) last.push_back({meta::HeaderKey(), alone->header.Encode()});  // no chunk lacks copies
  alone.reset();
  grow_loaded.Pass();
  CAIRNFS_RETURN_IF_ERROR(directory.NoteGrowing(config.metadata));
  grow_noted.Pass();
  const Status finished = loader.Finish({}, last);
  if (!finished.ok()) return finished.error().WithContext("bringing the names to " + config.metadata + "; call again");
  grow_decided.Pass();
  return directory.JoinFilesystem(directory.uuid());
}

// A host alone without files, so that what a first host without any begins is like all else: the names in the store are
// this directory's, by its uuid, which nobody else has.
Status MakeAlone(const Config& config) {
  {
    CAIRNFS_ASSIGN_OR_RETURN(const auto opened, ClusterStore::OpenForCommand(config));
    const auto reached = opened->store().Get({}, meta::HeaderKey());
    if (!reached.ok()) return ExplainUnreachable(reached.error(), config);
    CAIRNFS_ASSIGN_OR_RETURN(const auto left, opened->store().Get({}, meta::LoadMarkKey()));  // begun, and not ended
    if (!left) CAIRNFS_RETURN_IF_ERROR(CheckStoreIsFree(opened->store(), config));
    CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*opened, config));
  }
  CAIRNFS_RETURN_IF_ERROR(RaiseFileLimit(config));
  CAIRNFS_ASSIGN_OR_RETURN(const auto directory, DataDirectory::Open({config.data, true, "preparing"}));
  CAIRNFS_RETURN_IF_ERROR(Volume::Open(*directory, config));
  directory->lock().MarkClean();
  grow_made.Pass();
  return {};
}

// The cluster that the directory is of, where its settings are those of the configuration.
Result<std::optional<ClusterIdentity>> FindMade(const DataDirectory& directory, const Config& config) {
  const bool is_here = !config.serve_metadata.empty();
  auto opened =
      is_here ? ClusterStore::Open(&directory, config, ClusterStore::Serve::kNo) : ClusterStore::OpenForCommand(config);
  if (!opened.ok()) return std::optional<ClusterIdentity>();
  auto identity = ReadCluster((*opened)->store());
  if (!identity.ok() && identity.error().code == ErrorCode::kUnavailable) return identity.error();
  const bool is_it = identity.ok() && ToHex(identity->header.uuid) == directory.filesystem() &&
                     identity->settings.Encode() == SettingsOf(config).Encode();
  return is_it ? std::make_optional(*std::move(identity)) : std::nullopt;
}

}  // namespace

// First no load may end any more; then what the store says is final.
Status SettleGrowth(DataDirectory& directory, const Config& given) {
  if (directory.growing().empty()) return {};
  const std::string metadata = directory.growing();
  Config config;
  config.metadata = metadata;
  config.tls_ca = given.tls_ca;
  config.tls_certificate = given.tls_certificate;
  config.tls_key = given.tls_key;
  auto ask = [&]() -> Result<bool> {
    CAIRNFS_ASSIGN_OR_RETURN(const auto opened, ClusterStore::OpenForCommand(config));
    const Status stopped = meta::StopLoading({}, opened->store());
    if (!stopped.ok() && stopped.error().code != ErrorCode::kConflict) {
      return ExplainUnreachable(stopped.error(), config);
    }
    CAIRNFS_ASSIGN_OR_RETURN(const auto settings, opened->store().Get({}, SettingsKey()));
    CAIRNFS_ASSIGN_OR_RETURN(const auto header, opened->store().Get({}, meta::HeaderKey()));
    if (!settings || !header) return false;
    const auto decoded = meta::FilesystemHeader::Decode(header->value);
    return decoded.ok() && ToHex(decoded->uuid) == directory.uuid();
  };
  const Result<bool> is_cluster = ask();
  if (!is_cluster.ok()) {
    return is_cluster.error().WithContext(fmt::format(
        "cairnfs cluster init was cut short while it brought the names in {} to {}, which has to be asked whether they "
        "are there",
        directory.path(), metadata));
  }
  spdlog::warn("cairnfs cluster init was cut short: the names of {} are {}", directory.path(),
               *is_cluster ? "at " + metadata : "here as before");
  return *is_cluster ? directory.JoinFilesystem(directory.uuid()) : directory.NoteGrowing("");
}

Result<std::optional<ClusterIdentity>> BringAlong(const Config& config, bool is_written) {
  std::error_code error;
  // The authority's key lies in the data directory, so that directory alone can end what an init with certificates
  // began.
  const bool begins_alone = config.HasCertificates() && config.serve_metadata.empty();
  if (!stdfs::exists(config.data + "/format", error)) {
    if (!begins_alone) return std::optional<ClusterIdentity>();
    CAIRNFS_RETURN_IF_ERROR(MakeAlone(config));
  }
  auto opened = DataDirectory::Open({config.data, false, "preparing"});
  // A directory of another user cannot be looked at before the daemon runs as that user.
  if (!opened.ok() && opened.error().code == ErrorCode::kPermission && !begins_alone) {
    return std::optional<ClusterIdentity>();
  }
  if (!opened.ok()) return opened.error();
  DataDirectory& directory = **opened;
  CAIRNFS_RETURN_IF_ERROR(SettleGrowth(directory, config));
  if (directory.filesystem().empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const bool holds_files, HoldsFiles(directory, config));
    if (!holds_files && !config.serve_metadata.empty()) {
      CAIRNFS_RETURN_IF_ERROR(RemoveFolder(directory.shared_path()));  // of an init that was cut short
    }
    if (!holds_files && !begins_alone) return std::optional<ClusterIdentity>();
    CAIRNFS_RETURN_IF_ERROR(RaiseFileLimit(config));
    CAIRNFS_RETURN_IF_ERROR(config.serve_metadata.empty() ? GrowElsewhere(directory, config, holds_files)
                                                          : GrowHere(directory, config));
    grow_joined.Pass();
  } else if (is_written) {
    return std::optional<ClusterIdentity>();
  }
  return FindMade(directory, config);
}

}  // namespace cairnfs::daemon
