// Acceptor: a thread that takes connections from a listening socket.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "base/result.h"

struct addrinfo;

namespace cairnfs::rpc {

struct FreeAddresses {
  void operator()(addrinfo* found) const;
};
// The addresses of HOST:PORT for TCP, an IPv6 host in brackets; `flags` as of getaddrinfo(3). kInvalidArgument.
Result<std::unique_ptr<addrinfo, FreeAddresses>> LookUp(const std::string& address, int flags);

// IP:PORT as `listen` says it, with the port that the listener has: another one where that says 0. kIo.
Result<std::string> AddressOf(int listener, const std::string& listen);

// A number that the kernel gives to no other socket; nullopt: no socket has this descriptor.
std::optional<uint64_t> SocketCookie(int connection);

class Acceptor {
 public:
  // Listens on IP:PORT of TCP; port 0: one that is free. Returns a descriptor that does not block. kUnavailable: the
  // message is the system's.
  static Result<int> ListenOn(const std::string& address);

  // Takes over `listener`, a socket that listens and does not block. Gives each connection to `take`, which owns it: a
  // descriptor that does not block either. After each, and a second after it was true, it calls `look` on the same
  // thread: false, there is nothing to look after until the next connection. `thread_name` has 15 characters at most.
  // kIo.
  struct Callbacks {
    std::function<void(int)> take;
    std::function<bool()> look;  // may be empty
  };
  static Result<std::unique_ptr<Acceptor>> Start(int listener, const char* thread_name, Callbacks callbacks);
  ~Acceptor();  // takes no more connections
  Acceptor(const Acceptor&) = delete;

 private:
  Acceptor(int listener, int stop, const char* thread_name, Callbacks callbacks);
  void Run(const char* thread_name);
  void TakeOne() const;

  const Callbacks callbacks_;
  const int listener_, stop_;
  std::thread thread_;
};

}  // namespace cairnfs::rpc
