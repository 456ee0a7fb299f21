// OpenModes: which opens of a file the kernel serves itself, from its file in memory (FUSE passthrough).
//
// The kernel's rule: of the opens of one node id, from the first to the last close, all are passed to such a file or
// none is. So a file has two node ids. Its own one has either mode, as the first open decides. The one *beside* it is
// for who cannot be passed while others are: a writer, say. All opens of that are ordinary.
//
// A file is known by its own id as long as that will do, since the kernel drops what it knows of a name whose id
// changes. Who comes to the wrong one is sent to the other: with ESTALE, upon which the kernel looks the name up anew.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "fs/backing.h"

namespace cairnfs::fs {

enum class OpenMode : uint8_t {
  kOrdinary,  // the daemon is asked
  kPassed,    // the kernel reads and maps the file in memory
  kBeside,    // ordinary, by the node id beside
};

// Of one inode, and guarded by its lock.
class OpenModes {
 public:
  // For so long the id beside is named to everybody after somebody was sent there. He needs microseconds.
  static constexpr std::chrono::seconds kSentFor{1};

  struct Asked {
    bool may_pass = false;   // for reading alone, and from memory
    bool is_beside = false;  // by that id
  };
  // How the open is to be answered. nullopt: it is to be sent to the id beside. `backing`: the inode's, or null.
  std::optional<OpenMode> Decide(const Asked& asked, const Backing* backing);
  // An open that was answered so, until its release.
  void NoteOpened(OpenMode mode) { (mode == OpenMode::kBeside ? beside_count_ : own_count_)++; }
  void NoteReleased(OpenMode mode) { (mode == OpenMode::kBeside ? beside_count_ : own_count_)--; }

  // Whether who looks the file up is to get the id beside.
  bool NamesBeside(const Backing* backing) const;

 private:
  static bool IsPassed(const Backing* backing) { return backing != nullptr && backing->open_count() > 0; }

  uint64_t own_count_ = 0, beside_count_ = 0;
  std::optional<Clock::time_point> sent_at_;  // the last
};

}  // namespace cairnfs::fs
