// Who may read a file that takes the place of another one.
#pragma once

#include <string>

namespace cairnfs::client {

// Gives the new file `descriptor`, which nobody but its owner may read yet, the permission bits and the access control
// list of the file `path` that it will replace, and its group. What cannot be had makes it narrower, never wider. Where
// another user owns that file, only those who could read it may read the new one, and nobody else writes to it.
// A symbolic link is followed.
void TakeModeOf(const std::string& path, int descriptor);

}  // namespace cairnfs::client
