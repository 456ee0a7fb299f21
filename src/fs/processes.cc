#include "fs/processes.h"

#include <fstream>
#include <sstream>

namespace cairnfs::fs {
namespace {

std::string ReadProc(uint32_t id, const char* file) {
  std::ifstream in("/proc/" + std::to_string(id) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

// "pid (name) state ... flags ... exit_code": proc(5), fields 9 and 52. A name may hold blanks and parentheses. The
// exit code is that of wait(2), set before a thread closes its files; in its low 7 bits is the signal.
std::optional<ThreadEnd> ParseThreadStat(const std::string& text) {
  constexpr int kFirstAfterName = 3, kFlagsField = 9, kExitCodeField = 52;
  constexpr uint64_t kExiting = 0x4;  // PF_EXITING of linux/sched.h
  constexpr uint64_t kSignalMask = 0x7f;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  ThreadEnd end;
  std::string word;
  for (int field = kFirstAfterName; field <= kExitCodeField; field++) {
    if (!(words >> word)) return std::nullopt;
    if (field != kFlagsField && field != kExitCodeField) continue;
    uint64_t value = 0;
    if (!(std::istringstream(word) >> value)) return std::nullopt;
    if (field == kFlagsField) end.is_exiting = (value & kExiting) != 0;
    if (field == kExitCodeField) end.by_signal = (value & kSignalMask) != 0;
  }
  return end;
}

pid_t ProcessOf(uint32_t thread) {
  if (thread == 0) return 0;
  const std::string text = ReadProc(thread, "status");
  const size_t at = text.find("\nTgid:");
  if (at == std::string::npos) return static_cast<pid_t>(thread);
  std::istringstream words(text.substr(at + 6));
  pid_t process = 0;
  return words >> process ? process : static_cast<pid_t>(thread);
}

std::string CommandOf(uint32_t thread) {
  if (thread == 0) return {};
  std::string name = ReadProc(static_cast<uint32_t>(ProcessOf(thread)), "comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

bool IsAlive(pid_t process) {
  if (process == 0) return true;
  const auto end = ParseThreadStat(ReadProc(static_cast<uint32_t>(process), "stat"));
  return end && !end->is_exiting;
}

bool DiesBySignal(uint32_t thread) {
  if (thread == 0) return false;
  const auto end = ParseThreadStat(ReadProc(thread, "stat"));
  return end && end->is_exiting && end->by_signal;
}

}  // namespace cairnfs::fs
