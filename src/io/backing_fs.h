// Files in memory that the kernel reads and maps in place of files of the mount (FUSE passthrough). They lie in a tmpfs
// of this process alone: it has no path, so nobody sees it or takes it away, and it goes with the last descriptor and
// mapping of its files.
//
// The tmpfs has huge pages, without which the kernel reads such a file no faster than the daemon answers reads, and is
// never swapped out.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::io {

// Any thread. Who writes to one range at once orders that.
class BackingFile {
 public:
  virtual ~BackingFile() = default;  // the memory is free once nobody else has the file open or mapped

  // Whoever reads or maps the file sees a change at once. A longer file has zeros, which take no memory before they are
  // written, or read by a mapping. kNoSpace: there is no memory for it, and a part of the bytes may have been written.
  virtual Status Write(uint64_t offset, ByteSpan data) = 0;
  virtual Status Truncate(uint64_t size) = 0;
  virtual Status Punch(uint64_t offset, uint64_t length) = 0;  // the size stays
  // Gives back what the calls above keep open between them. A later one opens it again.
  virtual void EndWriting() = 0;

  // For the kernel to open the file by: a descriptor of this process. It can be opened for reading alone, whatever the
  // kernel is asked for.
  virtual int fd() const = 0;
  // Whether the kernel has it open or mapped for anybody. REQUIRES (unchecked): nobody opens it meanwhile.
  virtual Result<bool> IsUsed() = 0;
};

class BackingFs {
 public:
  struct Options {
    uint64_t size_bytes_max = 0;  // of all files together, those that are only mapped included; rounded up to a page
  };
  virtual ~BackingFs() = default;  // REQUIRES: its files are gone; what is mapped stays

  // kPermission: that takes CAP_SYS_ADMIN in the first user namespace. kNotSupported: this kernel, or how it is set,
  // gives no huge pages; the message says which.
  static Result<std::unique_ptr<BackingFs>> Open(const Options& options);

  virtual Result<std::unique_ptr<BackingFile>> MakeFile() = 0;
  // Memory of all files, those included that are gone and still mapped.
  virtual Result<uint64_t> UsedBytes() const = 0;
};

}  // namespace cairnfs::io
