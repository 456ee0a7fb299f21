// One process of the model test: carries out operations on both sides and compares after each.
#pragma once

#include <atomic>
#include <string>

#include "checks.h"
#include "operation.h"

namespace cairnfs::testing {

// In memory that all processes share.
struct Totals {
  std::atomic<uint64_t> tried[kKindCount], succeeded[kKindCount];
  std::atomic<uint64_t> mismatches;
  SharedTotals plain_shared, mount_shared;
};

struct WorkerOptions {
  std::string plain, mount;  // directories of both sides; subtrees "w<n>" and "shared" exist below
  uint64_t seed = 0;         // of this worker in this phase
  uint64_t operations = 0;
  unsigned worker = 0, worker_count = 1, phase = 0;
  uint64_t compare_every = 2500;  // whole trees
  unsigned mismatches_max = 3;    // gives up after as many
  bool control = false;           // neither side is CairnFS
  bool verbose = false;           // prints each operation before it is carried out
};

// Returns true when both sides agreed all the time.
bool RunWorker(const WorkerOptions& options, Totals& totals);

}  // namespace cairnfs::testing
