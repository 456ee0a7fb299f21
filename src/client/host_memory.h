// What of the process's memory may be touched: so that a tensor that was freed is an error that names it, and no
// SIGSEGV in a thread of the library.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "client/address_ranges.h"

namespace cairnfs::client {

class HostMemory {
 public:
  // As it is now, by one reading of /proc/self/maps: some milliseconds where there are thousands of mappings. Where
  // that file is not there, all memory counts as good.
  static HostMemory Now();

  enum class Use { kRead, kWrite };
  // kStale: not all of [data, data + bytes) is mapped and may be used so. The message begins with `what`. Not seen: a
  // file's mapping past the file's end, and what changed since.
  Status Check(const void* data, uint64_t bytes, Use use, const std::string& what) const;

 private:
  struct Mapping {
    AddressRange range;
    bool may_read;
    bool may_write;
  };
  HostMemory() = default;
  void AddLine(std::string_view line);

  bool is_known_ = false;
  std::vector<Mapping> mappings_;  // in the order of addresses
};

}  // namespace cairnfs::client
