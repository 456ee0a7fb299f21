// QuotaWalk: puts all that lies below a directory under a quota, or takes it from it.
//
// A directory goes before what it holds. From then on what is made in it falls under the quota by itself, and nothing
// comes in or goes out by a rename that does not. So a list of it that is read afterwards, as of one moment, has all
// that is left to do, whatever is renamed in it meanwhile.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fs/services.h"

namespace cairnfs::fs {

class QuotaWalk {
 public:
  // Called after each inode, and asked whether to go on.
  using GoOn = std::function<Status(uint64_t inodes)>;
  QuotaWalk(const Services& services, GoOn go_on) : at_(services), go_on_(std::move(go_on)) {}

  struct Survey {
    meta::QuotaBytes used;            // by what is published
    std::string linked_from_outside;  // a file below the directory that has a name elsewhere too; empty: none
  };
  // What there is below the directory.
  Result<Survey> Look(const Context& context, InodeId directory);
  // `quota`: 0 takes it all from the one that it falls under. May be called again after it has failed.
  // kInvalidArgument: a directory below that has a quota of its own, which can only have come there meanwhile; where it
  // is taken all the same, that is left alone. A file whose content cannot be read holds up no other: it is told at the
  // end; where it is taken, it counts for the quota that it had, and the walk does not fail.
  Status Move(const Context& context, InodeId directory, InodeId quota);
  // Has the content of a file count for the quota. Calls `done` perhaps on another thread.
  static void MoveContent(const Services& at, const Context& context, InodeId inode, InodeId quota, Done<void> done);

 private:
  struct Child {
    std::string name;
    InodeId inode;
    uint32_t type = 0;  // S_IFREG or S_IFDIR
  };
  struct Link {
    uint32_t found = 0, all = 0;
    std::string name;
  };
  struct Sums {
    Survey survey;
    std::map<InodeId, Link> links;  // of files with several names
  };
  // The files and directories in it, as of one moment, with all names in memory.
  Result<std::vector<Child>> List(const Context& context, InodeId directory);
  // Visits its files, some at a time, and adds the directories in it.
  Status Visit(const Context& context, InodeId directory, std::vector<InodeId>& directories,
               const std::function<Status(const std::vector<Child>& files)>& visit);
  Status AddFiles(const Context& context, const std::vector<Child>& files, Sums& sums);
  Status MoveFiles(const Context& context, const std::vector<Child>& files, InodeId quota);
  Status SetRecord(const Context& context, InodeId inode, InodeId quota);
  struct Unread {  // files whose content cannot be read
    uint64_t count = 0;
    std::optional<Error> first;
  };
  Status TellUnread(InodeId directory, InodeId quota) const;

  const Services& at_;
  const GoOn go_on_;
  uint64_t count_ = 0;
  Unread unread_;
};

}  // namespace cairnfs::fs
