#include "fs/loss_witnesses.h"

#include <unistd.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

std::string ReadProc(pid_t id, const char* file) {
  std::ifstream in("/proc/" + std::to_string(id) + "/" + file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// Of a thread; the thread itself where that is not known.
pid_t ProcessOf(pid_t thread) {
  const std::string text = ReadProc(thread, "status");
  const size_t at = text.find("\nTgid:");
  if (at == std::string::npos) return thread;
  std::istringstream words(text.substr(at + 6));
  pid_t process = 0;
  return words >> process ? process : thread;
}

// Whether a process of the session was there by then. Its first one may have ended since.
bool SessionIsOlder(pid_t session, uint64_t ticks) {
  if (const auto leader = ParseProcessStat(ReadProc(session, "stat"))) return leader->started_ticks <= ticks;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
    pid_t process = 0;
    if (!(std::istringstream(entry->path().filename().string()) >> process)) continue;
    const auto start = ParseProcessStat(ReadProc(process, "stat"));
    if (start && start->session == session && start->started_ticks <= ticks) return true;
  }
  return false;
}

uint64_t TicksSinceBoot() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const auto per_second = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
  return static_cast<uint64_t>(now.tv_sec) * per_second +
         static_cast<uint64_t>(now.tv_nsec) * per_second / 1'000'000'000;
}

}  // namespace

// "pid (name) state ppid pgrp session ... starttime": proc(5), fields 6 and 22. A name may hold blanks and parentheses.
std::optional<ProcessStart> ParseProcessStat(const std::string& text) {
  constexpr int kSessionField = 6, kStartField = 22, kFirstAfterName = 3;
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream words(text.substr(name_end + 1));
  ProcessStart start;
  std::string word;
  for (int field = kFirstAfterName; field < kStartField; field++) {
    if (!(words >> word)) return std::nullopt;
    if (field == kSessionField && !(std::istringstream(word) >> start.session)) return std::nullopt;
  }
  if (!(words >> start.started_ticks)) return std::nullopt;
  return start;
}

void LossWitnesses::NoteLoss() {
  MutexLock lock(mutex_);
  lost_ticks_ = TicksSinceBoot();
  told_processes_.clear();
  known_sessions_.clear();
  has_loss_ = true;
}

Status LossWitnesses::Tell(uint32_t thread) {
  if (!has_loss_) return {};
  pid_t process = thread == 0 ? 0 : ProcessOf(static_cast<pid_t>(thread));
  const auto own = ParseProcessStat(ReadProc(process, "stat"));
  if (!own) process = 0;
  MutexLock lock(mutex_);
  const bool tells_process = (!own || own->started_ticks <= lost_ticks_) && told_processes_.insert(process).second;
  const bool tells_session =
      own && known_sessions_.insert(own->session).second && SessionIsOlder(own->session, lost_ticks_);
  if (!tells_process && !tells_session) return {};
  spdlog::warn("process {} is told that bytes that were closed are lost", process);
  return MakeError(ErrorCode::kIo,
                   "bytes that were closed on this host and not synced are lost, or cannot be made durable (the log "
                   "names the files): look whether they are yours; the next call is carried out");
}

}  // namespace cairnfs::fs
