// What cairnfs_saver is: it starts saves one after the other, and keeps what the next one needs.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cairnfs/client.h"
#include "client/save_job.h"

namespace cairnfs::client {

class Saver {
 public:
  // kInvalidArgument.
  static Result<std::unique_ptr<Saver>> Open(const cairnfs_saver_options& options, Devices& devices);
  ~Saver();  // waits for a save that runs
  Saver(const Saver&) = delete;

  // See cairnfs_save_start. Any thread.
  Result<std::shared_ptr<SaveOutcome>> Start(const cairnfs_save_request& request);

 private:
  class Beginning;
  Saver(const cairnfs_saver_options& options, Devices& devices);
  void AwaitEarlier() REQUIRES_LOCK(mutex_);
  Status ReserveMemory(const Layout& layout) REQUIRES_LOCK(mutex_);
  Status BeginDevices(Layout& layout, const cairnfs_save_request& request) REQUIRES_LOCK(mutex_);

  const cairnfs_saver_options options_;
  const unsigned writers_;
  Devices& devices_;
  Mutex mutex_;  // held while a save is being started
  std::thread job_ GUARDED_BY(mutex_);
  // Used by the save that runs; by others once job_ is joined.
  Ring ring_;
  OrdinaryMemory scratch_;
  std::map<int32_t, std::unique_ptr<DeviceSide>> sides_;
  std::optional<Fingerprints> fingerprints_;
};

}  // namespace cairnfs::client
