// What repair is to look for, besides what changes of the nodes tell.
#pragma once

#include <atomic>
#include <cstdint>

namespace cairnfs::cluster {

struct RepairNeeds {
  std::atomic<uint64_t> under_replicated{0};  // chunks that ended with too few copies
  std::atomic<uint64_t> in_few_domains{0};    // that were in fewer failure domains than there might be
  std::atomic<bool> updates_dropped{false};   // of who holds a chunk, that a node should have been told
  std::atomic<bool> surplus{false};           // a chunk got more copies than it needs
  uint64_t count() const { return under_replicated.load() + in_few_domains.load(); }
};

}  // namespace cairnfs::cluster
