#include "client/layout.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "client/arguments.h"
#include "client/host_memory.h"

namespace cairnfs::client {
namespace {

std::string NameOfSegment(const cairnfs_segment& segment, size_t number) {
  std::string text = "segment " + std::to_string(number);
  if (segment.kind == CAIRNFS_TENSOR && segment.name != nullptr)
    text += std::string(" (tensor '") + segment.name + "')";
  return text;
}

Status CheckSegment(const cairnfs_segment& segment, uint64_t file_bytes, const std::string& what) {
  if (segment.kind != CAIRNFS_LITERAL && segment.kind != CAIRNFS_TENSOR) {
    return InvalidArgument(what + ": kind " + std::to_string(segment.kind) + " is none of cairnfs_segment_kind");
  }
  if (segment.offset > file_bytes || segment.bytes > file_bytes - segment.offset) {
    return InvalidArgument(what + ": " + std::to_string(segment.bytes) + " bytes at offset " +
                           std::to_string(segment.offset) + " end past the file's size of " +
                           std::to_string(file_bytes) + " bytes");
  }
  if (segment.kind == CAIRNFS_TENSOR && (segment.name == nullptr || segment.name[0] == '\0')) {
    return InvalidArgument(what + ": a tensor needs a name");
  }
  if (segment.device < CAIRNFS_HOST || (segment.kind == CAIRNFS_LITERAL && segment.device != CAIRNFS_HOST)) {
    return InvalidArgument(what + ": device " + std::to_string(segment.device) + " is no device here");
  }
  return {};
}

Status CheckDeviceMemory(const cairnfs_segment& segment, Devices& devices, const std::string& what) {
  const Result<Device*> device = devices.Get(segment.device);
  if (!device.ok()) return device.error().WithContext(what);
  return (*device)->CheckMemory(segment.data, segment.bytes, what);
}

void AddTensor(const cairnfs_segment& segment, Layout& layout) {
  const auto* data = static_cast<const std::byte*>(segment.data);
  const auto number = static_cast<uint32_t>(layout.tensors.size());
  layout.tensors.push_back({segment.name, data, segment.bytes, segment.offset, segment.device, layout.blocks.size()});
  for (uint64_t at = 0; at < segment.bytes; at += kBlockBytes) {
    layout.blocks.push_back({segment.offset + at, data + at, std::min<uint64_t>(kBlockBytes, segment.bytes - at),
                             number, segment.device, false, 0});
    layout.tensor_blocks++;
  }
  (segment.device == CAIRNFS_HOST ? layout.host_tensor_bytes : layout.device_tensor_bytes) += segment.bytes;
}

void AddLiteral(const cairnfs_segment& segment, Layout& layout) {
  const auto* data = static_cast<const std::byte*>(segment.data);
  layout.texts.emplace_back(data, data + segment.bytes);
  // Cut as tensors are, so that it fits where a block does.
  const std::byte* text = layout.texts.back().data();
  for (uint64_t at = 0; at < segment.bytes; at += kBlockBytes) {
    layout.blocks.push_back({segment.offset + at, text + at, std::min<uint64_t>(kBlockBytes, segment.bytes - at),
                             Block::kLiteral, CAIRNFS_HOST, false, 0});
  }
}

}  // namespace

Result<Layout> MakeLayout(const cairnfs_save_request& request, Devices& devices) {
  Layout layout;
  if (request.file_bytes > kFileSizeMax) {
    return InvalidArgument("file_bytes is " + std::to_string(request.file_bytes) + ", and at most " +
                           std::to_string(kFileSizeMax) + " is possible");
  }
  if (request.segments == nullptr && request.segment_count > 0) {
    return InvalidArgument("segments is NULL and segment_count is not 0");
  }
  if (request.segment_count >= Block::kLiteral) return InvalidArgument("too many segments");
  CAIRNFS_ASSIGN_OR_RETURN(auto streams, StreamsByDevice(request.streams, request.stream_count));
  layout.file_bytes = request.file_bytes;
  const HostMemory host = HostMemory::Now();
  std::vector<size_t> order;
  std::unordered_set<std::string_view> names;
  for (size_t i = 0; i < request.segment_count; i++) {
    const cairnfs_segment& segment = request.segments[i];
    const std::string what = NameOfSegment(segment, i);
    CAIRNFS_RETURN_IF_ERROR(CheckSegment(segment, request.file_bytes, what));
    if (segment.kind == CAIRNFS_TENSOR && !names.insert(segment.name).second) {
      return InvalidArgument(what + ": there are two tensors of that name");
    }
    if (segment.bytes == 0) continue;
    CAIRNFS_RETURN_IF_ERROR(segment.device == CAIRNFS_HOST
                                ? host.Check(segment.data, segment.bytes, HostMemory::Use::kRead, what)
                                : CheckDeviceMemory(segment, devices, what));
    order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return request.segments[a].offset < request.segments[b].offset; });
  for (size_t i = 0; i < order.size(); i++) {
    const cairnfs_segment& segment = request.segments[order[i]];
    if (i > 0) {
      const cairnfs_segment& before = request.segments[order[i - 1]];
      if (before.offset + before.bytes > segment.offset) {
        return InvalidArgument(NameOfSegment(segment, order[i]) + " overlaps " + NameOfSegment(before, order[i - 1]) +
                               " in the file, at offset " + std::to_string(segment.offset));
      }
    }
    if (segment.kind == CAIRNFS_TENSOR) {
      AddTensor(segment, layout);
      if (segment.device != CAIRNFS_HOST) layout.streams.emplace(segment.device, streams[segment.device]);
    } else {
      AddLiteral(segment, layout);
    }
  }
  return layout;
}

std::vector<Span> MakeSpans(const Layout& layout, SpanKind kind, bool reused, uint64_t bytes_max) {
  std::vector<Span> spans;
  const auto kind_of = [](const Block& block) {
    return block.device == CAIRNFS_HOST ? SpanKind::kHost : SpanKind::kDevice;
  };
  // A literal goes with the tensor before it, else with the first one; without any with the host's.
  const auto first = std::find_if(layout.blocks.begin(), layout.blocks.end(),
                                  [](const Block& block) { return block.tensor != Block::kLiteral; });
  SpanKind here = first == layout.blocks.end() ? SpanKind::kHost : kind_of(*first);
  int32_t device = CAIRNFS_HOST;  // of the span that is being made
  for (uint64_t i = 0; i < layout.blocks.size(); i++) {
    const Block& block = layout.blocks[i];
    if (block.tensor != Block::kLiteral) here = kind_of(block);
    if (here != kind || block.is_reused != reused) continue;  // writers may still be judging the other kind
    const bool fits_memory =
        block.device == CAIRNFS_HOST || device == CAIRNFS_HOST || device == block.device || spans.empty();
    if (!spans.empty() && fits_memory && spans.back().first + spans.back().count == i &&
        layout.blocks[i - 1].offset + layout.blocks[i - 1].bytes == block.offset &&
        spans.back().bytes + block.bytes <= bytes_max) {
      spans.back().count++;
      spans.back().bytes += block.bytes;
      if (block.device != CAIRNFS_HOST) device = block.device;
    } else {
      spans.push_back({i, 1, block.bytes});
      device = block.device;
    }
  }
  return spans;
}

}  // namespace cairnfs::client
