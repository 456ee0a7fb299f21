// The FUSE front end: mounts, receives requests, decodes them, calls fs::FileSystem and replies.
//
// The receive path, why it cannot deadlock on the buffer pool, and what is negotiated with the kernel stand in
// receiver.h and negotiation.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "fs/filesystem.h"
#include "io/buffer_pool.h"

namespace cairnfs::fuse {

// kLazily: the mount point is free at once, and the mount ends when nothing uses it any more.
enum class Unmounting { kUnlessBusy, kLazily };

struct MountOptions {
  std::string mount_point;
  std::string source = "cairnfs";  // first column of /proc/mounts
  bool allow_other = true;         // falls back to false with a warning when an unprivileged mount may not
  bool read_only = false;
  bool guard = false;  // the directory below the mount becomes immutable, and stays so (GuardMountPoint)
  std::vector<std::string> kernel_options;  // further -o words, on top of nosuid and nodev (suid, noexec, ...)
  unsigned receive_threads = 2;
  unsigned max_background = 64;
  size_t read_ahead_bytes = 4 * kMiB;  // of the mount's bdi: what mmap reads ahead
  bool passthrough = false;            // where the system allows it, the kernel reads files in memory itself
  uint64_t passthrough_descriptors_max = UINT64_MAX;  // that it may take: each file in memory has two
};

class Server {
 public:
  // Mounts. The message of an error says what is wrong and what would be right: mount point missing (kNotFound), not a
  // directory (kNotDirectory), not empty (kNotEmpty), already a cairnfs mount (kBusy), no /dev/fuse (kUnavailable), not
  // root and fusermount3 missing or refusing (kPermission), an unknown kernel option (kInvalidArgument). A mount left
  // over from a dead daemon (ENOTCONN) is unmounted lazily first, with a warning. `pool` outlives the server.
  static Result<std::unique_ptr<Server>> Mount(const MountOptions& options, io::BufferPool& pool);
  // The checks of Mount that come before it touches /dev/fuse, to be made before anything is made for the mount. Takes
  // a dead mount away as Mount does.
  static Status Check(const MountOptions& options);
  ~Server();  // unmounts if still mounted
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Serves requests until the mount is gone or Stop was called; returns once all receiving threads ended and every
  // request that they took was answered. REQUIRES: called once.
  Status Serve(fs::FileSystem& filesystem);
  // Unmounts, lazily when it is busy, and lets Serve return. Any thread, but no signal handler; may be called more than
  // once and before Serve.
  void Stop();
  // For the watchdog: false when a receiving thread has been at work on one request for too long (kStuckAfter).
  bool Alive() const;

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The words of -o, in one place: those that mount(2) takes as flags ("nosuid", ...; MountOptions::kernel_options), and
// those that only mount(8), fstab and systemd read ("defaults", "nofail", "x-...").
bool IsMountFlag(std::string_view word);
bool IsFstabWord(std::string_view word);

// Errno of an error code, and the only place that makes one.
int ErrnoOf(const Error& error);

// Whether the kernel has the filesystem at the mount point as read-only, and with which flags of mount(2).
struct MountState {
  bool read_only = false;
  unsigned long flags = 0;
  bool operator==(const MountState&) const = default;
};
Result<MountState> StateOfMount(const std::string& mount_point);
struct MountChange {
  std::vector<std::string> words;  // "nosuid", "suid", ...
  bool read_only = false;
};
// The state after it. Flags that the words do not name stay as they are. kInvalidArgument.
Result<MountState> StateAfter(const MountState& now, const MountChange& change);
// Has the kernel change the mount. Where it is in that state already, it does nothing and needs no right. kBusy, with
// the processes: it was to become read-only, and files are open for writing. kPermission: only root may.
Status RemountAt(const std::string& mount_point, const MountState& state);

// The mount points, alive or dead, of a data directory under the name by which it was mounted. Copies of the mount in
// containers are left out.
std::vector<std::string> MountPointsOf(const std::string& source);

// Lets the directory be changed again that a guarded mount was on. Does nothing where that is allowed already. kBusy:
// something is mounted there. kPermission.
Status Unguard(const std::string& mount_point);

// Unmounts a cairnfs mount point; tries for two seconds where something uses it. kNotFound when nothing of ours is
// mounted there, kBusy with the reason, kPermission.
Status Unmount(const std::string& mount_point, Unmounting how);

}  // namespace cairnfs::fuse
