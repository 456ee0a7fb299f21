// Tells the kernel of files that it is to read and map in place of files of the mount: FUSE passthrough, Linux 6.9. An
// answer to OPEN names such a file by its id.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "base/result.h"
#include "fs/backing_registry.h"
#include "fuse/device.h"

namespace cairnfs::fuse {

// Any thread.
class BackingIds final : public fs::BackingRegistry {
 public:
  // `forget_attributes` tells the kernel of one of its node ids. The device outlives it.
  BackingIds(const Device& device, std::function<void(uint64_t node)> forget_attributes)
      : device_(device), forget_attributes_(std::move(forget_attributes)) {}

  Result<fs::BackingId> Register(int fd) override;
  void Unregister(fs::BackingId id) override;
  void ForgetAttributes(InodeId inode) override;

 private:
  const Device& device_;
  const std::function<void(uint64_t node)> forget_attributes_;
};

}  // namespace cairnfs::fuse
