// The layout of a file to be written: its segments, checked, in the order of the file, and the blocks that they are cut
// into. Owns what it needs of the request but the memory of tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/types.h"
#include "cairnfs/client.h"
#include "client/device.h"

namespace cairnfs::client {

struct Tensor {
  std::string name;
  const std::byte* data;
  uint64_t bytes;   // 1 at least
  uint64_t offset;  // in the file
  int32_t device;
  uint64_t first_block;  // in Layout::blocks
  uint64_t BlockCount() const { return BlocksOf(bytes); }
};

// A run of bytes that is judged and moved as one: a block of a tensor, or a literal.
struct Block {
  static constexpr uint32_t kLiteral = UINT32_MAX;
  uint64_t offset;  // in the file
  const std::byte* data;
  uint64_t bytes;       // of a tensor's block at most kBlockBytes
  uint32_t tensor;      // in Layout::tensors, or kLiteral
  int32_t device;       // of `data`
  bool is_reused;       // is taken from the base
  uint64_t old_offset;  // in the base, where is_reused
};

struct Layout {
  uint64_t file_bytes = 0;
  std::vector<Tensor> tensors;                // in the order of the file, without empty ones
  std::vector<std::vector<std::byte>> texts;  // of the literals
  std::vector<Block> blocks;                  // in the order of the file; those of a tensor one after the other
  uint64_t tensor_blocks = 0;
  uint64_t host_tensor_bytes = 0;
  uint64_t device_tensor_bytes = 0;
  std::map<int32_t, StreamHandle> streams;  // of each device that has a tensor
};

// kInvalidArgument, kStale, kUnavailable: the message names the segment.
Result<Layout> MakeLayout(const cairnfs_save_request& request, Devices& devices);

// Blocks that lie side by side in the file and in one kind of memory, to be moved together.
struct Span {
  uint64_t first;  // in Layout::blocks
  uint64_t count;
  uint64_t bytes;
};

enum class SpanKind { kHost, kDevice };
// Spans of at most `bytes_max` bytes of the blocks of that kind for which is_reused is `reused`. Literals are of the
// host, and join both kinds: those beside a device's block travel with it.
std::vector<Span> MakeSpans(const Layout& layout, SpanKind kind, bool reused, uint64_t bytes_max);

}  // namespace cairnfs::client
