// What cairnfs_loader is: reads ranges of a file into memory of the host and of devices.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairnfs/client.h"
#include "client/crew.h"
#include "client/device.h"
#include "client/ring.h"

namespace cairnfs::client {

class Loader {
 public:
  // kInvalidArgument.
  static Result<std::unique_ptr<Loader>> Open(const cairnfs_loader_options& options, Devices& devices);
  ~Loader();
  Loader(const Loader&) = delete;

  // See cairnfs_load. Any thread; calls run one after the other.
  Status Load(const cairnfs_load_request& request);

 private:
  struct Part {  // of a read; at most kPartBytes
    const cairnfs_read* read;
    uint64_t at;
    uint64_t bytes;
  };
  Loader(const cairnfs_loader_options& options, Devices& devices);
  Status Prepare(const cairnfs_load_request& request) REQUIRES_LOCK(mutex_);
  Status ReadAll(const cairnfs_load_request& request, int descriptor) REQUIRES_LOCK(mutex_);
  Status ReadPart(const cairnfs_load_request& request, const Part& part, int descriptor, unsigned thread);
  Status ReadToDevice(const cairnfs_load_request& request, const Part& part, int descriptor, StreamHandle stream);

  const cairnfs_loader_options options_;
  const unsigned readers_;
  Devices& devices_;
  Mutex mutex_;  // held by the call that runs
  Ring ring_;
  std::map<int32_t, std::vector<StreamHandle>> streams_;  // by device; thread i uses one that is its own
};

}  // namespace cairnfs::client
