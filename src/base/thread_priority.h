// Which threads give way when cores are short.
#pragma once

#include <functional>

namespace cairnfs {

// Makes the calling thread, and those that it starts from now on, give way to others: SCHED_BATCH, so that its waking
// up interrupts nobody, and a nice value of 10. For copies of chunks to and for other nodes, since no call of a trainer
// waits for these. There is no way back without privileges. Where the system refuses, the thread stays as it is.
void MakeThreadBackground();

// Runs `function` on such a thread and waits for its end: threads that a library starts inherit from it.
void RunInBackground(const std::function<void()>& function);

}  // namespace cairnfs
