#include "base/start_thread.h"

#include <pthread.h>
#include <signal.h>

#include <new>
#include <system_error>
#include <utility>

namespace cairnfs {

Result<std::thread> StartThread(const std::string& purpose, std::function<void()> run, ErrorCode refused) {
  // Made first: later there may be no memory for it.
  Result<std::thread> result =
      MakeError(refused, "no thread can be started for " + purpose +
                             "; the limit on threads of this process or machine is too low, or memory is short");
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    result = std::thread(std::move(run));
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace cairnfs
