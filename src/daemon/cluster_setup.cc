#include "daemon/cluster_setup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "chunking/chunker.h"
#include "cluster/membership.h"
#include "cluster/node_table.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_store.h"
#include "daemon/dedup.h"
#include "daemon/network.h"
#include "daemon/setup_addresses.h"
#include "daemon/size_text.h"
#include "daemon/storage.h"
#include "kv/local_store.h"
#include "kvnet/store_address.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

constexpr uint64_t kSetupWaitMs = 15'000;  // for metadata that does not answer: somebody looks on

ClusterSettings SettingsOf(const Config& config) {
  return {static_cast<uint32_t>(config.copies), static_cast<uint32_t>(config.min_replicas), config.lease_ms,
          config.out_after_ms, config.trusted_network};
}

// --- the configuration of a host ----------------------------------------------------------------------------------

std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

// UTF-8 without control characters, which TOML takes between quotes as it is.
bool IsPlainText(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x20 || lead == 0x7f || (lead >= 0x80 && lead < 0xc2) || lead > 0xf4) return false;
    const int more = lead < 0x80 ? 0 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : 3;
    uint32_t code = more == 0 ? lead : lead & (0x3fU >> more);
    for (int left = more; left > 0; --left, ++i) {
      if (i == text.size() || (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return false;
      code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    }
    const bool is_overlong = (more == 2 && code < 0x800) || (more == 3 && code < 0x10000);
    if (is_overlong || (code >= 0xd800 && code < 0xe000) || code > 0x10ffff) return false;
  }
  return true;
}

// To be checked before anything is made: the next mount would refuse a configuration that holds other texts.
Status CheckTexts(const Config& config) {
  struct Named {
    std::string_view key;
    const std::string& value;
  };
  for (const Named& text : {Named{"data", config.data}, Named{"mount_point", config.mount_point},
                            Named{"metadata", config.metadata}, Named{"serve_metadata", config.serve_metadata},
                            Named{"listen", config.listen}, Named{"advertise", config.advertise},
                            Named{"node_name", config.node_name}, Named{"failure_domain", config.failure_domain}}) {
    const bool is_path = text.key == "data" || text.key == "mount_point";
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

std::string ConfigText(const Config& config, std::string_view made_by) {
  const Config defaults;
  std::string text = fmt::format("# Written by cairnfs cluster {}. See cairnfs.toml(5).\n", made_by);
  auto line = [&](std::string_view key, const std::string& value) { text += fmt::format("{} = {}\n", key, value); };
  auto words = [&](std::string_view key, const std::string& value, const std::string& unless) {
    if (value != unless) line(key, Quoted(value));
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
  std::string networks;
  for (const std::string& network : config.trusted_network)
    networks += (networks.empty() ? "" : ", ") + Quoted(network);
  line("trusted_network", "[" + networks + "]");
  if (config.trust_public_network) line("trust_public_network", "true");
  line("copies", fmt::format("{}", config.copies));
  if (config.min_replicas != 0) line("min_replicas", fmt::format("{}", config.min_replicas));
  if (config.lease_ms != defaults.lease_ms) line("lease", Quoted(FormatDurationMs(config.lease_ms)));
  if (config.out_after_ms != defaults.out_after_ms) line("out_after", Quoted(FormatDurationMs(config.out_after_ms)));
  return text;
}

Status CheckFileIsFree(const SetupOptions& options) {
  std::error_code error;
  if (options.overwrite || !stdfs::exists(options.file, error)) return {};
  return MakeError(
      ErrorCode::kAlreadyExists,
      fmt::format("there is a configuration {} already: give --force to overwrite it, or another file with "
                  "--config",
                  options.file));
}

Status SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && fsync(fd) == 0;
  const int failure = errno;
  if (fd >= 0) close(fd);
  if (!synced) return ErrnoError(failure, "cannot sync the directory " + path);
  return {};
}

Status WriteConfig(const std::string& path, const std::string& text) {
  std::error_code error;
  const std::string folder = stdfs::path(path).parent_path().string();
  if (!folder.empty()) stdfs::create_directories(folder, error);
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

// The first read. When it succeeds, later errors are not about the address.
Status ReachMetadata(kv::KvStore& store, const std::string& url) {
  const auto header = store.Get({}, meta::HeaderKey());
  return header.ok() ? Status() : ExplainUnreachable(header.error(), url);
}

Status CheckStoreIsFree(kv::KvStore& store, const Config& config) {
  auto existing = ReadCluster(store);
  if (existing.ok()) {
    return MakeError(
        ErrorCode::kAlreadyExists,
        fmt::format("there is a filesystem at {} already ({}): join it with cairnfs cluster join {}, or give "
                    "another prefix or directory",
                    MetadataUrl(config), ToHex(existing->header.uuid), MetadataUrl(config)));
  }
  if (existing.error().code == ErrorCode::kNotFound) return {};
  return existing.error().WithContext("cannot read the cluster's metadata at " + MetadataUrl(config));
}

Result<ClusterIdentity> MakeCluster(kv::KvStore& store, const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(ClusterIdentity made, MakeOrReadCluster(store, config));
  if (made.settings.Encode() == SettingsOf(config).Encode()) return made;
  return MakeError(
      ErrorCode::kAlreadyExists,
      fmt::format("another cluster init made a filesystem at {} meanwhile ({}), with other settings: join it with "
                  "cairnfs cluster join {}, or give another prefix or directory",
                  MetadataUrl(config), ToHex(made.header.uuid), MetadataUrl(config)));
}

// Puts the settings of a filesystem that is to be made, in place of those that an interrupted init left. Does nothing
// when the filesystem is there.
Status PutSettings(kv::KvStore& store, const Config& config) {
  const std::string wanted = SettingsOf(config).Encode();
  kv::Retry retry({}, SettingsConflicts());
  while (true) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto header, store.Get({}, meta::HeaderKey()));
    CAIRNFS_ASSIGN_OR_RETURN(const auto left, store.Get({}, SettingsKey()));
    if (header || (left && left->value == wanted)) return {};
    kv::Transaction settings;
    settings.IfAbsent(meta::HeaderKey()).IfRevision(SettingsKey(), left ? left->revision : 0);
    const auto put = store.Commit({}, settings.Put(SettingsKey(), wanted));
    if (put.ok()) return {};
    if (put.error().code != ErrorCode::kConflict || !retry.Wait()) return put.error();
  }
}

// The directory of a host alone must hold no files: a cluster could take over their chunks, but not their names.
Status CheckHoldsNoFiles(const DataDirectory& directory, const Config& config) {
  if (directory.is_new()) return {};
  CAIRNFS_ASSIGN_OR_RETURN(auto storage, Storage::Open(directory, config));
  CAIRNFS_ASSIGN_OR_RETURN(auto kv, kv::LocalKvStore::Open(storage->engine()));
  const std::string inodes = meta::InodeKey({}).substr(0, 1);
  CAIRNFS_ASSIGN_OR_RETURN(kv::KvRange found, kv->Range({}, inodes, kv::PrefixEnd(inodes), 2));
  if (found.entries.size() <= 1) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("{} is the filesystem of a host alone and holds files, which a cluster would not see: "
                               "give an empty directory with --data; to bring the files along, mount {} without "
                               "metadata and copy them into the cluster's mount",
                               directory.path(), directory.path()));
}

Status CheckMayBeAdopted(const DataDirectory& directory, const Config& config, const std::string& filesystem) {
  if (directory.filesystem() == filesystem) return {};
  if (directory.filesystem().empty()) return CheckHoldsNoFiles(directory, config);
  return MakeError(ErrorCode::kInvalidArgument,
                   fmt::format("{} belongs to filesystem {}, but the metadata at {} is of filesystem {}: correct "
                               "metadata, or give an empty directory with --data",
                               directory.path(), directory.filesystem(), MetadataUrl(config), filesystem));
}

// Whether a filesystem may be made with this directory.
Status CheckMayBegin(const DataDirectory& directory, const Config& config) {
  if (directory.filesystem().empty()) return CheckHoldsNoFiles(directory, config);
  return MakeError(
      ErrorCode::kAlreadyExists,
      fmt::format("{} belongs to filesystem {} already: for a new one give an empty directory with --data; that one is "
                  "mounted with the configuration that cairnfs cluster init or join wrote for it (an init that was cut "
                  "short wrote none, and its directory holds nothing: remove it then)",
                  directory.path(), directory.filesystem()));
}

// The same for the configured directory. One that does not exist yet is made by the first mount.
Status CheckDataMayBegin(const Config& config) {
  std::error_code error;
  if (!stdfs::exists(config.data + "/format", error)) return {};
  DataDirectory::OpenOptions open;
  open.path = config.data;
  open.create = false;
  open.purpose = "checking";
  auto directory = DataDirectory::Open(open);
  // A directory of another user cannot be looked at before the daemon runs as that user.
  if (!directory.ok() && directory.error().code == ErrorCode::kPermission) return {};
  if (!directory.ok()) return directory.error();
  return CheckMayBegin(**directory, config);
}

// Whether a host may join with its data directory: the first mount would refuse one of another filesystem. One that
// does not exist yet is made by that mount. One that a daemon holds was found right by that daemon. One of another user
// cannot be looked at before the daemon runs as that user. Returns the directory's uuid, which is its node's id: empty
// before it is made, nullopt where it cannot be read.
Result<std::optional<std::string>> CheckDataMayJoin(const Config& config, const std::string& filesystem) {
  std::error_code error;
  if (!stdfs::exists(config.data + "/format", error)) return std::make_optional(std::string());
  DataDirectory::OpenOptions open;
  open.path = config.data;
  open.create = false;
  open.purpose = "checking";
  auto directory = DataDirectory::Open(open);
  if (!directory.ok()) {
    const ErrorCode code = directory.error().code;
    if (code != ErrorCode::kBusy && code != ErrorCode::kPermission) return directory.error();
    auto uuid = DataDirectory::ReadUuid(config.data);
    return uuid.ok() ? std::make_optional(*std::move(uuid)) : std::nullopt;
  }
  CAIRNFS_RETURN_IF_ERROR(CheckMayBeAdopted(**directory, config, filesystem));
  return std::make_optional((*directory)->uuid());
}

// No two nodes may have one address: messages for one would come to the other. But a node that is not up may have lost
// its disk and join anew, so only a node that is up keeps its address to itself.
Status CheckAddressIsFree(kv::KvStore& store, const Config& config, const std::string& own_id) {
  const std::string wanted = AdvertisedAddress(config);
  CAIRNFS_ASSIGN_OR_RETURN(const kv::KvRange members,
                           store.Range({}, cluster::MembersBegin(), cluster::MembersEnd(), 0));
  cluster::NodeTable table;
  table.Reset(members);
  const cluster::ViewPtr view = table.MakeView();
  for (const cluster::NodeInfo& node : view->nodes) {
    if (node.address != wanted || node.state != cluster::NodeState::kUp || node.id.ToHex() == own_id) continue;
    return MakeError(
        ErrorCode::kInvalidArgument,
        fmt::format("{} is the address of node {} ({}), which is up: give this host's own with --listen or "
                    "--advertise; if this host was that node and lost its data, try again in {}, when "
                    "that node counts as down",
                    wanted, node.name, node.id.ToHex(), FormatDurationMs(config.lease_ms)));
  }
  return {};
}

// Makes the data directory of the host that keeps the metadata. That of any other host is made by its first mount.
Result<ClusterIdentity> MakeServedCluster(const Config& config) {
  DataDirectory::OpenOptions open;
  open.path = config.data;
  open.purpose = "preparing";
  CAIRNFS_ASSIGN_OR_RETURN(std::unique_ptr<DataDirectory> directory, DataDirectory::Open(open));
  CAIRNFS_RETURN_IF_ERROR(CheckMayBegin(*directory, config));
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::Open(directory.get(), config, ClusterStore::Serve::kNo));
  CAIRNFS_RETURN_IF_ERROR(CheckStoreIsFree(store->store(), config));
  CAIRNFS_ASSIGN_OR_RETURN(ClusterIdentity identity, MakeCluster(store->store(), config));
  CAIRNFS_RETURN_IF_ERROR(Adopt(*directory, config, ToHex(identity.header.uuid)));
  {
    CAIRNFS_ASSIGN_OR_RETURN(auto storage, Storage::Open(*directory, config));
    CAIRNFS_RETURN_IF_ERROR(storage->OpenChunks(Storage::Purpose::kMount));
  }
  if (directory->is_new()) CAIRNFS_RETURN_IF_ERROR(directory->FinishMaking());
  directory->lock().MarkClean();
  return identity;
}

// For metadata that is elsewhere. Looks at the data directory before it changes the metadata.
Result<ClusterIdentity> MakeRemoteCluster(const Config& config) {
  Config patient = config;
  patient.metadata_wait_ms = std::min(config.metadata_wait_ms, kSetupWaitMs);
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::Open(nullptr, patient));
  CAIRNFS_RETURN_IF_ERROR(ReachMetadata(store->store(), config.metadata));
  CAIRNFS_RETURN_IF_ERROR(CheckStoreIsFree(store->store(), config));
  CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*store, config));
  CAIRNFS_RETURN_IF_ERROR(CheckDataMayBegin(config));
  auto identity = MakeCluster(store->store(), config);
  if (identity.ok() || identity.error().code == ErrorCode::kAlreadyExists) return identity;
  return identity.error().WithContext("cannot make a filesystem at " + config.metadata);
}

}  // namespace

Error ExplainUnreachable(const Error& error, const std::string& url) {
  Error explained = error.WithContext("cannot read the cluster's metadata at " + url);
  const bool is_node = kvnet::StoreAddress::KindOf(url) == kvnet::StoreAddress::Kind::kNode;
  if (error.code == ErrorCode::kUnavailable) {
    explained.message += is_node ? "; the host that serves it must be mounted, and its serve_metadata address be given"
                                 : "; is etcd running, and can this host reach it?";
  } else if (error.code == ErrorCode::kNotSupported && is_node) {
    explained.code = ErrorCode::kInvalidArgument;  // no damage: the address is wrong
    explained.message +=
        "; what answers there serves no metadata: give the serve_metadata address of the host that does, not its "
        "listen address; that of an etcd begins with etcd://";
  }
  return explained;
}

std::unique_ptr<meta::Namespace> MakeSharedNamespace(kv::KvStore& store) {
  meta::NamespaceOptions options;
  options.remote = true;
  return std::make_unique<meta::Namespace>(
      store, [](const std::vector<kv::KvWrite>&) -> Status { return {}; }, options);
}

Result<ClusterIdentity> ReadCluster(kv::KvStore& store) {
  ClusterIdentity identity;
  CAIRNFS_ASSIGN_OR_RETURN(identity.header, MakeSharedNamespace(store)->ReadHeader({}));
  CAIRNFS_ASSIGN_OR_RETURN(StoredSettings stored, ReadSettings({}, store));
  CAIRNFS_ASSIGN_OR_RETURN(auto header, store.Get({}, meta::HeaderKey()));
  identity.settings = std::move(stored.settings);
  identity.settings_revision = stored.revision;
  identity.settings_were_changed = header && stored.revision > header->revision;
  return identity;
}

Result<ClusterIdentity> MakeOrReadCluster(kv::KvStore& store, const Config& config) {
  CAIRNFS_RETURN_IF_ERROR(PutSettings(store, config));
  auto names = MakeSharedNamespace(store);
  auto header = names->ReadHeader({});
  if (!header.ok() && header.error().code == ErrorCode::kNotFound) {
    meta::FilesystemHeader fresh;
    fresh.uuid = RandomBytes(16);
    fresh.created = Clock::WallTime();
    fresh.chunk_params = chunking::ChunkParams().Encode();
    fresh.dedup = ChosenDedup(config);
    Status made = names->Format({}, fresh, geteuid(), getegid());
    if (made.ok()) spdlog::info("made a new filesystem at {}, uuid {}", MetadataUrl(config), ToHex(fresh.uuid));
    if (!made.ok() && made.error().code != ErrorCode::kAlreadyExists) return made.error();
  }
  return ReadCluster(store);
}

Status CheckAgreement(const ClusterSettings& settings, const Config& config) {
  struct Pair {
    std::string_view key;
    std::string here, there;
  };
  const std::array pairs = {
      Pair{"copies", fmt::format("{}", config.copies), fmt::format("{}", settings.copies)},
      Pair{"lease", Quoted(FormatDurationMs(config.lease_ms)), Quoted(FormatDurationMs(settings.lease_ms))},
      Pair{"out_after", Quoted(FormatDurationMs(config.out_after_ms)), Quoted(FormatDurationMs(settings.out_after_ms))},
  };
  for (const Pair& pair : pairs) {
    if (pair.here == pair.there) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     fmt::format("{} = {} here, but the cluster was made with {}: it must be the same on every host",
                                 pair.key, pair.here, pair.there));
  }
  return {};
}

Status CheckPrefix(ClusterStore& store, const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto header, store.store().Get({}, meta::HeaderKey()));
  if (header) return {};
  const auto found = store.FindOverlap(meta::HeaderKey());
  if (!found.ok()) return found.error().WithContext("looking for other clusters in " + config.metadata);
  const std::optional<std::string>& other = *found;
  if (!other) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const kvnet::StoreAddress address, kvnet::StoreAddress::Parse(config.metadata));
  Config theirs = config;
  theirs.metadata = kvnet::StoreAddress::TextOfEtcd(address.endpoints, *other);
  CAIRNFS_ASSIGN_OR_RETURN(auto their_store, ClusterStore::Open(nullptr, theirs));
  const auto identity = ReadCluster(their_store->store());
  // A filesystem of a newer program cannot be read, but it is there.
  const std::string name = identity.ok() ? ToHex(identity->header.uuid) : "(" + identity.error().message + ")";
  return MakeError(
      ErrorCode::kInvalidArgument,
      fmt::format("the prefix {} of metadata = \"{}\" lies {} {}, that of filesystem {}: give a prefix that does not "
                  "begin with another cluster's, nor another's with it; or join that filesystem with cairnfs cluster "
                  "join {}",
                  address.prefix, config.metadata, address.prefix.starts_with(*other) ? "below" : "above", *other, name,
                  theirs.metadata));
}

Status Adopt(DataDirectory& directory, const Config& config, const std::string& filesystem) {
  CAIRNFS_RETURN_IF_ERROR(CheckMayBeAdopted(directory, config, filesystem));
  if (directory.filesystem() == filesystem) return {};
  return directory.JoinFilesystem(filesystem);
}

Result<SetupResult> InitCluster(const SetupOptions& options) {
  CAIRNFS_RETURN_IF_ERROR(CheckFileIsFree(options));
  Config config = options.config;
  CAIRNFS_RETURN_IF_ERROR(ChooseServed(config));
  CAIRNFS_RETURN_IF_ERROR(CheckCluster(config));
  CAIRNFS_RETURN_IF_ERROR(CheckAddresses(config));
  CAIRNFS_RETURN_IF_ERROR(MakePathsAbsolute(config));
  CAIRNFS_RETURN_IF_ERROR(CheckTexts(config));
  CAIRNFS_ASSIGN_OR_RETURN(const ClusterIdentity identity,
                           config.serve_metadata.empty() ? MakeRemoteCluster(config) : MakeServedCluster(config));
  CAIRNFS_RETURN_IF_ERROR(WriteConfig(options.file, ConfigText(config, "init")));
  return SetupResult{ToHex(identity.header.uuid),
                     config.serve_metadata.empty() ? config.metadata : config.serve_metadata, config};
}

Result<SetupResult> JoinCluster(const SetupOptions& options, const std::string& address) {
  CAIRNFS_RETURN_IF_ERROR(CheckFileIsFree(options));
  Config config = options.config;
  CAIRNFS_ASSIGN_OR_RETURN(config.metadata, MetadataOfAddress(address));
  config.metadata_wait_ms = std::min(config.metadata_wait_ms, kSetupWaitMs);
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::Open(nullptr, config));
  CAIRNFS_RETURN_IF_ERROR(ReachMetadata(store->store(), config.metadata));
  auto identity = ReadCluster(store->store());
  if (!identity.ok() && identity.error().code == ErrorCode::kNotFound) {
    return MakeError(ErrorCode::kNotFound, fmt::format("there is no filesystem at {} yet: make it on the first host, "
                                                       "with cairnfs cluster init",
                                                       config.metadata));
  }
  if (!identity.ok()) {
    return identity.error().WithContext("cannot read the cluster's metadata at " + config.metadata);
  }
  config.metadata_wait_ms = Config().metadata_wait_ms;
  config.copies = identity->settings.copies;
  config.lease_ms = identity->settings.lease_ms;
  config.out_after_ms = identity->settings.out_after_ms;
  config.trusted_network = identity->settings.trusted_network;
  CAIRNFS_RETURN_IF_ERROR(ChooseListen(config));
  CAIRNFS_RETURN_IF_ERROR(CheckCluster(config));
  CAIRNFS_RETURN_IF_ERROR(CheckAddresses(config));
  CAIRNFS_RETURN_IF_ERROR(MakePathsAbsolute(config));
  CAIRNFS_RETURN_IF_ERROR(CheckTexts(config));
  CAIRNFS_ASSIGN_OR_RETURN(const auto own_id, CheckDataMayJoin(config, ToHex(identity->header.uuid)));
  if (own_id) CAIRNFS_RETURN_IF_ERROR(CheckAddressIsFree(store->store(), config, *own_id));
  CAIRNFS_RETURN_IF_ERROR(WriteConfig(options.file, ConfigText(config, "join")));
  return SetupResult{ToHex(identity->header.uuid), address, config};
}

}  // namespace cairnfs::daemon
