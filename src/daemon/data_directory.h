// The data directory: what lies in it, who holds it, and how it comes into being.
//
//   DATA/LOCK          held by the process that uses the directory (directory_lock.h)
//   DATA/format        "version = 1" and "uuid = ...": written last, so its presence says that the directory is whole;
//                      in a cluster also "filesystem = ...", the one whose chunks are kept here; of a host alone
//                      "growing = ..." while its names go to a store elsewhere (grow.h)
//   DATA/format.making the same while the directory is being made; renamed to `format` once everything else is durable
//   DATA/segments/     chunks          DATA/metadata/   RocksDB
//   DATA/shared/       RocksDB of the namespace that this node serves to the hosts of a cluster
//   DATA/tls/          what the node proves itself with (admission/credentials.h)
//   DATA/shared.loading/  the same while names are loaded, which nobody reads
//   DATA/control.sock  the control service        DATA/ranks.sock    commits of ranks, and waits, for every user
//   DATA/cairnfs.log   log of a daemon in the background
//
// A directory with format.making and without format was left by a crash in the middle of its making: nobody can have
// stored anything in it, so it is emptied and made again.
//
// Only the user who made the filesystem, the owner of DATA/format, opens it. Files that another user, root too, made in
// it would be closed to that owner, and the next mount would find half a directory. Nobody else, but root, may own the
// directory or write into it: they could replace stored data, or have files elsewhere written through links.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/directory_lock.h"

namespace cairnfs::daemon {

class DataDirectory {
 public:
  static constexpr uint32_t kFormatVersion = 1;

  struct OpenOptions {
    std::string path;
    bool create = true;               // make it when it is absent, empty or half-made
    std::string purpose = "running";  // written into LOCK
  };
  // Takes the lock, waiting while its holder is stopping or dying (half a minute at most). kBusy names the holder.
  // kNotFound, kNotDirectory, kPermission (another user's, or writable by others, too), kNoSpace, kNotSupported (newer
  // version), kInvalidArgument (holds something else), kCorrupt (damaged): the message says what would be right.
  static Result<std::unique_ptr<DataDirectory>> Open(const OpenOptions& options);
  // Reads the uuid also while another process holds the directory.
  static Result<std::string> ReadUuid(const std::string& path);
  // Unlocks. A directory that is still new is emptied again.
  ~DataDirectory();
  DataDirectory(const DataDirectory&) = delete;
  DataDirectory& operator=(const DataDirectory&) = delete;

  const std::string& path() const { return path_; }  // absolute, without symlinks
  std::string segments_path() const { return path_ + "/segments"; }
  std::string metadata_path() const { return path_ + "/metadata"; }
  std::string log_path() const { return path_ + "/cairnfs.log"; }
  std::string shared_path() const { return path_ + "/shared"; }
  std::string loading_path() const { return path_ + "/shared.loading"; }
  uint64_t DiskBytes() const;                        // the capacity of the disk that it lies on; 0: not known
  const std::string& uuid() const { return uuid_; }  // 32 hex digits
  // 32 hex digits of the cluster's filesystem to which the directory belongs; empty: it is of a host alone.
  const std::string& filesystem() const { return filesystem_; }
  // As a configuration names it, the store to which the names of this host alone are going, or may have gone when that
  // was cut short; empty: none.
  const std::string& growing() const { return growing_; }
  bool is_new() const { return is_new_; }  // FinishMaking is still to be called
  DirectoryLock& lock() { return *lock_; }
  // Odd things that are no errors, for the log, which is opened after the directory.
  const std::vector<std::string>& notes() const { return notes_; }

  // Makes the directory a whole one. REQUIRES: is_new(), and (unchecked) all in it is durable.
  Status FinishMaking();
  // Durably makes it a directory of that filesystem of a cluster. REQUIRES: filesystem().empty().
  Status JoinFilesystem(const std::string& uuid_hex);
  // Durably notes that store; an empty text: none. REQUIRES: filesystem().empty(), and not is_new().
  Status NoteGrowing(const std::string& metadata);
  // Durably makes what lies in loading_path() the names that this node serves.
  Status TakeLoaded() const;

 private:
  DataDirectory(std::string path, int directory) : path_(std::move(path)), directory_(directory) {}
  Status Recognise(bool create);
  Status StartMaking();
  void Unmake();
  std::string FormatText() const;
  Status WriteFormat() const;
  Status ReadFormat();
  Status CheckDirectory() const;
  Status CheckOwner() const;
  bool KeepsOwners(uid_t owner) const;

  const std::string path_;
  const int directory_;
  std::unique_ptr<DirectoryLock> lock_;
  std::string uuid_;
  std::string filesystem_;
  std::string growing_;
  std::vector<std::string> notes_;
  bool is_new_ = false;
};

// The control socket of a data directory: a path short enough for a Unix socket. For a long directory name it leads
// through /proc/self/fd, by a descriptor that stays open for the life of the process.
Result<std::string> ControlSocketPath(const std::string& data_path);

}  // namespace cairnfs::daemon
