// One read or write on its way through an engine, and the rules by which it goes on after each system call. Internal.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "io/file.h"

namespace cairnfs::io {

struct IoRequest {
  bool write = false;
  bool direct = false;  // the file is open with O_DIRECT: offset, address and size are page multiples
  int fd = -1;
  uint64_t offset = 0;
  std::byte* data = nullptr;  // only read when `write`
  size_t size = 0;
  size_t moved = 0;  // done so far
  IoCallback done;
  const std::string* path = nullptr;           // the file's, for messages
  std::atomic<uint64_t>* in_flight = nullptr;  // the file's count of operations

  std::byte* next_data() const { return data + moved; }
  uint64_t next_offset() const { return offset + moved; }
  size_t next_size() const;  // at most what one system call takes
};

// Takes the outcome of one call (bytes moved, or a negative errno). Nullopt: the rest has to be submitted again; else
// the request's result.
std::optional<Result<size_t>> Advance(IoRequest& request, int64_t outcome);

// Reports the result and destroys the request. The file may be gone when it returns.
void Finish(std::unique_ptr<IoRequest> request, Result<size_t> result);

}  // namespace cairnfs::io
