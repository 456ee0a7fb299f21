// What /proc tells of the processes whose requests the kernel sends. A thread is named as a FUSE request names it; 0 is
// one that cannot be seen, of another pid namespace.
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "base/types.h"

namespace cairnfs::fs {

// Of the text of a /proc/TID/stat; nullopt: it is none.
struct ThreadEnd {
  bool is_exiting = false;
  bool by_signal = false;  // that it died of
  uint64_t started = 0;    // in ticks since the boot
};
std::optional<ThreadEnd> ParseThreadStat(const std::string& text);

// All of these read /proc; any thread.

// Also of a thread that closes a file, before it is answered.
// The process of a thread; the thread itself where that is not known.
pid_t ProcessOf(uint32_t thread);
// The process that has started that one; 0: it cannot be seen.
pid_t ParentOf(uint32_t thread);
// Its name, 15 bytes at most; empty: it cannot be seen.
std::string CommandOf(uint32_t thread);
bool IsAlive(pid_t process);
// nullopt: the thread cannot be seen. One that exits and does not show how (it is another user's, and the daemon is not
// root's) counts as killed. `started` is not told.
std::optional<ThreadEnd> EndOf(uint32_t thread);
// Whether the thread's process has the file of a CairnFS with this inode number open for writing. False where that
// cannot be seen: it is another user's, and the daemon is not root's. True where it has more descriptors than
// kDescriptorsReadMax, and none of the first of them is one of the file.
inline constexpr size_t kDescriptorsReadMax = 16'384;
bool HasOpenForWriting(uint32_t thread, InodeId inode);
// Whether the thread closes its files because a signal ends its process.
bool DiesBySignal(uint32_t thread);

// Not of a thread that closes a file: this may wait for an exec(2), which waits for the answer to that close.
// When it was started, in ticks since the boot: numbers of threads are used again. 0: it cannot be seen.
uint64_t StartOf(uint32_t thread);
// A process, and no later one of the same number.
struct ProcessId {
  pid_t number = 0;
  uint64_t started = 0;
  auto operator<=>(const ProcessId&) const = default;
};
ProcessId ProcessIdOf(uint32_t thread);

}  // namespace cairnfs::fs
