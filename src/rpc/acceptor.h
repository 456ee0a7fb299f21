// Acceptor: a thread that takes connections from a listening socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/result.h"

namespace cairnfs::rpc {

// A number that the kernel gives to no other socket; nullopt: no socket has this descriptor.
std::optional<uint64_t> SocketCookie(int connection);

class Acceptor {
 public:
  // Listens on IP:PORT of TCP; port 0: one that is free. Returns a descriptor that does not block. kUnavailable: the
  // message is the system's.
  static Result<int> ListenOn(const std::string& address);

  // Takes over `listener`, a socket that listens and does not block. Gives each connection to `take`, which owns it: a
  // descriptor that does not block either. `thread_name` has 15 characters at most. kIo.
  static Result<std::unique_ptr<Acceptor>> Start(int listener, const char* thread_name, std::function<void(int)> take);
  ~Acceptor();  // takes no more connections
  Acceptor(const Acceptor&) = delete;

 private:
  Acceptor(int listener, int stop, const char* thread_name, std::function<void(int)> take);
  void Run(const char* thread_name);

  const std::function<void(int)> take_;
  const int listener_, stop_;
  std::thread thread_;
};

}  // namespace cairnfs::rpc
