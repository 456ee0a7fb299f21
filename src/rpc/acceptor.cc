#include "rpc/acceptor.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace cairnfs::rpc {
namespace {

constexpr auto kNoDescriptorsPause = std::chrono::milliseconds(100);
constexpr int kLookIntervalMs = 1000;

}  // namespace

std::optional<uint64_t> SocketCookie(int connection) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  if (getsockopt(connection, SOL_SOCKET, SO_COOKIE, &cookie, &size) != 0) return std::nullopt;
  return cookie;
}

void FreeAddresses::operator()(addrinfo* found) const { freeaddrinfo(found); }

Result<std::unique_ptr<addrinfo, FreeAddresses>> LookUp(const std::string& address, int flags) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error =
      colon == std::string::npos ? EAI_NONAME : getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error == 0) return std::unique_ptr<addrinfo, FreeAddresses>(found);
  return MakeError(ErrorCode::kInvalidArgument, address + " is no HOST:PORT: " + gai_strerror(error));
}

Result<int> Acceptor::ListenOn(const std::string& address) {
  const auto looked_up = LookUp(address, AI_NUMERICSERV | AI_PASSIVE);
  if (!looked_up.ok()) return MakeError(ErrorCode::kUnavailable, address + " is no IP:PORT");
  const addrinfo* found = looked_up->get();
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1, off = 0;
  if (found->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  // Takes a port over that a daemon which is gone has left behind. A port that another process listens on is still an
  // error.
  const bool listens = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                       bind(fd, found->ai_addr, found->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0;
  const int error = errno;
  if (listens) return fd;
  if (fd >= 0) close(fd);
  return MakeError(ErrorCode::kUnavailable, ErrnoError(error, "cannot listen on " + address).message);
}

Result<std::string> AddressOf(int listener, const std::string& listen) {
  sockaddr_storage name{};
  socklen_t size = sizeof name;
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&name), &size) != 0) return ErrnoError(errno, listen);
  const uint16_t port = ntohs(name.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&name)->sin_port
                                                        : reinterpret_cast<sockaddr_in6*>(&name)->sin6_port);
  return listen.substr(0, listen.rfind(':') + 1) + std::to_string(port);
}

Result<std::unique_ptr<Acceptor>> Acceptor::Start(int listener, const char* thread_name, Callbacks callbacks) {
  const int stop = eventfd(0, EFD_CLOEXEC);
  if (stop < 0) {
    const int error = errno;
    close(listener);
    return ErrnoError(error, "eventfd");
  }
  return std::unique_ptr<Acceptor>(new Acceptor(listener, stop, thread_name, std::move(callbacks)));
}

Acceptor::Acceptor(int listener, int stop, const char* thread_name, Callbacks callbacks)
    : callbacks_(std::move(callbacks)),
      listener_(listener),
      stop_(stop),
      thread_([this, thread_name] { Run(thread_name); }) {}

Acceptor::~Acceptor() {
  const uint64_t one = 1;
  if (write(stop_, &one, sizeof one) != sizeof one) spdlog::error("a thread that takes connections cannot be ended");
  thread_.join();
  close(listener_);
  close(stop_);
}

void Acceptor::Run(const char* thread_name) {
  pthread_setname_np(pthread_self(), thread_name);
  for (bool looks = false;;) {
    pollfd ready[] = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
    if (poll(ready, std::size(ready), looks ? kLookIntervalMs : -1) < 0) {
      if (errno != EINTR) Clock::SleepFor(kNoDescriptorsPause);  // out of memory, say
      continue;
    }
    if (ready[0].revents != 0) return;
    if (ready[1].revents != 0) TakeOne();
    looks = callbacks_.look && callbacks_.look();
  }
}

void Acceptor::TakeOne() const {
  const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (connection >= 0) {
    callbacks_.take(connection);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    Clock::SleepFor(kNoDescriptorsPause);
  }
}

}  // namespace cairnfs::rpc
