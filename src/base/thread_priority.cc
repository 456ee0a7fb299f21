#include "base/thread_priority.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "base/log.h"

namespace cairnfs {
namespace {

constexpr int kNice = 10;

}  // namespace

void MakeThreadBackground() {
  const sched_param none{};
  const pid_t self = gettid();
  // On Linux a nice value is a thread's own.
  const bool is_background = sched_setscheduler(self, SCHED_BATCH, &none) == 0 &&
                             setpriority(PRIO_PROCESS, static_cast<id_t>(self), kNice) == 0;
  if (!is_background) spdlog::debug("a thread that should give way to others stays as it is");
}

void RunInBackground(const std::function<void()>& function) {
  std::thread([&] {
    MakeThreadBackground();
    function();
  }).join();
}

}  // namespace cairnfs
