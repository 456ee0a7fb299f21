#include "cluster/peer_wire.h"

#include <absl/synchronization/mutex.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <future>

#include "base/coding.h"
#include "base/log.h"

namespace cairnfs::cluster {
namespace {

constexpr size_t kHeadBytesMax = 8 * kMiB;
constexpr size_t kLengthBytes = 4;
constexpr size_t kFrameBytesMin = 16 * kKiB;
constexpr size_t kFrameHeaderBytes = 9;
constexpr size_t kCallBytes = 200;  // HTTP/2 headers and trailers, compressed, and gRPC's prefix

}  // namespace

struct Lending::Loan {
  Lending* lender;
  io::Slice slice;
};

grpc::Slice Lending::Lend(io::Slice slice) {
  auto* data = const_cast<std::byte*>(slice.data);
  const size_t size = slice.size;
  {
    MutexLock lock(mutex_);
    ++lent_;
  }
  return {data, size, &Lending::Return, new Loan{this, std::move(slice)}};
}

void Lending::Return(void* loan) {
  std::unique_ptr<Loan> owned(static_cast<Loan*>(loan));
  Lending* lender = owned->lender;
  owned.reset();
  MutexLock lock(lender->mutex_);
  if (--lender->lent_ == 0) lender->returned_.NotifyAll();
}

void Lending::AwaitReturn() {
  MutexLock lock(mutex_);
  while (lent_ > 0) {
    if (!returned_.WaitFor(mutex_, std::chrono::seconds(10)) && lent_ > 0) {
      spdlog::warn("{} buffers are still being sent to other nodes; waiting for them", lent_);
    }
  }
}

grpc::ByteBuffer ToByteBuffer(std::string_view envelope, const PeerMessage& message, Lending& lending) {
  Encoder front;
  front.U32(static_cast<uint32_t>(envelope.size() + message.head.size())).Text(envelope).Text(message.head);
  std::vector<grpc::Slice> slices;
  slices.reserve(1 + message.payload.size());
  slices.emplace_back(front.Take());
  for (const io::Slice& slice : message.payload) {
    if (slice.size > 0) slices.push_back(lending.Lend(slice));
  }
  return {slices.data(), slices.size()};
}

namespace {

// What was received, whose memory counts for the quota of the port. Whoever frees it last may have to wake who waits
// for room there. For that gRPC 1.51 has an ExecCtx where a buffer is freed, and none where a slice is: it would read
// through a null pointer (https://github.com/grpc/grpc/pull/28655 has others of the kind). So the buffer outlives the
// slices.
struct Received {
  grpc::ByteBuffer buffer;
  std::vector<grpc::Slice> slices;
};

}  // namespace

std::optional<PeerMessage> FromByteBuffer(const grpc::ByteBuffer& buffer) {
  if (!buffer.Valid()) return std::nullopt;
  // Alive as long as a slice of the payload is.
  auto received = std::make_shared<Received>(Received{buffer, {}});
  std::vector<grpc::Slice>* const slices = &received->slices;
  if (!buffer.Dump(slices).ok()) return std::nullopt;
  size_t index = 0, offset = 0;
  auto copy_out = [&](char* to, size_t size) {
    while (size > 0) {
      if (index == slices->size()) return false;
      const grpc::Slice& slice = (*slices)[index];
      const size_t part = std::min(size, slice.size() - offset);
      std::memcpy(to, slice.begin() + offset, part);
      to += part;
      size -= part;
      offset += part;
      if (offset == slice.size()) {
        ++index;
        offset = 0;
      }
    }
    return true;
  };
  std::string length(kLengthBytes, '\0');
  if (!copy_out(length.data(), length.size())) return std::nullopt;
  const uint32_t head_bytes = Decoder(length).U32();
  if (head_bytes > kHeadBytesMax || head_bytes > buffer.Length()) return std::nullopt;
  PeerMessage message;
  message.head.resize(head_bytes);
  if (!copy_out(message.head.data(), message.head.size())) return std::nullopt;
  for (; index < slices->size(); ++index, offset = 0) {
    const grpc::Slice& slice = (*slices)[index];
    if (slice.size() == offset) continue;
    io::Slice part;
    part.data = reinterpret_cast<const std::byte*>(slice.begin()) + offset;
    part.size = slice.size() - offset;
    part.memory = received;
    message.payload.push_back(std::move(part));
  }
  return message;
}

// A channel that never connects, and has made a call with a callback, holds both.
void KeepGrpcRunning() {
  // Debian's Abseil looks for cycles among gRPC's locks whenever one is taken.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  struct Kept {
    std::shared_ptr<grpc::Channel> channel =
        grpc::CreateCustomChannel("unused", /*creds=*/nullptr, grpc::ChannelArguments());
    grpc::ClientContext context;
    grpc::ByteBuffer request, reply;
    std::promise<void> failed;
  };
  static std::atomic<Kept*> kept_for_ever = [] {
    auto* kept = new Kept;
    grpc::Slice empty;
    kept->request = grpc::ByteBuffer(&empty, 1);
    grpc::GenericStub(kept->channel)
        .UnaryCall(&kept->context, PeerMethodPath(PeerMethod::kHas), grpc::StubOptions(), &kept->request, &kept->reply,
                   [kept](const grpc::Status&) { kept->failed.set_value(); });
    kept->failed.get_future().wait();
    return kept;
  }();
  static_cast<void>(kept_for_ever.load());
}

size_t WireBytes(size_t message_bytes) {
  return message_bytes + kCallBytes + (message_bytes / kFrameBytesMin + 1) * kFrameHeaderBytes;
}

}  // namespace cairnfs::cluster
