// What was removed and can be restored (docs/decisions/trash.md): an inode without a link that is no orphan, because a
// record of the trash stands for it. An entry is one file, or a directory with all that is below it.
//
//   t <ns be64> <ino be64>   the entry: removed at that time, in nanoseconds since 1970. So the oldest comes first
//   t 0 <ino be64>           a directory that was in the trash, and is being removed with all that is below it: nobody
//                            can restore it any more
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::meta {

struct TrashRecord {
  Timestamp expires = {};
  uint32_t type = 0;          // S_IFMT bits
  uint32_t owner = 0;         // uid of what was removed, when it was
  uint32_t parent_owner = 0;  // uid of the directory that it lay in
  uint32_t removed_by = 0;    // uid
  bool by_retention = false;  // else by a call, on a mount with the option `trash`
  uint64_t files = 0;         // what is no directory
  uint64_t bytes = 0;         // of these, as allocated
  InodeId parent = {};        // in which it lay
  std::string name = {};      // under which

  std::string Encode() const;
  static Result<TrashRecord> Decode(std::string_view value);
};

struct TrashKeyParts {
  uint64_t removed_at_ns = 0;  // 0: it is being removed
  InodeId inode;
};

inline constexpr char kTrashLetter = 't';
std::string TrashPrefix();
std::string TrashKey(const TrashKeyParts& parts);
std::string DoomedKey(InodeId directory);
std::optional<TrashKeyParts> DecodeTrashKey(std::string_view key);
Timestamp TimeOfTrashKey(const TrashKeyParts& parts);

}  // namespace cairnfs::meta
