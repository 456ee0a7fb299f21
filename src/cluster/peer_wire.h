// Messages as gRPC's byte buffers. Private to the peer client and the peer server.
//
// A byte buffer is: u32 length of the head, the head, the payload. Payload slices go out without a copy: each is lent
// to gRPC, which calls back when the last of its users is done.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <optional>

#include "base/thread_annotations.h"
#include "cluster/peer_message.h"

namespace cairnfs::cluster {

// Counts what is lent to gRPC. The buffers' pool must outlive what is lent, so whoever lends waits for it at its end.
class Lending {
 public:
  grpc::Slice Lend(io::Slice slice);
  void AwaitReturn();

 private:
  struct Loan;
  static void Return(void* loan);
  Mutex mutex_;
  CondVar returned_;
  size_t lent_ GUARDED_BY(mutex_) = 0;
};

// `envelope` goes in front of the head; empty in replies.
grpc::ByteBuffer ToByteBuffer(std::string_view envelope, const PeerMessage& message, Lending& lending);
// Nullopt: malformed.
std::optional<PeerMessage> FromByteBuffer(const grpc::ByteBuffer& buffer);

// Keeps gRPC, and the threads that run its callbacks, until the process ends. Else whoever drops its last channel or
// server ends them: that may wait 10 s for a thread that polls, and in gRPC 1.51 it now and then fails an assertion of
// the completion queue (`prior > 0` in ref_counted.h). Also makes its locks cheaper: see the code.
void KeepGrpcRunning();

// What a message of so many bytes takes on the wire, HTTP/2 frames and headers included.
size_t WireBytes(size_t message_bytes);

}  // namespace cairnfs::cluster
