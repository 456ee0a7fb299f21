// RankDoor: a Unix socket that every user may connect to. The kernel tells whose a connection is (SO_PEERCRED), so that
// a request can be judged by the caller's rights.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"
#include "control/user_shares.h"
#include "fs/filesystem.h"
#include "rpc/acceptor.h"

namespace cairnfs::control {

// The most connections of ranks that are open at once, of all users together (control/user_shares.h). Any user may make
// them, and each takes a descriptor: more are refused, so that the daemon keeps the descriptors that it needs.
inline constexpr size_t kRankConnectionsMax = 384;

class RankDoor {
 public:
  // Listens at `path` (mode 0666). Gives each connection, a descriptor that does not block, to `admit`, which owns it
  // from then on. A connection that is one too many, of all or of its user, is closed. kInvalidArgument: the path is
  // too long; kIo.
  static Result<std::unique_ptr<RankDoor>> Open(const std::string& path, std::function<void(int)> admit);
  ~RankDoor();  // takes no more connections
  RankDoor(const RankDoor&) = delete;

  // The user of the connection that had this descriptor last; nullopt: none had, or it is long gone. `peer` is gRPC's
  // name of the connection, "fd:NUMBER".
  std::optional<fs::Credentials> CallerOf(const std::string& peer);

 private:
  struct Caller {
    int connection;
    uint64_t cookie;  // tells the connection from a later one with this descriptor
    fs::Credentials credentials;
  };
  RankDoor(std::string path, std::function<void(int)> admit);
  void Admit(int connection);
  // Takes a place for the user, and forgets callers that are gone when none is left. False: the user got none.
  bool TakePlace(uid_t user) REQUIRES_LOCK(mutex_);
  void Warn(uid_t user) REQUIRES_LOCK(mutex_);

  const std::string path_;
  const std::function<void(int)> admit_;
  Mutex mutex_;
  std::map<std::string, Caller> callers_ GUARDED_BY(mutex_);  // by what gRPC calls it
  UserShares places_{kRankConnectionsMax};                    // as many are taken as there are callers
  std::optional<Clock::time_point> warned_ GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Acceptor> acceptor_;
};

}  // namespace cairnfs::control
