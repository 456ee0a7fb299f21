// The descriptor of /dev/fuse and the mount that it serves.
//
// A mount lives as long as this descriptor (or a duplicate) is open somewhere. Everything else in this room only reads
// and writes it; so a process other than the one that mounted could hand it to a new worker.
#pragma once

#include <sys/mount.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "fuse/server.h"

namespace cairnfs::fuse {

class Device {
 public:
  // Opens /dev/fuse and mounts: by mount(2), or through fusermount3 when that is not permitted.
  static Result<std::unique_ptr<Device>> Mount(const MountOptions& options);
  ~Device();  // closes; does not unmount
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int fd() const { return fd_; }
  const std::string& mount_point() const { return mount_point_; }  // canonical

  // True while this very mount (not another one in its place) is in the mount table.
  bool Mounted() const;
  // A success also when it is not mounted any more.
  Status Unmount(Unmounting how);
  // How much a mapped file is read ahead. Best effort: needs root and a writable sysfs.
  void SetReadAhead(size_t bytes) const;

 private:
  Device(int fd, std::string mount_point);
  const int fd_;
  const std::string mount_point_;
  std::string device_number_;  // "MAJOR:MINOR"; empty if unknown
  Mutex unmount_mutex_;        // one unmount at a time
};

// The words of -o as mount(2) takes them; later words win. kInvalidArgument names a word that is unknown. Words that
// only mount(8) or fstab read ("defaults", "nofail", "x-...") are left out.
struct KernelMountFlags {
  unsigned long flags = 0;
};
// `flags`: those of the mount so far, which the words add to and take from. A new mount is nosuid and nodev.
Result<KernelMountFlags> ParseKernelOptions(const std::vector<std::string>& words,
                                            unsigned long flags = MS_NOSUID | MS_NODEV);

}  // namespace cairnfs::fuse
