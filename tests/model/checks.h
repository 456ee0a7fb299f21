// Comparison of the two sides: one entry after each step, whole trees now and then.
#pragma once

#include <string>
#include <vector>

#include "world.h"

namespace cairnfs::testing {

// What differs, in sentences; empty: nothing.
using Findings = std::vector<std::string>;

// Attributes, xattrs and content of what stands at `path` on both sides. Of a large file only what lies around
// `offset`, and its ends, unless `whole`.
Findings CompareEntry(int plain_root, int mount_root, const std::string& path, uint64_t offset, bool whole);
// Two open descriptors of the same slot.
Findings CompareDescriptors(int plain, int mount, uint64_t offset);
// Everything below `path`, with whole contents. Stops after a handful of findings.
Findings CompareTrees(int plain_root, int mount_root, const std::string& path);

std::string CounterName(unsigned how);
// A record of fixed size that can be recognised and holds its own checksum.
std::string AppendRecord(unsigned worker, uint64_t content);
// Sums over what the processes did together on one side: records whole and all there, counters right, races won once.
Findings CheckShared(int shared_root, const SharedTotals& totals, unsigned phase);

}  // namespace cairnfs::testing
