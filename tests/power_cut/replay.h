// Builds what a disk may hold after the power went.
//
// Fault model. The disk has a volatile cache. A flush that was answered puts everything that was written before it on
// stable storage, for good. Of the writes after the last flush before the cut
//   - each may be there, or not, whatever became of the others;
//   - one may be there in part: each of its sectors of 512 bytes is old or new, and no sector is torn;
//   - where several hit one sector, any of them may be the one that stayed.
// Nothing is ever there that was not written, and nothing changes that was safe: no bit rot, no misdirected writes, no
// disk that lies about a flush. With two disks a flush of one says nothing about the other. A write is safe from the
// first flush that follows it in the log; the server answers one request after the other, so a flush that overtakes a
// write in flight is not modelled.
#pragma once

#include <string>

#include "../support/random.h"
#include "device_log.h"

namespace cairnfs::testing {

class Replay {
 public:
  // Files of one device, by number: `base`, the image before the log began; `safe` is made from it and moved forward.
  struct Images {
    std::string base, safe, cut;
  };
  Replay(const DeviceLog& log, const std::vector<Images>& images);
  // Writes to each `cut` what may be there when the power goes after `position` entries. REQUIRES: positions rise from
  // call to call. Returns in words what became of the writes that no flush covered.
  std::string Cut(uint64_t position, Random& random);

 private:
  std::string CutDevice(uint32_t device, uint64_t position, Random& random);

  const DeviceLog& log_;
  std::vector<Images> images_;
  std::vector<uint64_t> applied_;  // entries looked at, by device
};

// Copies data and leaves out holes, into a new file: an ext4 of the old one may outlive its umount(2) for as long as
// some process has a mount namespace of that time (`ip -n` makes one), and writes its superblock when it goes.
void CopySparse(const std::string& from, const std::string& to);

}  // namespace cairnfs::testing
