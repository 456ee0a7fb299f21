#pragma once

#include "base/context.h"
#include "meta/commit_record.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// Regular files below the directory, by their names, and the sum of their sizes as published. Waits for the store.
Result<meta::CommitPart::Totals> CountBelow(const Context& context, meta::Namespace& names, kv::KvStore& kv,
                                            InodeId directory);

}  // namespace cairnfs::fs
