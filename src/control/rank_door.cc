#include "control/rank_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/user.h"

namespace cairnfs::control {
namespace {

constexpr auto kNoDescriptorsPause = std::chrono::milliseconds(100);
// Who is refused tries again, and could fill the disk with what the log says of it.
constexpr auto kWarningInterval = std::chrono::minutes(1);
constexpr int kGroupsMax = 65536;  // NGROUPS_MAX of Linux

std::optional<fs::Credentials> CredentialsOf(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  fs::Credentials caller{peer.uid, peer.gid, {}};
  size = 0;
  if (getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, nullptr, &size) == 0 || errno != ERANGE) return caller;
  if (size > kGroupsMax * sizeof(gid_t)) return std::nullopt;
  std::vector<gid_t> groups(size / sizeof(gid_t));
  if (getsockopt(connection, SOL_SOCKET, SO_PEERGROUPS, groups.data(), &size) != 0) return std::nullopt;
  caller.groups.assign(groups.begin(), groups.end());
  return caller;
}

// A number that the kernel gives to no other socket; nullopt: no socket has this descriptor.
std::optional<uint64_t> CookieOf(int connection) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (getsockopt(connection, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

}  // namespace

Result<std::unique_ptr<RankDoor>> RankDoor::Open(const std::string& path, std::function<void(int)> admit) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return MakeError(ErrorCode::kInvalidArgument, "the path of the ranks' socket is too long: " + path);
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return ErrnoError(errno, "cannot make a socket");
  unlink(path.c_str());  // of a daemon that is gone: the data directory is locked
  const bool listens = bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                       chmod(path.c_str(), 0666) == 0 && listen(listener, SOMAXCONN) == 0;
  const int error = errno;
  const int stop = listens ? eventfd(0, EFD_CLOEXEC) : -1;
  if (stop < 0) {
    close(listener);
    return ErrnoError(listens ? errno : error, "cannot listen on the ranks' socket " + path);
  }
  return std::unique_ptr<RankDoor>(new RankDoor(path, std::move(admit), listener, stop));
}

RankDoor::RankDoor(std::string path, std::function<void(int)> admit, int listener, int stop)
    : path_(std::move(path)), admit_(std::move(admit)), listener_(listener), stop_(stop), thread_([this] { Run(); }) {}

RankDoor::~RankDoor() {
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof one) != sizeof one) spdlog::error("the ranks' socket cannot be told to close");
  thread_.join();
  close(listener_);
  close(stop_);
  unlink(path_.c_str());
}

void RankDoor::Run() {
  pthread_setname_np(pthread_self(), "cairn-ranks");
  for (;;) {
    pollfd ready[] = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
    if (poll(ready, std::size(ready), -1) < 0 && errno != EINTR) return;
    if (ready[0].revents != 0) return;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (connection >= 0) {
      Admit(connection);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      std::this_thread::sleep_for(kNoDescriptorsPause);
    }
  }
}

void RankDoor::Admit(int connection) {
  auto credentials = CredentialsOf(connection);
  const auto cookie = CookieOf(connection);
  bool has_place = false;
  {
    MutexLock lock(mutex_);
    // The connection that had this descriptor before is closed.
    if (const auto before = callers_.extract("fd:" + std::to_string(connection))) {
      places_.Leave(before.mapped().credentials.uid);
    }
    has_place = credentials && cookie && TakePlace(credentials->uid);
    if (has_place) {
      callers_["fd:" + std::to_string(connection)] = {connection, *cookie, std::move(*credentials)};
    }
  }
  if (!has_place) {
    close(connection);
    return;
  }
  admit_(connection);
}

bool RankDoor::TakePlace(uid_t user) {
  if (places_.Take(user)) return true;
  std::erase_if(callers_, [this](const auto& entry) {
    const Caller& caller = entry.second;
    const bool is_gone = CookieOf(caller.connection) != caller.cookie;
    if (is_gone) places_.Leave(caller.credentials.uid);
    return is_gone;
  });
  if (places_.Take(user)) return true;
  Warn(user);
  return false;
}

void RankDoor::Warn(uid_t user) {
  const auto now = std::chrono::steady_clock::now();
  if (warned_ && now - *warned_ < kWarningInterval) return;
  warned_ = now;
  spdlog::warn("{} connections of ranks are open at {}: {} has his share of them, more are refused until some end",
               callers_.size(), path_, UserName(user));
}

std::optional<fs::Credentials> RankDoor::CallerOf(const std::string& peer) {
  MutexLock lock(mutex_);
  auto found = callers_.find(peer);
  return found == callers_.end() ? std::nullopt : std::optional(found->second.credentials);
}

}  // namespace cairnfs::control
