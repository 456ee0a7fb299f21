// LiveConfig: the options that can change while the filesystem is mounted, and how they do.
#pragma once

#include "base/context.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "control/service.h"
#include "daemon/any_volume.h"
#include "daemon/config.h"
#include "fs/filesystem.h"

namespace cairnfs::daemon {

// The configuration after a remount. Keys that the call does not name stay as they are, and so do the data directory
// and the mount point, by which it was found. kInvalidArgument: the call gives a key that cannot change another value;
// or as of ReadConfigFile and ApplyMountOptions.
Result<Config> ConfigAfter(const Config& running, const control::RemountCall& call);

class LiveConfig final : public control::RemountControl {
 public:
  // Both outlive it.
  LiveConfig(const Config& config, AnyVolume& volume, fs::FileSystem& filesystem)
      : volume_(volume), filesystem_(filesystem), config_(config) {}

  Result<control::RemountReport> Look(const control::RemountCall& call) override EXCLUDES_LOCK(mutex_);
  Status Remount(const Context& context, const control::RemountCall& call) override EXCLUDES_LOCK(mutex_);

 private:
  Status Change(const Context& context, const Config& config);

  AnyVolume& volume_;
  fs::FileSystem& filesystem_;
  Mutex mutex_;  // one remount at a time
  Config config_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::daemon
