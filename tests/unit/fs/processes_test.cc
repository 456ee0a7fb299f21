// What /proc tells of processes that write and close.
#include "fs/processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "../../support/eventually.h"

namespace cairnfs::fs {
namespace {

// The fields of a /proc/PID/stat, with these flags and this exit code.
std::string Stat(const std::string& flags, const std::string& exit_code) {
  std::string text = "42 (a (strange) name) S 1 40 39 0 -1 " + flags;
  for (int field = 10; field < 52; field++) text += " 7";
  return text + " " + exit_code + "\n";
}

TEST(Processes, AnEndingByASignalIsToldFromAnExit) {
  const auto runs = ParseThreadStat(Stat("4194560", "0"));
  ASSERT_TRUE(runs);
  EXPECT_FALSE(runs->is_exiting);
  const auto exits = ParseThreadStat(Stat("4194564", "256"));
  ASSERT_TRUE(exits);
  EXPECT_TRUE(exits->is_exiting);
  EXPECT_FALSE(exits->by_signal);
  const auto killed = ParseThreadStat(Stat("4194564", "9"));
  ASSERT_TRUE(killed);
  EXPECT_TRUE(killed->is_exiting);
  EXPECT_TRUE(killed->by_signal);
  EXPECT_FALSE(ParseThreadStat(""));
  EXPECT_FALSE(ParseThreadStat("42 (short) S 1 40"));
  EXPECT_FALSE(ParseThreadStat(Stat("4194564", "")));
}

TEST(Processes, AThreadIsOfItsProcess) {
  std::promise<uint32_t> started;
  std::promise<void> end;
  std::thread thread([&] {
    started.set_value(static_cast<uint32_t>(gettid()));
    end.get_future().wait();
  });
  EXPECT_EQ(ProcessOf(started.get_future().get()), getpid());
  end.set_value();
  thread.join();
  EXPECT_EQ(ProcessOf(0), 0) << "one that cannot be seen";
}

TEST(Processes, WhoHasEndedIsGone) {
  EXPECT_TRUE(IsAlive(getpid()));
  EXPECT_FALSE(DiesBySignal(static_cast<uint32_t>(getpid())));
  const pid_t child = fork();
  if (child == 0) {
    for (;;) pause();
  }
  EXPECT_TRUE(IsAlive(child));
  kill(child, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return !IsAlive(child); })) << "a zombie has closed its files";
  EXPECT_TRUE(DiesBySignal(static_cast<uint32_t>(child)));
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(IsAlive(child));
}

// One whose user is another, as a daemon that is not root's sees it.
TEST(Processes, AnEndThatIsNotShownCountsAsASignals) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes other users";
  constexpr uid_t kOne = 1234, kOther = 4321;
  const pid_t child = fork();
  if (child == 0) _exit(setuid(kOne) == 0 ? 0 : 1);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  ASSERT_EQ(info.si_status, 0);
  EXPECT_FALSE(EndOf(static_cast<uint32_t>(child))->by_signal) << "root sees that it was an exit";
  const pid_t reader = fork();
  if (reader == 0) {
    const auto end = setuid(kOther) == 0 ? EndOf(static_cast<uint32_t>(child)) : std::nullopt;
    _exit(end && end->is_exiting && end->by_signal ? 0 : 1);
  }
  int status = -1;
  waitpid(reader, &status, 0);
  EXPECT_EQ(status, 0);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace cairnfs::fs
