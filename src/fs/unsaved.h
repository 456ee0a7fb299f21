// Unsaved: what was accepted and is not durable, by file. For a stop that cannot wait until all of it is.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/context.h"
#include "base/types.h"

namespace cairnfs::fs {

struct Services;

struct UnsavedFile {
  InodeId inode;
  std::string path = {};  // below the root; "#" and the inode number as long as none is known
  uint64_t bytes = 0;     // written since it was durable last, at most its size; 0: it was changed in another way
};

// Where a file that is being written, and is to appear whole, gets its name once its writer closes it.
struct PlaceToCome {
  InodeId directory;
  std::string name;
};
using PlacesToCome = std::map<InodeId, PlaceToCome>;  // by the file

struct Unsaved {
  static constexpr size_t kFilesMax = 1000;
  uint64_t bytes = 0, file_count = 0;   // of all
  std::vector<UnsavedFile> files = {};  // the first kFilesMax, those with most bytes first
  bool has_names = false;               // also names, or attributes, that were changed; on a host alone
  // Also some that no sync makes durable any more, and that one may have told already.
  bool has_lost = false;
  // So many of the files are to appear whole and are not closed yet: no sync gives them their names. All of their bytes
  // count.
  uint64_t unclosed_count = 0;
  bool empty() const { return file_count == 0 && !has_names; }
};

// Of the time within which something is to end, what is left for ListUnsaved.
Clock::duration TimeToList(Clock::duration time);

// Calls `tell` twice: first without paths, then with those that were found before the context expired. Files without a
// name are left out, but for those of `to_come`, which have the path that they are to get. Waits for inodes' locks and
// reads names, either of which a stuck disk may hold up for ever.
void ListUnsaved(const Services& at, const PlacesToCome& to_come, const Context& context,
                 const std::function<void(const Unsaved&)>& tell);

}  // namespace cairnfs::fs
