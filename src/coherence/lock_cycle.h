// Deadlocks of record locks: owners on any hosts that wait for each other in a cycle.
//
// Every wait stands in its host's record in the shared store, and so does every lock. So all records of one revision
// show each cycle that there is. A lock that an owner with one thread waits for does not change what the owner holds.
// So the wait that is written last closes the cycle, and its host sees all of it if it reads the records after that.
#pragma once

#include <string>
#include <vector>

#include "base/types.h"
#include "coherence/lock_table.h"
#include "kv/store.h"

namespace cairnfs::coherence {

struct LockCycleRecord {
  std::string key;
  uint64_t revision = 0;
};

// The records that hold the locks and waits of a cycle. While none of them has changed the cycle stands.
using LockCycle = std::vector<LockCycleRecord>;

// A cycle of more records is not found: a transaction compares them all. Linux looks at ten owners.
inline constexpr size_t kLockCycleRecordsMax = 100;

// The shortest cycle through `wanted`, for which its owner waits in the inode; empty when there is none. `records` are
// those of all hosts and inodes, of one revision and in the order of their keys. One that does not decode counts as
// empty.
LockCycle FindLockCycle(const std::vector<kv::KvEntry>& records, InodeId inode, const FileLock& wanted);

}  // namespace cairnfs::coherence
