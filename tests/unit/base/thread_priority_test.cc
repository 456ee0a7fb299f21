// Threads that give way, and those that they start.
#include "base/thread_priority.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <future>
#include <thread>

#include "base/task_queue.h"

namespace cairnfs {
namespace {

bool GivesWay() { return sched_getscheduler(0) == SCHED_BATCH && getpriority(PRIO_PROCESS, 0) >= 10; }

TEST(ThreadPriorityTest, ThreadsThatALibraryStartsGiveWay) {
  bool own = false, started = false;
  RunInBackground([&] {
    own = GivesWay();
    std::thread([&] { started = GivesWay(); }).join();
  });
  EXPECT_TRUE(own);
  EXPECT_TRUE(started);
  EXPECT_FALSE(GivesWay());  // who called it goes on as before
}

TEST(ThreadPriorityTest, OnlyQueuesInTheBackgroundGiveWay) {
  for (auto priority : {TaskQueue::Priority::kNormal, TaskQueue::Priority::kBackground}) {
    std::promise<bool> gives_way;
    TaskQueue queue("test", 1, priority);
    queue.Post([&] { gives_way.set_value(GivesWay()); });
    EXPECT_EQ(gives_way.get_future().get(), priority == TaskQueue::Priority::kBackground);
  }
}

}  // namespace
}  // namespace cairnfs
