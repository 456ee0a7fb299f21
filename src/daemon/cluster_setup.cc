#include "daemon/cluster_setup.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "admission/credentials.h"
#include "admission/join_port.h"
#include "base/clock.h"
#include "base/failpoint.h"
#include "base/hex.h"
#include "base/log.h"
#include "base/random_bytes.h"
#include "chunking/chunker.h"
#include "daemon/cluster_config.h"
#include "daemon/cluster_store.h"
#include "daemon/dedup.h"
#include "daemon/grow.h"
#include "daemon/joining.h"
#include "daemon/setup_addresses.h"
#include "daemon/setup_config.h"
#include "daemon/size_text.h"
#include "daemon/storage.h"
#include "kv/local_store.h"
#include "kvnet/store_address.h"
#include "meta/load.h"

namespace cairnfs::daemon {
namespace {

namespace stdfs = std::filesystem;

Failpoint init_founded("grow.founded", Failpoint::Kind::kKill);

// The etcd does, and this host is to speak to it without.
bool AsksForTls(const Config& config) {
  const auto address = kvnet::StoreAddress::Parse(config.metadata);
  if (!config.tls_ca.empty() || !address.ok()) return false;
  return std::ranges::any_of(address->endpoints, admission::SpeaksTls);
}

const char* WhatIsToBeDone(const Config& config, bool is_node) {
  if (is_node && config.metadata.find('@') != std::string::npos) {
    return "; the host that serves it must be mounted, its serve_metadata address be given, and the id before the @ be "
           "that of its node: where another node has the names now, join again with a new token";
  }
  if (is_node) {
    return "; the host that serves it must be mounted, and its serve_metadata address be given. Where nodes have "
           "certificates, give --token, and the serve_join address of a host";
  }
  if (!AsksForTls(config)) return "; is etcd running, and can this host reach it?";
  return "; that etcd speaks TLS: give its authority (tls_ca, --tls-ca), and where it asks for certificates this "
         "host's (tls_certificate and tls_key)";
}

// The first read. When it succeeds, later errors are not about the address.
Status ReachMetadata(kv::KvStore& store, const Config& config) {
  const auto header = store.Get({}, meta::HeaderKey());
  return header.ok() ? Status() : ExplainUnreachable(header.error(), config);
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
    settings.IfAbsent(meta::HeaderKey()).IfAbsent(meta::LoadMarkKey());
    settings.IfRevision(SettingsKey(), left ? left->revision : 0);
    const auto put = store.Commit({}, settings.Put(SettingsKey(), wanted));
    if (put.ok()) return {};
    if (put.error().code != ErrorCode::kConflict || !retry.Wait()) return put.error();
  }
}

// The directory of a host alone must hold no files: this cluster has names of its own.
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
                               "metadata and copy them into the cluster's mount; or make a cluster of that host, with "
                               "cairnfs cluster init",
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
                  "short wrote none: the same call finishes it)",
                  directory.path(), directory.filesystem()));
}

// The configured directory as it is; nullptr where the first mount is to make it. kPermission: it is of another user,
// and cannot be looked at before the daemon runs as that user.
Result<std::unique_ptr<DataDirectory>> OpenToCheck(const Config& config) {
  std::error_code error;
  if (!stdfs::exists(config.data + "/format", error)) return std::unique_ptr<DataDirectory>();
  return DataDirectory::Open({.path = config.data, .create = false, .purpose = "checking"});
}

Status CheckDataMayBegin(const Config& config) {
  const auto directory = OpenToCheck(config);
  if (!directory.ok()) return directory.error().code == ErrorCode::kPermission ? Status() : directory.error();
  return *directory ? CheckMayBegin(**directory, config) : Status();
}

// Whether a host may join with its data directory: the first mount would refuse one of another filesystem. One that a
// daemon holds was found right by that daemon. Returns the directory's uuid, which is its node's id: empty before it is
// made, nullopt where it cannot be read.
Result<std::optional<std::string>> CheckDataMayJoin(const Config& config, const std::string& filesystem) {
  const auto directory = OpenToCheck(config);
  if (!directory.ok()) {
    const ErrorCode code = directory.error().code;
    if (code != ErrorCode::kBusy && code != ErrorCode::kPermission) return directory.error();
    auto uuid = DataDirectory::ReadUuid(config.data);
    return uuid.ok() ? std::make_optional(*std::move(uuid)) : std::nullopt;
  }
  if (!*directory) return std::make_optional(std::string());
  CAIRNFS_RETURN_IF_ERROR(CheckMayBeAdopted(**directory, config, filesystem));
  return std::make_optional((*directory)->uuid());
}

// Makes the authority of a new cluster, and its first node's credentials.
Status Found(const DataDirectory& directory, const std::string& filesystem, const std::string& authority_out) {
  return admission::Credentials::Found(admission::Credentials::FolderOf(directory.path()), filesystem, directory.uuid(),
                                       authority_out, Clock::WallTime());
}

Result<std::unique_ptr<DataDirectory>> OpenToMake(const Config& config) {
  return DataDirectory::Open({.path = config.data, .purpose = "preparing"});
}

// The same for a host that was alone, and has grown into the cluster. An init that was cut short may have made them.
Status FoundGrown(const Config& config, const ClusterIdentity& identity, const std::string& authority_out) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto directory, OpenToMake(config));
  const std::string folder = admission::Credentials::FolderOf(directory->path());
  if (admission::Credentials::Open(folder, directory->uuid(), Clock::WallTime()).ok()) return {};
  return Found(*directory, ToHex(identity.header.uuid), authority_out);
}

// Makes the data directory of the host that keeps the metadata. Without certificates that of any other host is made by
// its first mount.
Result<ClusterIdentity> MakeServedCluster(const Config& config, const std::string& authority_out) {
  CAIRNFS_ASSIGN_OR_RETURN(const std::unique_ptr<DataDirectory> directory, OpenToMake(config));
  CAIRNFS_RETURN_IF_ERROR(CheckMayBegin(*directory, config));
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::Open(directory.get(), config, ClusterStore::Serve::kNo));
  CAIRNFS_RETURN_IF_ERROR(CheckStoreIsFree(store->store(), config));
  CAIRNFS_ASSIGN_OR_RETURN(ClusterIdentity identity, MakeCluster(store->store(), config));
  if (config.HasCertificates()) {
    CAIRNFS_RETURN_IF_ERROR(Found(*directory, ToHex(identity.header.uuid), authority_out));
  }
  CAIRNFS_RETURN_IF_ERROR(MakeNode(*directory, config, ToHex(identity.header.uuid)));
  return identity;
}

// For metadata that is elsewhere, without certificates. Looks at the data directory before it changes the metadata.
// When this is cut short the host joins what it has made, as any other one does.
Result<ClusterIdentity> MakeRemoteCluster(const Config& config) {
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::OpenForCommand(config));
  CAIRNFS_RETURN_IF_ERROR(ReachMetadata(store->store(), config));
  CAIRNFS_RETURN_IF_ERROR(CheckDataMayBegin(config));
  CAIRNFS_RETURN_IF_ERROR(CheckStoreIsFree(store->store(), config));
  CAIRNFS_RETURN_IF_ERROR(CheckPrefix(*store, config));
  auto identity = MakeCluster(store->store(), config);
  if (identity.ok() || identity.error().code == ErrorCode::kAlreadyExists) return identity;
  return identity.error().WithContext("cannot make a filesystem at " + config.metadata);
}

// Where the authority's key is to go. What an init that was cut short has written there, with all else that it is for,
// stays.
Status CheckAuthorityOut(const std::string& path, const Config& config) {
  std::error_code error;
  const std::string folder = stdfs::path(path).has_parent_path() ? stdfs::path(path).parent_path().string() : ".";
  if (!path.empty() && access(folder.c_str(), W_OK) != 0) return ErrnoError(errno, "cannot write into " + folder);
  if (path.empty() || !stdfs::exists(path, error)) return {};
  if (stdfs::exists(admission::Credentials::FolderOf(config.data) + "/node.pem", error)) return {};
  return MakeError(ErrorCode::kAlreadyExists,
                   path + " exists already: name a new file for the authority's key, or move that one away");
}

// Takes over what the cluster has decided, chooses what nobody named, and checks it all.
Status Complete(Config& config, const ClusterSettings& settings) {
  config.copies = settings.copies;
  config.lease_ms = settings.lease_ms;
  config.out_after_ms = settings.out_after_ms;
  config.trusted_network = settings.trusted_network;
  CAIRNFS_RETURN_IF_ERROR(ChooseListen(config));
  CAIRNFS_RETURN_IF_ERROR(CheckCluster(config));
  CAIRNFS_RETURN_IF_ERROR(CheckAddresses(config));
  CAIRNFS_RETURN_IF_ERROR(MakePathsAbsolute(config));
  return CheckTexts(config);
}

// Before the token is used up. A node that serves the names is asked only by those that have a certificate.
Status ReachEtcd(const Config& config) {
  if (kvnet::StoreAddress::KindOf(config.metadata) != kvnet::StoreAddress::Kind::kEtcd) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const auto store, ClusterStore::OpenForCommand(config));
  return ReachMetadata(store->store(), config);
}

// Makes the data directory of a host that joins with a token, unless it is there. Returns its uuid, the node's id.
Result<std::string> MakeJoiningNode(const Config& config, const std::string& filesystem) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto known, CheckDataMayJoin(config, filesystem));
  auto directory = OpenToMake(config);
  if (!directory.ok() && directory.error().code == ErrorCode::kBusy && known && !known->empty()) return *known;
  if (!directory.ok()) return directory.error();
  CAIRNFS_RETURN_IF_ERROR(MakeNode(**directory, config, filesystem));
  return (*directory)->uuid();
}

Result<SetupResult> JoinWithToken(const SetupOptions& options, const std::string& address, const std::string& text) {
  CAIRNFS_ASSIGN_OR_RETURN(const admission::Token token, admission::Token::Parse(text));
  Config config = options.config;
  std::string filesystem, node, key;
  const auto introduce = [&](const admission::JoinWelcome& welcome) -> Result<admission::JoinRequest> {
    filesystem = welcome.filesystem;
    config.metadata = welcome.metadata;
    CAIRNFS_ASSIGN_OR_RETURN(const ClusterSettings settings, ClusterSettings::Decode(welcome.settings));
    CAIRNFS_RETURN_IF_ERROR(Complete(config, settings));
    CAIRNFS_RETURN_IF_ERROR(ReachEtcd(config));
    CAIRNFS_ASSIGN_OR_RETURN(node, MakeJoiningNode(config, filesystem));
    CAIRNFS_ASSIGN_OR_RETURN(key, admission::MakeKey());
    CAIRNFS_ASSIGN_OR_RETURN(std::string request, admission::MakeRequest(key));
    auto proof = admission::Credentials::Prove(admission::Credentials::FolderOf(config.data), request);
    return admission::JoinRequest{node, NodeName(config), AdvertisedAddress(config), std::move(request),
                                  std::move(proof)};
  };
  auto grant = admission::Join(address, token, introduce);
  if (!grant.ok()) return grant.error().WithContext("cannot join the cluster by " + address);
  CAIRNFS_RETURN_IF_ERROR(admission::Credentials::Write(admission::Credentials::FolderOf(config.data), grant->authority,
                                                        key, grant->chain, node, Clock::WallTime()));
  CAIRNFS_RETURN_IF_ERROR(WriteConfig(options.file, config, "join"));
  return SetupResult{filesystem, address, config};
}

}  // namespace

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

Error ExplainUnreachable(const Error& error, const Config& config) {
  const std::string url = MetadataUrl(config);
  Error explained = error.WithContext("cannot read the cluster's metadata at " + url);
  const bool is_node = kvnet::StoreAddress::KindOf(url) == kvnet::StoreAddress::Kind::kNode;
  if (error.code == ErrorCode::kUnavailable) {
    explained.message += WhatIsToBeDone(config, is_node);
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
  CAIRNFS_ASSIGN_OR_RETURN(const auto loading, store.Get({}, meta::LoadMarkKey()));
  if (loading) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "names are being loaded into it, or were when that was cut short: call cairnfs metadata load, or "
                     "the cairnfs cluster init that did so, again");
  }
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
  CAIRNFS_RETURN_IF_ERROR(SettleGrowth(directory, config));
  CAIRNFS_RETURN_IF_ERROR(CheckMayBeAdopted(directory, config, filesystem));
  if (directory.filesystem() == filesystem) return {};
  return directory.JoinFilesystem(filesystem);
}

Status MakeNode(DataDirectory& directory, const Config& config, const std::string& filesystem) {
  CAIRNFS_RETURN_IF_ERROR(Adopt(directory, config, filesystem));
  {
    CAIRNFS_ASSIGN_OR_RETURN(auto storage, Storage::Open(directory, config));
    CAIRNFS_RETURN_IF_ERROR(storage->OpenChunks(Storage::Purpose::kMount));
  }
  if (directory.is_new()) CAIRNFS_RETURN_IF_ERROR(directory.FinishMaking());
  directory.lock().MarkClean();
  return {};
}

Result<SetupResult> InitCluster(const SetupOptions& options) {
  CAIRNFS_RETURN_IF_ERROR(CheckFileIsFree(options.file, options.overwrite));
  Config config = options.config;
  CAIRNFS_RETURN_IF_ERROR(ChooseServed(config));
  if (config.HasCertificates()) CAIRNFS_RETURN_IF_ERROR(ChooseServeJoin(config));
  CAIRNFS_RETURN_IF_ERROR(CheckCluster(config));
  CAIRNFS_RETURN_IF_ERROR(CheckAddresses(config));
  CAIRNFS_RETURN_IF_ERROR(MakePathsAbsolute(config));
  CAIRNFS_RETURN_IF_ERROR(CheckTexts(config));
  CAIRNFS_RETURN_IF_ERROR(CheckAuthorityOut(options.authority_out, config));
  std::error_code error;
  const bool is_written = stdfs::exists(options.file, error);
  CAIRNFS_ASSIGN_OR_RETURN(const std::optional<ClusterIdentity> brought, BringAlong(config, is_written));
  auto made = brought                         ? Result<ClusterIdentity>(*brought)
              : config.serve_metadata.empty() ? MakeRemoteCluster(config)
                                              : MakeServedCluster(config, options.authority_out);
  CAIRNFS_ASSIGN_OR_RETURN(const ClusterIdentity identity, std::move(made));
  if (brought && config.HasCertificates()) CAIRNFS_RETURN_IF_ERROR(FoundGrown(config, identity, options.authority_out));
  init_founded.Pass();
  CAIRNFS_RETURN_IF_ERROR(WriteConfig(options.file, config, "init"));
  const std::string& join_address = config.HasCertificates()        ? config.serve_join
                                    : config.serve_metadata.empty() ? config.metadata
                                                                    : config.serve_metadata;
  return SetupResult{ToHex(identity.header.uuid), join_address, config};
}

Result<SetupResult> JoinCluster(const SetupOptions& options, const std::string& address, const std::string& token) {
  CAIRNFS_RETURN_IF_ERROR(CheckFileIsFree(options.file, options.overwrite));
  if (!token.empty()) return JoinWithToken(options, address, token);
  Config config = options.config;
  CAIRNFS_ASSIGN_OR_RETURN(config.metadata, MetadataOfAddress(address));
  CAIRNFS_ASSIGN_OR_RETURN(auto store, ClusterStore::OpenForCommand(config));
  CAIRNFS_RETURN_IF_ERROR(ReachMetadata(store->store(), config));
  auto identity = ReadCluster(store->store());
  if (!identity.ok() && identity.error().code == ErrorCode::kNotFound) {
    return MakeError(ErrorCode::kNotFound, fmt::format("there is no filesystem at {} yet: make it on the first host, "
                                                       "with cairnfs cluster init",
                                                       config.metadata));
  }
  if (!identity.ok()) {
    return identity.error().WithContext("cannot read the cluster's metadata at " + config.metadata);
  }
  if (identity->settings.trusted_network.empty()) {
    return InvalidArgument(
        "the nodes of that cluster have certificates: join with a token, which cairnfs cluster token gives on the host "
        "that made the cluster");
  }
  CAIRNFS_RETURN_IF_ERROR(Complete(config, identity->settings));
  CAIRNFS_ASSIGN_OR_RETURN(const auto own, CheckDataMayJoin(config, ToHex(identity->header.uuid)));
  if (own)
    CAIRNFS_RETURN_IF_ERROR(CheckAddressIsFree(store->store(), AdvertisedAddress(config), *own, config.lease_ms));
  CAIRNFS_RETURN_IF_ERROR(WriteConfig(options.file, config, "join"));
  // A node that was removed comes back with what it has. One that is up was not removed.
  if (own && !own->empty()) {
    const Status allowed = AllowBack(store->store(), *own);
    if (!allowed.ok() && allowed.error().code != ErrorCode::kBusy) return allowed.error();
  }
  return SetupResult{ToHex(identity->header.uuid), address, config};
}

}  // namespace cairnfs::daemon
