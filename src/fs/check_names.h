// The part of a check that looks at names: each leads to an inode of its type, and each inode has as many links as
// names lead to it.
#pragma once

#include "fs/findings.h"
#include "kv/store.h"

namespace cairnfs::fs {

// Beside everything else: what looks wrong is looked at again, by itself, until its record did not change meanwhile.
// Counts inodes into `report`.
Status CheckNames(const Context& context, kv::KvStore& kv, Findings& findings, CheckReport& report);

}  // namespace cairnfs::fs
