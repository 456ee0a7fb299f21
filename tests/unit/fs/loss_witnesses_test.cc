#include "fs/loss_witnesses.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace cairnfs::fs {
namespace {

// A process that waits, in this session or in one of its own.
class Child {
 public:
  explicit Child(bool own_session) {
    int ready[2];
    if (pipe(ready) != 0) abort();
    pid_ = fork();
    if (pid_ == 0) {
      if (own_session) setsid();
      const ssize_t told = write(ready[1], "x", 1);
      for (;;) pause();
      _exit(told == 1 ? 0 : 1);
    }
    char byte;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// Starts are told in ticks of 10 ms.
void PassTicks() { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }

TEST(LossWitnesses, ReadsWhatProcSays) {
  const auto start = ParseProcessStat(
      "42 (a (strange) name) S 1 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 200 18446744073709551615\n");
  ASSERT_TRUE(start);
  EXPECT_EQ(start->session, 39);
  EXPECT_EQ(start->started_ticks, 123456U);
  EXPECT_FALSE(ParseProcessStat(""));
  EXPECT_FALSE(ParseProcessStat("42 (short) S 1 40"));
}

TEST(LossWitnesses, AProcessThatLivedThroughItIsToldOnce) {
  LossWitnesses witnesses;
  EXPECT_TRUE(witnesses.Tell(getpid()).ok());
  witnesses.NoteLoss();
  EXPECT_EQ(witnesses.Tell(getpid()).error().code, ErrorCode::kIo);
  EXPECT_TRUE(witnesses.Tell(getpid()).ok());
  EXPECT_FALSE(witnesses.Tell(0).ok());
  EXPECT_TRUE(witnesses.Tell(0).ok());
  witnesses.NoteLoss();
  EXPECT_FALSE(witnesses.Tell(getpid()).ok());
}

TEST(LossWitnesses, ACommandOfASessionThatLivedThroughItIsTold) {
  LossWitnesses witnesses;
  witnesses.NoteLoss();
  PassTicks();
  const Child next(/*own_session=*/false), another(/*own_session=*/false);
  EXPECT_FALSE(witnesses.Tell(next.pid()).ok());
  EXPECT_TRUE(witnesses.Tell(next.pid()).ok());
  EXPECT_TRUE(witnesses.Tell(another.pid()).ok()) << "its session knows by now";
  EXPECT_FALSE(witnesses.Tell(getpid()).ok()) << "it may have been the one that wrote";
}

TEST(LossWitnesses, WhatWasStartedSinceIsNotTold) {
  LossWitnesses witnesses;
  witnesses.NoteLoss();
  PassTicks();
  const Child fresh(/*own_session=*/true);
  EXPECT_TRUE(witnesses.Tell(fresh.pid()).ok());
}

}  // namespace
}  // namespace cairnfs::fs
