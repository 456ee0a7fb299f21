#include "control/rank_door.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <mutex>
#include <set>
#include <vector>

#include "../../support/eventually.h"

namespace cairnfs::control {
namespace {

constexpr uid_t kNobody = 65534;

class RankDoorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/cairnfs-door-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    ASSERT_EQ(chmod(name, 0711), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path() const { return folder_ + "/ranks.sock"; }

  // In another process, as that user if it may become one; it stays until it is killed.
  pid_t ConnectAs(uid_t uid) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Path().c_str(), sizeof address.sun_path - 1);
    const pid_t child = fork();
    if (child != 0) return child;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (geteuid() == 0 && (setgid(uid) != 0 || setuid(uid) != 0)) _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) _exit(2);
    for (;;) pause();
  }

  // From this process. Reads of it do not wait for ever.
  int Connect() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, Path().c_str(), sizeof address.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return fd;
    close(fd);
    return -1;
  }

  std::string folder_;
};

TEST_F(RankDoorTest, TellsWhoConnects) {
  std::promise<int> admitted;
  auto door = RankDoor::Open(Path(), [&](int connection) { admitted.set_value(connection); });
  ASSERT_TRUE(door.ok()) << door.error().message;
  const pid_t child = ConnectAs(kNobody);
  auto connection = admitted.get_future();
  ASSERT_TRUE(IsReadyWithin(connection, std::chrono::seconds(30)));
  const int fd = connection.get();
  auto caller = (*door)->CallerOf("fd:" + std::to_string(fd));
  ASSERT_TRUE(caller.has_value());
  EXPECT_EQ(caller->uid, geteuid() == 0 ? kNobody : geteuid());
  EXPECT_EQ(caller->gid, geteuid() == 0 ? kNobody : getegid());
  EXPECT_FALSE((*door)->CallerOf("fd:" + std::to_string(fd + 1)).has_value());
  EXPECT_FALSE((*door)->CallerOf("unix:").has_value());
  close(fd);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Each takes a descriptor of the daemon, and any user may connect.
TEST_F(RankDoorTest, RefusesConnectionsPastTheShareOfAUser) {
  constexpr size_t kShare = UserShares::MostOfOne(kRankConnectionsMax);
  std::mutex mutex;
  std::set<int> admitted;
  auto door = RankDoor::Open(Path(), [&](int connection) {
    std::lock_guard lock(mutex);
    admitted.insert(connection);
  });
  ASSERT_TRUE(door.ok()) << door.error().message;
  std::vector<int> connections;
  auto admitted_are = [&](size_t count) {
    return Eventually([&] {
      std::lock_guard lock(mutex);
      return admitted.size() == count;
    });
  };
  for (size_t i = 0; i < kShare; ++i) {
    connections.push_back(Connect());
    ASSERT_GE(connections.back(), 0);
  }
  ASSERT_TRUE(admitted_are(kShare));
  const int refused = Connect();
  ASSERT_GE(refused, 0);
  char byte;
  EXPECT_EQ(recv(refused, &byte, 1, 0), 0) << "it is closed";
  close(refused);
  if (geteuid() == 0) {
    const pid_t other = ConnectAs(kNobody);
    EXPECT_TRUE(admitted_are(kShare + 1)) << "another user finds a place";
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
  }

  // Those that the daemon has closed leave their places, whatever has their descriptors now.
  std::set<int> left;
  {
    std::lock_guard lock(mutex);
    left.swap(admitted);
  }
  const int first = *left.begin(), second = *std::next(left.begin());
  left.erase(first);
  left.erase(second);
  close(first);
  close(second);
  const int reused = fcntl(0, F_DUPFD, std::min(first, second));
  EXPECT_GE(reused, std::min(first, second));
  for (size_t i = 0; i < 2; ++i) {
    connections.push_back(Connect());
    ASSERT_GE(connections.back(), 0);
  }
  ASSERT_TRUE(admitted_are(2));
  const int refused_again = Connect();
  ASSERT_GE(refused_again, 0);
  EXPECT_EQ(recv(refused_again, &byte, 1, 0), 0);
  close(refused_again);

  (*door).reset();
  close(reused);
  for (int fd : connections) close(fd);
  for (int fd : left) close(fd);
  for (int fd : admitted) close(fd);
}

TEST(UserSharesTest, WhoeverComesLaterFindsPlaces) {
  UserShares shares(9);
  const auto take_all = [&](uid_t user) {
    size_t taken = 0;
    while (shares.Take(user)) ++taken;
    return taken;
  };
  static_assert(UserShares::MostOfOne(9) == 6);
  EXPECT_EQ(take_all(1), 6u);
  EXPECT_EQ(take_all(2), 2u);
  EXPECT_EQ(take_all(3), 1u);
  EXPECT_EQ(take_all(4), 0u) << "there are no more";
  shares.Leave(1);
  EXPECT_EQ(take_all(1), 0u) << "its share is less than that now";
  EXPECT_EQ(take_all(4), 1u);
  for (uid_t user : {1, 1, 1, 1, 1, 2, 2, 3, 4}) shares.Leave(user);
  EXPECT_EQ(take_all(4), 6u);
  EXPECT_EQ(UserShares::MostOfOne(1), 1u);
  EXPECT_EQ(UserShares::MostOfOne(384), 256u);
}

TEST_F(RankDoorTest, IsThereAgainAfterADaemonThatDied) {
  {
    auto door = RankDoor::Open(Path(), [](int connection) { close(connection); });
    ASSERT_TRUE(door.ok());
    struct stat info;
    ASSERT_EQ(stat(Path().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777u, 0666u);
    std::filesystem::rename(Path(), Path() + ".old");
  }
  std::filesystem::rename(Path() + ".old", Path());
  EXPECT_TRUE(RankDoor::Open(Path(), [](int connection) { close(connection); }).ok());
  EXPECT_FALSE(std::filesystem::exists(Path()));
  EXPECT_EQ(RankDoor::Open("/tmp/" + std::string(200, 'x'), [](int) {}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace cairnfs::control
