// OpenModes: which opens of a file the kernel serves itself, from its file in memory (FUSE passthrough).
//
// The kernel's rule: of the opens of one node id, from the first to the last close, all are passed to such a file or
// none is. So a file has two node ids. Its own one has either mode, as the first open decides. The one *beside* it is
// for who cannot be passed while others are: a writer, say. All opens of that are ordinary.
//
// Ordinary opens exist by one of the two ids at a time: the kernel keeps pages of mapped files by id, and drops them
// when the file is written by that id.
//
// A file is known by its own id as long as that will do, since the kernel drops what it knows of a name whose id
// changes. Who comes to the wrong one is sent to the other: with ESTALE, upon which the kernel looks the name up anew.
// Some open a file without a look-up (a mount of the file alone, /proc/PID/fd, a file handle), and so come again to the
// same id.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

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
  // For so long an id is named to everybody after somebody was sent there, who needs microseconds; and for half of that
  // time nothing is opened that would be in his way. Who is sent because of that has the other half.
  static constexpr std::chrono::milliseconds kSentFor{1000};

  struct Asked {
    bool may_pass = false;    // whenever the file is in memory
    bool only_reads = false;  // and not from the disk
    bool is_beside = false;   // by that id
    uint32_t thread = 0;      // that asks; 0: it is not known
  };
  // How the open is to be answered. nullopt: it is to be sent to the other id. `backing`: the inode's, or null.
  std::optional<OpenMode> Decide(const Asked& asked, const Backing* backing);
  // An open that was answered so, until its release.
  void NoteOpened(OpenMode mode, uint32_t thread = 0);
  void NoteReleased(OpenMode mode) { CountOf(mode)--; }

  // Whether the thread, which looks the file up, is to get the id beside.
  bool NamesBeside(const Backing* backing, uint32_t thread = 0);
  // Whether the file is to be cut by the other id, when it is by its name. Who has it open the ordinary way may map it,
  // and append at the end that the kernel knows by his id.
  bool MustCutElsewhere(bool is_beside) const { return (is_beside ? ordinary_count_ : beside_count_) > 0; }
  // Whether anybody was ever sent to it.
  bool has_sent() const { return sent_ != nullptr && sent_->beside_at.has_value(); }

 private:
  static constexpr size_t kThreadsMax = 16;
  struct SentThread {
    uint32_t thread;
    Clock::time_point at;
  };
  struct Sent {
    std::optional<Clock::time_point> beside_at, back_at;  // the last
    // That have opened nothing since; the last kThreadsMax, of those the oldest first.
    std::vector<SentThread> threads;
  };
  SentThread* FindSent(uint32_t thread);
  void ForgetSent(uint32_t thread);
  // `at`: null where nobody is there whom others must follow.
  void NoteSent(std::optional<Clock::time_point> Sent::*at, uint32_t thread);
  // Whether anybody was sent there, and not longer ago.
  bool WasSent(std::optional<Clock::time_point> Sent::*at, Clock::duration within) const {
    return sent_ != nullptr && IsWithin((*sent_).*at, within);
  }
  // Whether it was sent a moment ago, and so has found no other id.
  bool ComesAgain(uint32_t thread);

  uint32_t& CountOf(OpenMode mode) {
    if (mode == OpenMode::kPassed) return passed_count_;
    return mode == OpenMode::kOrdinary ? ordinary_count_ : beside_count_;
  }
  static bool IsWithin(const std::optional<Clock::time_point>& sent_at, Clock::duration time) {
    return sent_at && Clock::Now() - *sent_at < time;
  }

  uint32_t passed_count_ = 0, ordinary_count_ = 0;  // by its own id: one of the two is 0
  uint32_t beside_count_ = 0;                       // 0 too where there are ordinary ones by its own id
  std::unique_ptr<Sent> sent_;                      // null: nobody ever was, as of nearly every file
};

}  // namespace cairnfs::fs
