#include "io/io_request.h"

#include <algorithm>
#include <cerrno>

namespace cairnfs::io {
namespace {

constexpr size_t kCallBytesMax = kGiB;  // Linux moves less than 2 GiB in one call

Error FailedRequest(const IoRequest& request, int errno_value) {
  return ErrnoError(errno_value, (request.write ? "writing " : "reading ") + *request.path + " at offset " +
                                     std::to_string(request.next_offset()));
}

}  // namespace

size_t IoRequest::next_size() const { return std::min(size - moved, kCallBytesMax); }

std::optional<Result<size_t>> Advance(IoRequest& request, int64_t outcome) {
  // io_uring cancels what a thread had handed in when that thread ends; nobody asked for that here.
  if (outcome == -EINTR || outcome == -EAGAIN || outcome == -ECANCELED) return std::nullopt;
  if (outcome < 0) return FailedRequest(request, static_cast<int>(-outcome));

  const size_t moved_before = request.moved;
  request.moved += static_cast<size_t>(outcome);
  if (request.moved == request.size) return request.moved;
  if (!request.write) {
    // A direct read stops inside a page only at the end of the file, and could not go on from there.
    bool at_end = outcome == 0 || (request.direct && request.moved % kPageBytes != 0);
    if (at_end) return request.moved;
    return std::nullopt;
  }
  if (request.direct) request.moved -= request.moved % kPageBytes;
  if (request.moved == moved_before) {
    return MakeError(ErrorCode::kIo, "writing " + *request.path + " at offset " +
                                         std::to_string(request.next_offset()) + ": the kernel wrote " +
                                         std::to_string(outcome) + " bytes only");
  }
  return std::nullopt;
}

void Finish(std::unique_ptr<IoRequest> request, Result<size_t> result) {
  IoCallback done = std::move(request->done);
  std::atomic<uint64_t>* in_flight = request->in_flight;
  request.reset();
  // Before the callback: it may let the file's owner close the file.
  in_flight->fetch_sub(1, std::memory_order_release);
  done(std::move(result));
}

}  // namespace cairnfs::io
