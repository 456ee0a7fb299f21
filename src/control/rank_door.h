// RankDoor: a Unix socket that every user may connect to. Who connects is known from the kernel (SO_PEERCRED), so that
// what is asked there can be judged by the caller's rights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/result.h"
#include "base/thread_annotations.h"
#include "fs/filesystem.h"

namespace cairnfs::control {

class RankDoor {
 public:
  // Listens at `path` (mode 0666) and gives each connection, a descriptor that does not block, to `admit`, which owns
  // it from then on. kInvalidArgument: the path is too long; kIo.
  static Result<std::unique_ptr<RankDoor>> Open(const std::string& path, std::function<void(int)> admit);
  ~RankDoor();  // takes no more connections
  RankDoor(const RankDoor&) = delete;

  // Of whoever made the connection that had this descriptor last; nullopt: none had. As gRPC calls it: "fd:NUMBER".
  std::optional<fs::Credentials> CallerOf(const std::string& peer);

 private:
  RankDoor(std::string path, std::function<void(int)> admit, int listener, int stop);
  void Run();
  void Admit(int connection);

  const std::string path_;
  const std::function<void(int)> admit_;
  const int listener_, stop_;
  Mutex mutex_;
  std::map<std::string, fs::Credentials> callers_ GUARDED_BY(mutex_);  // by what gRPC calls it
  std::thread thread_;
};

}  // namespace cairnfs::control
