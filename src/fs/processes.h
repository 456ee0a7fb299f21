// What /proc tells of the processes whose requests the kernel sends. A thread is named as a FUSE request names it; 0 is
// one that cannot be seen, of another pid namespace.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace cairnfs::fs {

// Of the text of a /proc/TID/stat; nullopt: it is none.
struct ThreadEnd {
  bool is_exiting = false;
  bool by_signal = false;  // that it died of
};
std::optional<ThreadEnd> ParseThreadStat(const std::string& text);

// All of these read /proc; any thread.
// The process of a thread; the thread itself where that is not known.
pid_t ProcessOf(uint32_t thread);
// Its name, 15 bytes at most; empty: it cannot be seen.
std::string CommandOf(uint32_t thread);
bool IsAlive(pid_t process);
// Whether the thread closes its files because a signal ends its process.
bool DiesBySignal(uint32_t thread);

}  // namespace cairnfs::fs
