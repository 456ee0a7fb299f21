// A file of the real disk. Internal.
#pragma once

#include <atomic>
#include <string>

#include "io/io_engine.h"

namespace cairnfs::io {

// As ErrnoError, of a call that opens or allocates a file; EMFILE, ENFILE and ENOMEM are kExhausted.
Error OpenError(int errno_value, const std::string& what);

class PosixFile final : public File {
 public:
  // What a disk has for its files; it outlives them.
  struct Shared {
    IoEngine& engine;
    std::atomic<uint64_t>& open_count;  // of its files
  };
  // Takes over `fd`.
  PosixFile(int fd, std::string path, bool direct, const Shared& disk);
  ~PosixFile() override;

  void ReadAsync(uint64_t offset, MutableByteSpan data, IoCallback done) override;
  void WriteAsync(uint64_t offset, ByteSpan data, IoCallback done) override;
  Status Write(uint64_t offset, ByteSpan data) override;
  Status DataSync() override;
  Status Allocate(uint64_t size) override;
  Status Truncate(uint64_t size) override;
  Result<uint64_t> Size() override;
  bool direct() const override { return direct_; }
  const std::string& path() const override { return path_; }

 private:
  enum class Direction { kRead, kWrite };
  void Start(Direction direction, uint64_t offset, std::byte* data, size_t size, IoCallback done);

  const int fd_;
  const std::string path_;
  const bool direct_;
  const Shared disk_;
  std::atomic<uint64_t> in_flight_{0};
};

}  // namespace cairnfs::io
