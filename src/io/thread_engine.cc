#include <unistd.h>

#include <cerrno>

#include "base/task_queue.h"
#include "io/io_engine.h"

namespace cairnfs::io {
namespace {

constexpr unsigned kThreadCount = 8;  // a disk wants several requests at once, whatever the count of cores

int64_t Call(const IoRequest& request) {
  const auto offset = static_cast<off_t>(request.next_offset());
  ssize_t moved = request.write ? pwrite(request.fd, request.next_data(), request.next_size(), offset)
                                : pread(request.fd, request.next_data(), request.next_size(), offset);
  return moved < 0 ? -errno : moved;
}

class ThreadEngine final : public IoEngine {
 public:
  void Submit(std::unique_ptr<IoRequest> request) override {
    queue_.Post([raw = request.release()] {
      std::unique_ptr<IoRequest> owned(raw);
      std::optional<Result<size_t>> result;
      while (!result) result = Advance(*owned, Call(*owned));
      Finish(std::move(owned), std::move(*result));
    });
  }

 private:
  TaskQueue queue_{"disk-io", kThreadCount};  // a task for each request, which has memory of its caller's
};

}  // namespace

std::unique_ptr<IoEngine> MakeThreadEngine() { return std::make_unique<ThreadEngine>(); }

}  // namespace cairnfs::io
