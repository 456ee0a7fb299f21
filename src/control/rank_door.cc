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

namespace cairnfs::control {
namespace {

constexpr auto kNoDescriptorsPause = std::chrono::milliseconds(100);
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
    callers_.erase("fd:" + std::to_string(connection));
    has_place = credentials && cookie && HasPlace();
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

bool RankDoor::HasPlace() {
  if (callers_.size() < kRankConnectionsMax) return true;
  std::erase_if(callers_, [](const auto& entry) {
    const Caller& caller = entry.second;
    return CookieOf(caller.connection) != caller.cookie;
  });
  const bool has_place = callers_.size() < kRankConnectionsMax;
  if (!has_place && !is_refusing_) {
    spdlog::warn("{} connections of ranks are open at {}, others are refused until some end", callers_.size(), path_);
  }
  is_refusing_ = !has_place;
  return has_place;
}

std::optional<fs::Credentials> RankDoor::CallerOf(const std::string& peer) {
  MutexLock lock(mutex_);
  auto found = callers_.find(peer);
  return found == callers_.end() ? std::nullopt : std::optional(found->second.credentials);
}

}  // namespace cairnfs::control
