// Files on the disk below, and the directory that holds them. Everything that reaches a disk for chunk data goes
// through these interfaces, so that tests can put faults in its way (faulty_disk.h).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::io {

// Called once, on a thread of the engine; must not block (it may start other operations). The value is the count of
// bytes moved. A short read (end of file) is a success with fewer bytes. Callers see no short write: the engine goes
// on.
using IoCallback = std::function<void(Result<size_t>)>;

// One open file. All functions may be called from any thread at once.
class File {
 public:
  virtual ~File() = default;  // REQUIRES: no operation is in flight. Closes.

  // Starts the operation and returns. `data` stays valid and untouched until the callback. With direct I/O the
  // address, the offset and the size are multiples of kPageBytes (asserted).
  virtual void ReadAsync(uint64_t offset, MutableByteSpan data, IoCallback done) = 0;
  virtual void WriteAsync(uint64_t offset, ByteSpan data, IoCallback done) = 0;

  // On return every write that called back before the call is on stable storage (fdatasync). After a failure the state
  // of the file is unknown: the caller must not write to it again.
  virtual Status DataSync() = 0;
  // Gives [0, size) blocks. kNoSpace when they do not exist; kExhausted.
  virtual Status Allocate(uint64_t size) = 0;
  virtual Status Truncate(uint64_t size) = 0;
  virtual Result<uint64_t> Size() = 0;
  virtual bool direct() const = 0;  // opened with O_DIRECT
  virtual const std::string& path() const = 0;

  // The blocking forms of the above, for start-up, checks, tests, and writes so small that waking other threads for
  // them would take longer. Not to be called inside an IoCallback.
  Result<size_t> Read(uint64_t offset, MutableByteSpan data);
  virtual Status Write(uint64_t offset, ByteSpan data);
};

// A directory of files. Names contain no '/'; subdirectories are not seen.
class Disk {
 public:
  struct Space {
    uint64_t total_bytes;
    uint64_t free_bytes;  // what an unprivileged process may still use
  };
  virtual ~Disk() = default;  // REQUIRES: every File of it is closed.
  // Creates the file (kAlreadyExists if it is there). Durable after SyncDirectory. kExhausted, of Open too: the process
  // or the system has no descriptor or memory for it now, and nothing was done.
  virtual Result<std::unique_ptr<File>> Create(const std::string& name) = 0;
  // Where the file system below was made read-only, the file can be read; each write to it fails.
  virtual Result<std::unique_ptr<File>> Open(const std::string& name) = 0;
  virtual Status Remove(const std::string& name) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  virtual Result<std::vector<std::string>> List() = 0;  // sorted
  virtual Status SyncDirectory() = 0;
  virtual Result<Space> GetSpace() = 0;
};

struct DiskOptions {
  std::string path;          // must exist
  bool direct = true;        // O_DIRECT; falls back with a warning where the file system below refuses it
  bool use_io_uring = true;  // falls back to threads with a warning where the kernel refuses it
  unsigned queue_depth = 256;
};
// The real disk. kNotFound, kNotDirectory, kPermission with a message that names the path.
Result<std::unique_ptr<Disk>> OpenDisk(const DiskOptions& options);

}  // namespace cairnfs::io
