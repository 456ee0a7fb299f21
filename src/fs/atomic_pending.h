// A file that is being written and has no name yet. Of AtomicFiles alone.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "base/clock.h"
#include "fs/atomic_files.h"

namespace cairnfs::fs {

struct AtomicFiles::Pending {
  const InodeId inode;
  const InodeId directory;
  const std::string name;
  const ProcessId process;  // that opened it, and whose last close gives it the name
  const Credentials opener;
  const std::optional<InodeId> replaces;  // what the name led to; nullopt: nothing
  const bool must_be_complete;
  const HandleId kept_open;
  const Clock::time_point made_at;

  // All of these are guarded by AtomicFiles::mutex_.
  bool is_opened = false;             // for writing
  std::set<HandleId> writers = {};    // that are open
  bool is_killed = false;             // the process died by a signal, or cannot be seen
  bool is_closed = false;             // by the process, which seemed to have it open otherwise still
  bool is_ending = false;             // its last close has begun
  std::optional<Error> failure = {};  // of a write
};

// kNotSupported.
inline Error CannotBeSeen(std::string_view name) {
  return MakeError(ErrorCode::kNotSupported,
                   "'" + std::string(name) +
                       "' is to appear whole, and the daemon cannot see the process that writes it, nor how it ends: "
                       "let the daemon run in the same pid namespace, or one above");
}

}  // namespace cairnfs::fs
