// Serves the metrics over HTTP. The socket is made here, so that an error has the system's words.
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "control/metrics.h"
#include "rpc/local_peer.h"

namespace cairnfs::control {
namespace {

// Anybody who reaches the port may connect. These bounds leave the daemon the descriptors that it needs.
constexpr unsigned kConnectionsMax = 32, kConnectionsOfOneNetworkMax = 8;
constexpr unsigned kIdleSecondsMax = 10;
constexpr int kBacklog = 16;

Error CannotServe(const std::string& address, const std::string& why) {
  return MakeError(ErrorCode::kIo, "cannot serve metrics on " + address + ": " + why +
                                       "; give another metrics_address, or end what uses it");
}

// The host without brackets, and the port. REQUIRES: "HOST:PORT", which the configuration has checked.
std::pair<std::string, std::string> SplitAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  assert(colon != std::string::npos);
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return {host, address.substr(colon + 1)};
}

Result<int> Listen(const std::string& address) {
  const auto [host, port] = SplitAddress(address);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int code = getaddrinfo(host.c_str(), port.c_str(), &hints, &list); code != 0) {
    return CannotServe(address, gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> found(list, freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
    const int fd = socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(fd, each->ai_addr, each->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) return fd;
    error = errno;
    close(fd);
  }
  return CannotServe(address, std::strerror(error));
}

MHD_Result Respond(MHD_Connection* connection, unsigned status, std::string text, const char* type) {
  MHD_Response* response = MHD_create_response_from_buffer(text.size(), text.data(), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

}  // namespace

class Metrics::Impl {
 public:
  explicit Impl(std::function<StatusReply()> status) : status_(std::move(status)) {}
  // Ends its thread, and closes the socket.
  ~Impl() {
    if (server_ != nullptr) MHD_stop_daemon(server_);
  }
  Impl(const Impl&) = delete;

  // Takes the socket, also when it fails.
  bool Start(int fd) {
    // Not select(2), which knows no descriptor above 1,023.
    constexpr unsigned kFlags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL;
    server_ = MHD_start_daemon(kFlags, 0, &Impl::MayConnect, this, &Impl::Serve, this, MHD_OPTION_LISTEN_SOCKET, fd,
                               MHD_OPTION_NOTIFY_CONNECTION, &Impl::NoteConnection, this, MHD_OPTION_CONNECTION_LIMIT,
                               kConnectionsMax, MHD_OPTION_CONNECTION_TIMEOUT, kIdleSecondsMax, MHD_OPTION_END);
    if (server_ == nullptr) close(fd);
    return server_ != nullptr;
  }

 private:
  // The server's own bound counts each of the addresses of an IPv6 network, all of which one host may have.
  static rpc::IpBytes NetworkOf(const sockaddr* address) {
    sockaddr_storage copy{};
    std::memcpy(&copy, address, address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    const auto endpoint = rpc::EndpointOf(copy);
    return endpoint.ok() ? rpc::NetworkOf(endpoint->address) : rpc::IpBytes{};
  }
  static MHD_Result MayConnect(void* self, const sockaddr* address, socklen_t /*size*/) {
    const auto& open = static_cast<Impl*>(self)->open_;
    const auto found = open.find(NetworkOf(address));
    return found == open.end() || found->second < kConnectionsOfOneNetworkMax ? MHD_YES : MHD_NO;
  }
  static void NoteConnection(void* self, MHD_Connection* connection, void** /*state*/,
                             MHD_ConnectionNotificationCode what) {
    auto& open = static_cast<Impl*>(self)->open_;
    const auto* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const rpc::IpBytes network = NetworkOf(info->client_addr);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
      open[network]++;
    } else if (--open[network] == 0) {
      open.erase(network);
    }
  }
  static MHD_Result Serve(void* self, MHD_Connection* connection, const char* path, const char* method,
                          const char* /*version*/, const char* /*upload*/, size_t* upload_size, void** /*state*/) {
    *upload_size = 0;  // nothing is taken in
    const std::string_view verb = method;
    if (verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD) {
      return Respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET is answered\n", "text/plain");
    }
    if (path != std::string_view("/metrics")) {
      return Respond(connection, MHD_HTTP_NOT_FOUND, "the metrics are at /metrics\n", "text/plain");
    }
    return Respond(connection, MHD_HTTP_OK, RenderMetrics(static_cast<Impl*>(self)->status_()),
                   "text/plain; version=0.0.4; charset=utf-8");
  }

  const std::function<StatusReply()> status_;
  MHD_Daemon* server_ = nullptr;
  std::map<rpc::IpBytes, unsigned> open_;  // connections of each network; on the server's thread alone
};

Metrics::Metrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Metrics::~Metrics() = default;

Result<std::unique_ptr<Metrics>> Metrics::Start(const std::string& address, std::function<StatusReply()> status) {
  CAIRNFS_ASSIGN_OR_RETURN(const int fd, Listen(address));
  auto impl = std::make_unique<Impl>(std::move(status));
  if (!impl->Start(fd)) return CannotServe(address, "the HTTP server does not start");
  return std::unique_ptr<Metrics>(new Metrics(std::move(impl)));
}

}  // namespace cairnfs::control
