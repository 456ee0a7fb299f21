// Users, as messages name them.
#pragma once

#include <sys/types.h>

#include <string>

namespace cairnfs {

// "cairnfs (uid 998)", or "uid 998" when the system knows no name.
std::string UserName(uid_t uid);
// What chown(1) takes: the name, or the number.
std::string UserWord(uid_t uid);

}  // namespace cairnfs
