#include <unistd.h>

#include <cerrno>

#include "io/io_engine.h"
#include "io/task_queue.h"

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
  explicit ThreadEngine(unsigned queue_depth)
      : queue_({.thread_count = kThreadCount, .size_max = queue_depth, .thread_name = "disk-io"}) {}

  void Submit(std::unique_ptr<IoRequest> request) override {
    queue_.Post([raw = request.release()] {
      std::unique_ptr<IoRequest> owned(raw);
      std::optional<Result<size_t>> result;
      while (!result) result = Advance(*owned, Call(*owned));
      Finish(std::move(owned), std::move(*result));
    });
  }

 private:
  TaskQueue queue_;
};

}  // namespace

std::unique_ptr<IoEngine> MakeThreadEngine(unsigned queue_depth) { return std::make_unique<ThreadEngine>(queue_depth); }

}  // namespace cairnfs::io
