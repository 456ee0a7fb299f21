// RankDoor: a Unix socket that every user may connect to. Who connects is known from the kernel (SO_PEERCRED), so that
// what is asked there can be judged by the caller's rights.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "control/user_shares.h"
#include "fs/filesystem.h"
#include "rpc/acceptor.h"

namespace cairnfs::control {

// Connections of ranks that are open at once, of all users together (control/user_shares.h). Each takes a descriptor,
// and any user may make them: more are refused, so that those which the daemon itself needs are left.
inline constexpr size_t kRankConnectionsMax = 384;

class RankDoor {
 public:
  // Listens at `path` (mode 0666) and gives each connection, a descriptor that does not block, to `admit`, which owns
  // it from then on; one that is too many, of all or of its user, is closed. kInvalidArgument: the path is too long;
  // kIo.
  static Result<std::unique_ptr<RankDoor>> Open(const std::string& path, std::function<void(int)> admit);
  ~RankDoor();  // takes no more connections
  RankDoor(const RankDoor&) = delete;

  // Of whoever made the connection that had this descriptor last; nullopt: none had, or it is long gone. As gRPC calls
  // it: "fd:NUMBER".
  std::optional<fs::Credentials> CallerOf(const std::string& peer);

 private:
  struct Caller {
    int connection;
    uint64_t cookie;  // tells the connection from a later one with this descriptor
    fs::Credentials credentials;
  };
  RankDoor(std::string path, std::function<void(int)> admit);
  void Admit(int connection);
  // Forgets who is gone when the user has no place left for another. Whether the user got one.
  bool TakePlace(uid_t user) REQUIRES_LOCK(mutex_);
  void Warn(uid_t user) REQUIRES_LOCK(mutex_);

  const std::string path_;
  const std::function<void(int)> admit_;
  Mutex mutex_;
  std::map<std::string, Caller> callers_ GUARDED_BY(mutex_);  // by what gRPC calls it
  UserShares places_{kRankConnectionsMax};                    // as many are taken as there are callers
  std::optional<std::chrono::steady_clock::time_point> warned_ GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Acceptor> acceptor_;
};

}  // namespace cairnfs::control
