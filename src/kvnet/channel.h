// Channels to servers of keys. Room-internal: gRPC is in here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/context.h"
#include "base/result.h"
#include "kv/answer_watch.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// To HOST:PORT, over one connection that is made when it is needed and again when it broke. Answers may be of any size,
// and a peer that is silent for some seconds while a call waits for it counts as gone.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const RemoteOptions& options);

// False: the channel cannot be connected now, or the context expired first. To be asked before each call, since
// connections are made only while some thread waits for one, and a call that does not wait fails while there is none.
bool Connect(const Context& context, grpc::Channel& channel);
// The status of a call that is not made because there is no connection.
grpc::Status NotConnected();
// The status of a call that is not made because nobody waits for it any more.
grpc::Status GivenUp();

// Whether the server may have carried out the call: every status that does not show that the server refused it. The
// error is kUnavailable then. (gRPC sends a call again by itself only when the server cannot have seen it.)
bool IsLostCall(const grpc::Status& status);

// Cancels the call once the context is stopped, and lets it take no longer than the context allows. The call outlives
// this.
class CallLimit {
 public:
  CallLimit(const Context& context, grpc::ClientContext& call);

 private:
  const Context::OnStop cancel_;
};

// One try of a call over `channel`, of `timeout` at most, which `send(call)` makes. It ends with the context and with
// what ends the calls of the store (RetryOptions::Within), and is not made where these have expired.
template <typename Send>
grpc::Status TryCall(const Context& context, grpc::Channel& channel, const RemoteOptions& options,
                     std::chrono::milliseconds timeout, const Send& send) {
  const Context limited = options.retry.Within(context).WithTimeout(timeout);
  if (limited.Expired()) return GivenUp();
  kv::AnswerWatch::Call waiting(options.retry.answers.get());
  if (!Connect(limited, channel)) return NotConnected();
  grpc::ClientContext call;
  const CallLimit limit(limited, call);
  const grpc::Status status = send(call);
  if (!IsLostCall(status)) waiting.NoteAnswer();
  return status;
}

// kInvalidArgument unless `address` is HOST:PORT, with a port from `port_min` on; IPv6 hosts stand in brackets.
Status CheckAddress(const std::string& address, unsigned port_min);

}  // namespace cairnfs::kvnet
