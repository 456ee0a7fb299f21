// The names that files have while they are written, and what savers that died left under such names.
#pragma once

#include <string>

#include "base/result.h"

namespace cairnfs::client {

// "NAME.tmp-" for a file NAME of that directory; of a NAME that leaves no room for more, its beginning.
std::string TemporaryPrefix(int directory, const std::string& name);
// A new name that begins so.
std::string TemporaryName(const std::string& prefix);

// Says that the file, just made under a temporary name, is being written, until the last copy of `descriptor` is
// closed, as the death of a process does. False: it is removed already, or somebody else locks it, and another one has
// to be made. Where the file system has no flock(2), nothing is said, and nothing is ever removed.
Result<bool> LockTemporary(int descriptor);

// Removes the files of this user under temporary names that begin so and that nobody is writing. What cannot be removed
// stays.
void RemoveAbandoned(int directory, const std::string& prefix);

}  // namespace cairnfs::client
