#include "control/rank_door.h"

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

#include "base/clock.h"
#include "base/log.h"
#include "base/user.h"

namespace cairnfs::control {
namespace {

// A refused process tries again, and could fill the disk with the log's lines about it.
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
  if (!listens) {
    const int error = errno;
    close(listener);
    return ErrnoError(error, "cannot listen on the ranks' socket " + path);
  }
  auto door = std::unique_ptr<RankDoor>(new RankDoor(path, std::move(admit)));
  CAIRNFS_ASSIGN_OR_RETURN(
      door->acceptor_, rpc::Acceptor::Start(listener, "cairn-ranks",
                                            {[door = door.get()](int connection) { door->Admit(connection); }, {}}));
  return door;
}

RankDoor::RankDoor(std::string path, std::function<void(int)> admit)
    : path_(std::move(path)), admit_(std::move(admit)) {}

RankDoor::~RankDoor() {
  acceptor_.reset();
  unlink(path_.c_str());
}

void RankDoor::Admit(int connection) {
  auto credentials = CredentialsOf(connection);
  const auto cookie = rpc::SocketCookie(connection);
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
    const bool is_gone = rpc::SocketCookie(caller.connection) != caller.cookie;
    if (is_gone) places_.Leave(caller.credentials.uid);
    return is_gone;
  });
  if (places_.Take(user)) return true;
  Warn(user);
  return false;
}

void RankDoor::Warn(uid_t user) {
  const auto now = Clock::Now();
  if (warned_ && now - *warned_ < kWarningInterval) return;
  warned_ = now;
  spdlog::warn("{} connections of ranks are open at {}: {} has a full share of them, more are refused until some end",
               callers_.size(), path_, UserName(user));
}

std::optional<fs::Credentials> RankDoor::CallerOf(const std::string& peer) {
  MutexLock lock(mutex_);
  auto found = callers_.find(peer);
  return found == callers_.end() ? std::nullopt : std::optional(found->second.credentials);
}

}  // namespace cairnfs::control
