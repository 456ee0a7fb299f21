// A call of any method with any bytes, as whoever a Tls makes it.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <string>

#include "base/clock.h"
#include "rpc/tls.h"

namespace cairnfs {

struct RawTarget {
  std::string address;
  std::string server;  // that the server's certificate must name
  std::string method;  // "/package.Service/Method"
  bool waits_for_connection = false;
};

// The status; DEADLINE_EXCEEDED after `within`. A connection that cannot be made is UNAVAILABLE.
inline grpc::Status RawCall(const RawTarget& target, const rpc::Tls& caller, const std::string& request,
                            std::chrono::milliseconds within = std::chrono::seconds(60)) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  const auto credentials = caller.Client(target.server, arguments);
  grpc::GenericStub stub(grpc::CreateCustomChannel(target.address, credentials, arguments));
  grpc::ClientContext context;
  context.set_wait_for_ready(target.waits_for_connection);
  context.set_deadline(Clock::LibraryDeadline(within));
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
  grpc::ByteBuffer sent(&slice, 1), reply;
  auto call = stub.PrepareUnaryCall(&context, target.method, sent, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&reply, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

}  // namespace cairnfs
