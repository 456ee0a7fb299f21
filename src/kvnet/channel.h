// Channels to servers of keys. Room-internal: gRPC is in here.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "base/result.h"
#include "kvnet/options.h"

namespace cairnfs::kvnet {

// To HOST:PORT, over one connection that is made when it is needed and again when it broke. Answers may be of any size,
// and a peer that is silent for some seconds while a call waits for it counts as gone.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address, const RemoteOptions& options);

// False: the channel cannot be connected now. To be asked before each call, since connections are made only while some
// thread waits for one, and a call that does not wait fails while there is none.
bool Connect(grpc::Channel& channel, std::chrono::milliseconds timeout);
// The status of a call that is not made because there is no connection.
grpc::Status NotConnected();
// The status of a call that is not made because nobody waits for it any more.
grpc::Status GivenUp();

// Whether the server may have carried out the call: every status that does not show that the server refused it. The
// error is kUnavailable then. (gRPC sends a call again by itself only when the server cannot have seen it.)
bool IsLostCall(const grpc::Status& status);

void SetTimeout(grpc::ClientContext& context, std::chrono::milliseconds timeout);

// One try of a call. It is cancelled when the patience of `options` ends, and not made when that is over already; the
// patience learns of an answer. `call(context)` sends it on `channel`. REQUIRES: the channel is connected.
template <typename Call>
grpc::Status TryCall(grpc::Channel& channel, const RemoteOptions& options, std::chrono::milliseconds timeout,
                     grpc::ClientContext& context, const Call& call) {
  kv::Patience* patience = options.retry.patience.get();
  SetTimeout(context, timeout);
  kv::Patience::Call patient(patience, [&context] { context.TryCancel(); });
  if (kv::Patience::IsWaitOver(patience)) return GivenUp();
  if (!Connect(channel, timeout)) return NotConnected();
  const grpc::Status status = call(context);
  if (!IsLostCall(status)) patient.NoteAnswer();
  return status;
}

// kInvalidArgument unless `address` is HOST:PORT, with a port from `port_min` on; IPv6 hosts stand in brackets.
Status CheckAddress(const std::string& address, unsigned port_min);

}  // namespace cairnfs::kvnet
