// How a save moves bytes: host tensors through a writer's scratch or, where all of them fit there, the ring; device
// tensors through the ring; unchanged blocks from the base.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "client/block_digest.h"
#include "client/copy_memory.h"
#include "client/save_job.h"

namespace cairnfs::client {

// A piece of the ring that a device copies to. Until it goes, which waits for the copies, it has the piece.
class SaveJob::Arrival {
 public:
  Arrival(DeviceSide& side, Ring& ring, uint64_t bytes)
      : device_(side.device()), stream_(side.NextCopyStream()), piece_(ring, bytes) {}
  ~Arrival() {
    if (event_ == nullptr) {
      (void)device_.WaitForStream(stream_);
    } else {
      (void)device_.WaitForEvent(event_);
      device_.DeleteEvent(event_);
    }
  }
  Arrival(const Arrival&) = delete;

  StreamHandle stream() const { return stream_; }
  std::byte* data() const { return piece_.data(); }
  // To be called when all copies are on the stream.
  Status Record() {
    CAIRNFS_ASSIGN_OR_RETURN(event_, device_.Record(stream_));
    return {};
  }
  Status Wait() { return device_.WaitForEvent(event_); }

 private:
  Device& device_;
  StreamHandle stream_;
  EventHandle event_ = nullptr;
  const Ring::Piece piece_;
};

// Where the ring has room for all host tensors, they are free as soon as they are in it.
Status SaveJob::StageHost() {
  if (layout_.host_tensor_bytes == 0) return {};
  const std::vector<Span> spans = MakeSpans(layout_, SpanKind::kHost, false, kHostSpanBytes);
  uint64_t bytes = 0;
  for (const Span& span : spans) bytes += span.bytes;
  // Devices need the rest of it.
  const uint64_t rest = layout_.device_tensor_bytes > 0 ? std::max(parts_.ring.bytes() / 2, kRingBytesMin) : 0;
  if (AlignUp(bytes, Ring::kAlignment) + rest > parts_.ring.bytes()) return {};
  std::byte* place = parts_.ring.SetAside(bytes);
  is_staged_ = true;
  for (const Span& span : spans) {
    crew_->Post(host_, [this, span, place](unsigned) {
      std::byte* to = place;
      for (uint64_t i = span.first; i < span.first + span.count; i++) {
        Block& block = layout_.blocks[i];
        CopyMemory(to, block.data, block.bytes);
        block.data = to;
        to += block.bytes;
      }
      return Status();
    });
    place += span.bytes;
  }
  host_.Wait();
  CAIRNFS_RETURN_IF_ERROR(error_.Get());
  if (layout_.device_tensor_bytes == 0) outcome_->SourceIsFree();
  return {};
}

void SaveJob::PostHost(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    crew_->Post(host_, [this, span](unsigned thread) { return SaveHostSpan(span, thread); });
  }
}

// The source may change under the reader: what is hashed is what is written.
Status SaveJob::SaveHostSpan(const Span& span, unsigned thread) {
  std::vector<const std::byte*> data;
  std::byte* to = parts_.scratch.data() + thread * kHostSpanBytes;
  assert(is_staged_ || span.bytes <= kHostSpanBytes);
  for (uint64_t i = span.first; i < span.first + span.count; i++) {
    Block& block = layout_.blocks[i];
    if (!is_staged_) {
      CopyMemory(to, block.data, block.bytes);
      data.push_back(to);
      to += block.bytes;
    } else {
      data.push_back(block.data);
    }
    if (block.tensor != Block::kLiteral) Judge(block, i, data.back());
  }
  return WriteRuns(span, data);
}

void SaveJob::Judge(Block& block, uint64_t number, const std::byte* data) {
  const Tensor& tensor = layout_.tensors[block.tensor];
  const uint64_t index = number - tensor.first_block;
  Digest& digest = host_digests_[first_host_digest_[block.tensor] + index];
  digest = DigestOfBlock({data, block.bytes});
  const SavedTensor* old = reuse_.Find(tensor);
  block.is_reused = old != nullptr && reuse_.HasBlock(*old, index, digest);
  if (block.is_reused) block.old_offset = old->offset + index * kBlockBytes;
}

// The blocks of a span that are not reused, in as few writes as possible.
Status SaveJob::WriteRuns(const Span& span, const std::vector<const std::byte*>& data) {
  uint64_t i = 0;
  while (i < span.count) {
    if (layout_.blocks[span.first + i].is_reused) {
      i++;
      continue;
    }
    const uint64_t first = i;
    uint64_t bytes = 0;
    do {
      bytes += layout_.blocks[span.first + i].bytes;
      i++;
    } while (i < span.count && !layout_.blocks[span.first + i].is_reused && data[first] + bytes == data[i]);
    CAIRNFS_RETURN_IF_ERROR(output_->Write(data[first], bytes, layout_.blocks[span.first + first].offset));
    bytes_written_ += bytes;
  }
  return {};
}

uint64_t SaveJob::DeviceSpanBytes() const {
  return std::min(kDeviceSpanBytesMax, std::max<uint64_t>(parts_.ring.room() / 4, kBlockBytes));
}

Status SaveJob::StageDevices(const std::vector<Span>& spans) {
  for (const Span& span : spans) {
    CAIRNFS_RETURN_IF_ERROR(error_.Get());
    CAIRNFS_RETURN_IF_ERROR(StageDeviceSpan(span));
  }
  return {};
}

// Literals alone, beside blocks of a device that are reused: they stay where they are, and may be more than scratch
// holds.
void SaveJob::PostLiterals(const Span& span) {
  crew_->Post(writes_, [this, span](unsigned) {
    std::vector<const std::byte*> data;
    for (uint64_t i = 0; i < span.count; i++) data.push_back(layout_.blocks[span.first + i].data);
    return WriteRuns(span, data);
  });
}

Status SaveJob::StageDeviceSpan(const Span& span) {
  Block* const blocks = &layout_.blocks[span.first];
  const auto of_device =
      std::find_if(blocks, blocks + span.count, [](const Block& b) { return b.device != CAIRNFS_HOST; });
  if (of_device == blocks + span.count) {
    PostLiterals(span);
    return {};
  }
  DeviceSide& side = *parts_.devices.at(of_device->device);
  const auto arrival = std::make_shared<Arrival>(side, parts_.ring, span.bytes);
  std::byte* to = arrival->data();
  for (uint64_t i = 0; i < span.count;) {
    const uint64_t first = i;
    uint64_t bytes = 0;
    do bytes += blocks[i++].bytes;
    while (i < span.count && blocks[i].device == blocks[first].device && blocks[i].tensor == blocks[first].tensor &&
           blocks[first].data + bytes == blocks[i].data);
    if (blocks[first].device == CAIRNFS_HOST) {
      std::memcpy(to, blocks[first].data, bytes);
    } else {
      CAIRNFS_RETURN_IF_ERROR(side.CopyToHost(to, blocks[first].data, bytes, arrival->stream()));
    }
    to += bytes;
  }
  CAIRNFS_RETURN_IF_ERROR(arrival->Record());
  crew_->Post(writes_, [this, arrival, span](unsigned) -> Status {
    CAIRNFS_RETURN_IF_ERROR(arrival->Wait());
    CAIRNFS_RETURN_IF_ERROR(output_->Write(arrival->data(), span.bytes, layout_.blocks[span.first].offset));
    bytes_written_ += span.bytes;
    return {};
  });
  return {};
}

// Blocks that lie side by side in both files are one copy.
void SaveJob::PostCopies(Where where) {
  constexpr uint64_t kBytesMax = 256 * kMiB;
  struct Run {
    uint64_t from, to, bytes;
  };
  std::vector<Run> runs;
  for (const Block& block : layout_.blocks) {
    // Writers may still be judging the other kind.
    if ((block.device == CAIRNFS_HOST) != (where == Where::kHost) || !block.is_reused) continue;
    if (!runs.empty() && runs.back().from + runs.back().bytes == block.old_offset &&
        runs.back().to + runs.back().bytes == block.offset && runs.back().bytes + block.bytes <= kBytesMax) {
      runs.back().bytes += block.bytes;
    } else {
      runs.push_back({block.old_offset, block.offset, block.bytes});
    }
  }
  for (const Run& run : runs) {
    crew_->Post(copies_, [this, run](unsigned) {
      reuse_.Copy(run.from, output_->descriptor(), run.to, run.bytes);
      return Status();
    });
  }
}

}  // namespace cairnfs::client
