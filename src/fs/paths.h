// Paths of inodes, for messages. Directory entries are not indexed by inode, so finding some costs one pass over all of
// them: ask for many at once.
#pragma once

#include <map>
#include <set>
#include <string>

#include "base/result.h"
#include "kv/store.h"
#include "meta/namespace.h"

namespace cairnfs::fs {

// The paths ("a/b/c", below the root) of those of `inodes` that a name leads to; of several names, one. A directory on
// the way whose name is not found stands as "#" and its number. As of about now: names may move meanwhile.
Result<std::map<InodeId, std::string>> FindPaths(const Context& context, kv::KvStore& kv, meta::Namespace& names,
                                                 const std::set<InodeId>& inodes);
// The same. After an error, as when the context has expired, `paths` has those that were found by then.
Status FindPaths(const Context& context, kv::KvStore& kv, meta::Namespace& names, const std::set<InodeId>& inodes,
                 std::map<InodeId, std::string>& paths);

// The path of a directory below the root, without a slash at its begin; of the root itself "". kTooLarge: it lies too
// deep, or among too many others.
Result<std::string> PathBelowRoot(const Context& context, meta::Namespace& names, InodeId directory);

}  // namespace cairnfs::fs
