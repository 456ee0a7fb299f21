// Tells the kernel of files that it is to read and map in place of files of the mount: FUSE passthrough, Linux 6.9. An
// answer to OPEN names such a file by its id.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "fs/backing_registry.h"
#include "fuse/device.h"

namespace cairnfs::fuse {

// Any thread.
class BackingIds final : public fs::BackingRegistry {
 public:
  explicit BackingIds(const Device& device) : device_(device) {}  // which outlives it

  Result<fs::BackingId> Register(int fd) override;
  void Unregister(fs::BackingId id) override;

 private:
  const Device& device_;
};

}  // namespace cairnfs::fuse
