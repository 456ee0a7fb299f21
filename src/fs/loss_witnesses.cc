#include "fs/loss_witnesses.h"

#include <unistd.h>

#include <ctime>
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
    if (field == kSessionField) start.session = static_cast<pid_t>(std::stol(word));
  }
  if (!(words >> start.started_ticks)) return std::nullopt;
  return start;
}

void LossWitnesses::NoteLoss() {
  MutexLock lock(mutex_);
  lost_ticks_ = TicksSinceBoot();
  told_processes_.clear();
  told_sessions_.clear();
  has_loss_ = true;
}

Status LossWitnesses::Tell(pid_t thread) {
  if (!has_loss_) return {};
  const pid_t process = thread == 0 ? 0 : ProcessOf(thread);
  const auto own = ParseProcessStat(ReadProc(process, "stat"));
  const pid_t session = own ? own->session : 0;
  // A session whose first process has ended is as old as any.
  const auto leader = ParseProcessStat(ReadProc(session, "stat"));
  MutexLock lock(mutex_);
  const bool is_old = !own || own->started_ticks <= lost_ticks_;
  const bool is_session_old = !leader || leader->started_ticks <= lost_ticks_;
  const bool tells_process = is_old && told_processes_.insert(process).second;
  const bool tells_session = is_session_old && told_sessions_.insert(session).second;
  if (!tells_process && !tells_session) return {};
  spdlog::warn("process {} is told that closed bytes were lost with this host's session", process);
  return MakeError(ErrorCode::kIo,
                   "this host lost its session with the cluster, and with it bytes that were closed and not synced "
                   "(the log names the files): look whether they are yours; the next call is carried out");
}

}  // namespace cairnfs::fs
