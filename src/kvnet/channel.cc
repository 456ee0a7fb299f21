#include "kvnet/channel.h"

#include <algorithm>
#include <charconv>

#include "base/clock.h"

namespace cairnfs::kvnet {
namespace {

constexpr int kPingMs = 6'000;  // an etcd server refuses clients that ping more often than every 5 s
constexpr int kPingTimeoutMs = 3'000;
constexpr int kReconnectMinMs = 50, kReconnectMaxMs = 500;
constexpr int kConnectMs = 1'000;
// How often a thread that waits for a connection looks whether it is to stop.
constexpr std::chrono::milliseconds kStopLook{50};

}  // namespace

RemoteOptions OptionsOf(RemoteOptions options, const std::string& node) {
  if (options.tls.enabled() && !node.empty()) options.server_name = rpc::CertificateName(node);
  return options;
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const RemoteOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMinMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);  // the time that making one may take
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMaxMs);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto credentials = options.tls.Client(options.server_name, arguments);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

bool Connect(const Context& context, grpc::Channel& channel) {
  const Context limited = context.WithTimeout(std::chrono::milliseconds(kConnectMs + kReconnectMaxMs));
  bool has_tried = false;
  while (!limited.Expired()) {
    const grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    if (state == GRPC_CHANNEL_READY) return true;
    if (state == GRPC_CHANNEL_SHUTDOWN || (state == GRPC_CHANNEL_TRANSIENT_FAILURE && has_tried)) return false;
    has_tried = has_tried || state == GRPC_CHANNEL_CONNECTING;
    // False where the state is the same after that time.
    const auto left = limited.deadline() - Clock::Now();
    channel.WaitForStateChange(state, Clock::LibraryDeadline(std::min<Clock::duration>(left, kStopLook)));
  }
  return false;
}

grpc::Status NotConnected() { return {grpc::StatusCode::UNAVAILABLE, "no connection can be made"}; }

grpc::Status GivenUp() { return {grpc::StatusCode::UNAVAILABLE, "nobody waits for its answer any more"}; }

bool IsLostCall(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::INTERNAL:
    case grpc::StatusCode::UNKNOWN: return true;
    default: return false;
  }
}

CallLimit::CallLimit(const Context& context, grpc::ClientContext& call)
    : cancel_(context, [&call] { call.TryCancel(); }) {
  if (context.deadline() == Clock::time_point::max()) return;
  call.set_deadline(Clock::LibraryDeadline(context.deadline() - Clock::Now()));
}

Status CheckAddress(const std::string& address, unsigned port_min) {
  const size_t colon = address.rfind(':');
  auto wrong = [&](const std::string& what) {
    return MakeError(ErrorCode::kInvalidArgument, "\"" + address + "\" is no HOST:PORT: it " + what);
  };
  if (colon == std::string::npos) return wrong("has no port");
  const std::string host = address.substr(0, colon), port_text = address.substr(colon + 1);
  unsigned port = 0;
  const char* end = port_text.data() + port_text.size();
  auto [parsed, error] = std::from_chars(port_text.data(), end, port);
  if (error != std::errc() || parsed != end || port < port_min || port > 65535) {
    return wrong("has the port '" + port_text + "', and a port is a number from " + std::to_string(port_min) +
                 " to 65535");
  }
  const bool in_brackets = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  const std::string name = in_brackets ? host.substr(1, host.size() - 2) : host;
  const bool is_ipv6 = name.find(':') != std::string::npos;
  if (name.empty()) return wrong("has no host");
  if (name.find_first_of("/@ ,[]") != std::string::npos) {
    return wrong("has a host with a letter that hosts do not have");
  }
  if (is_ipv6 && !in_brackets) return wrong("has an IPv6 host, which stands in brackets: [::1]:1234");
  if (in_brackets && !is_ipv6) return wrong("has a host in brackets, which only an IPv6 host has");
  return {};
}

}  // namespace cairnfs::kvnet
