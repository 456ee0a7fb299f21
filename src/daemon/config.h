// The daemon's configuration: one flat list of keys, read from a TOML file, from -o options and from the command line,
// each overriding the one before. systemd/cairnfs.toml and docs/operating.md document every key.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::daemon {

inline constexpr const char* kDefaultConfigFile = "/etc/cairnfs/cairnfs.toml";
inline constexpr const char* kDefaultData = "/var/lib/cairnfs";
inline constexpr const char* kDefaultMountPoint = "/mnt/cairnfs";
inline constexpr const char* kLogToJournal = "journal";  // as log_file
inline constexpr double kWeightOfCapacity = -1;          // as weight: the capacity of the disk in TiB

struct Config {
  std::string data = kDefaultData;
  std::string mount_point = kDefaultMountPoint;

  // Sizes in bytes. 0 means: chosen from the machine (see docs/operating.md).
  uint64_t pool_size = 0;
  bool touch_pool = false;
  uint64_t cache_size = 0;
  uint64_t segment_size = 0;
  uint64_t free_segments_max = 0;
  uint64_t reserve = 0;
  uint64_t metadata_cache_size = 64 * kMiB;
  uint64_t read_ahead = 64 * kMiB;
  uint64_t mmap_read_ahead = 8 * kMiB;
  bool passthrough = false;

  uint64_t worker_threads = 0;
  uint64_t waiting_threads = 16;
  uint64_t verify_threads = 0;
  uint64_t receive_threads = 2;
  uint64_t max_background = 64;

  uint64_t flush_interval_ms = 1000;
  uint64_t commit_wait_max_ms = 600'000;
  std::string rename = "ordered";  // or "durable"
  uint64_t trash_ms = 0;           // so long what is removed stays restorable; 0: it does not
  uint64_t stop_deadline_ms = 0;   // a stop by a signal takes no longer; 0: as long as it takes

  uint64_t collect_after = 64 * kMiB;
  uint64_t collect_rate = 256 * kMiB;
  uint64_t collect_delay_ms = 3000;

  bool allow_other = true;
  bool read_only = false;
  bool guard = false;                      // nobody can write into the directory below the mount
  std::vector<std::string> mount_options;  // words for the kernel: noexec, suid, dev, ...; "ro" becomes read_only

  bool direct_io = true;
  bool io_uring = true;
  std::string dedup;  // "mount" or "owner"; empty: as the filesystem was made, a new one with "mount"

  std::string log_level = "info";
  std::string log_file;         // empty: stderr in the foreground, DATA/cairnfs.log in the background; "journal"
  std::string metrics_address;  // "127.0.0.1:9464"; empty: off

  // Several hosts. Alone on this host when neither `metadata` nor `serve_metadata` is set.
  std::string metadata;        // "node:HOST:PORT" or "etcd://HOST:PORT,HOST:PORT/prefix"
  std::string serve_metadata;  // IP:PORT at which this node serves the shared metadata from its own disk
  std::string listen;          // IP:PORT of the peer service
  std::string advertise;       // HOST:PORT at which others reach it; empty: `listen`
  std::string serve_join;      // IP:PORT at which this node lets others join
  // PEM files for an etcd that asks for TLS; empty: it does not.
  std::string tls_ca, tls_certificate, tls_key;
  std::vector<std::string> trusted_network;  // empty: nodes have certificates
  bool trust_public_network = false;         // it may be one that is not private
  std::string node_name;                     // empty: the host's name
  std::string failure_domain;                // empty: the node is its own
  double weight = kWeightOfCapacity;
  uint64_t copies = 2;
  uint64_t min_replicas = 0;  // 0: as many as `copies`
  std::string durability = "replicated";
  uint64_t lease_ms = 5000;
  uint64_t out_after_ms = 300'000;
  uint64_t repair_rate = 256 * kMiB;
  uint64_t metadata_wait_ms = 600'000;

  bool InCluster() const { return !metadata.empty() || !serve_metadata.empty(); }
  // Whether nodes prove by certificates who they are.
  bool HasCertificates() const { return InCluster() && trusted_network.empty(); }
};

// Reads a TOML file over `config`. kNotFound, kPermission; kInvalidArgument with "FILE:LINE: what is wrong, what would
// be right", for an unknown key with the nearest valid one; for what is no regular file; for one larger than 32 KiB.
Status ReadConfigFile(const std::string& path, Config& config);

// Applies "word[=value],word[=value]..." of -o. Words that mount(8) and fstab use for themselves (defaults, auto,
// x-...) are dropped, flags of the kernel go to mount_options; else a key of the configuration, with its value.
Status ApplyMountOptions(std::string_view options, Config& config);

// Applies one key as text, as -o does.
Status ApplyKey(std::string_view name, std::string_view value, Config& config);

// Makes the paths of `config` absolute, from `base`, or from the working directory when that is empty. (A daemon in the
// background has "/" as its working directory.) An error when that directory is gone and a path needs it.
Status MakePathsAbsolute(Config& config, const std::string& base = "");

// The pool's size when the configuration leaves it open: a quarter of the memory that the process may use (of the
// machine, or of its control group), which the daemons of the machine share (DaemonsBeside); 64 MiB at least, 8 GiB at
// most. Chosen once in a process, so that what was checked is what is taken.
uint64_t DefaultPoolSize();

// The key most like `name`.
std::string NearestKey(std::string_view name);

}  // namespace cairnfs::daemon
