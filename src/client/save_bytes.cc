// How a save moves bytes: host tensors through a writer's scratch, device tensors through the ring, unchanged ones from
// the base.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "client/block_digest.h"
#include "client/save_job.h"

namespace cairnfs::client {

void SaveJob::PostHost(const std::vector<Span>& spans, Judging judging) {
  for (const Span& span : spans) {
    crew_->Post(host_, [this, span, judging](unsigned thread) {
      if (error_.IsSet()) return;
      const Status status = SaveHostSpan(span, judging, thread);
      if (!status.ok()) error_.Set(status.error());
    });
  }
}

// The source may change under the reader: what is hashed is what is written.
Status SaveJob::SaveHostSpan(const Span& span, Judging judging, unsigned thread) {
  std::vector<std::byte>& scratch = parts_.scratch[thread];
  std::vector<const std::byte*> data;
  std::byte* to = scratch.data();
  assert(is_staged_ || span.bytes <= scratch.size());
  for (uint64_t i = span.first; i < span.first + span.count; i++) {
    Block& block = layout_.blocks[i];
    if (!is_staged_) {
      std::memcpy(to, block.data, block.bytes);
      data.push_back(to);
      to += block.bytes;
    } else {
      data.push_back(block.data);
    }
    if (block.tensor != Block::kLiteral) Judge(block, i, data.back(), judging);
  }
  return WriteRuns(span, data);
}

void SaveJob::Judge(Block& block, uint64_t number, const std::byte* data, Judging judging) {
  const Tensor& tensor = layout_.tensors[block.tensor];
  const uint64_t index = number - tensor.first_block;
  Digest& digest = host_digests_[first_host_digest_[block.tensor] + index];
  digest = DigestOfBlock({data, block.bytes});
  const SavedTensor* old = judging == Judging::kCompare ? OldTensor(block.tensor) : nullptr;
  block.is_reused = old != nullptr && index * kBlockBytes < old->bytes &&
                    parts_.old->host_digests[old->first_digest + index] == digest;
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
    if (error_.IsSet()) return;
    std::vector<const std::byte*> data;
    for (uint64_t i = 0; i < span.count; i++) data.push_back(layout_.blocks[span.first + i].data);
    const Status status = WriteRuns(span, data);
    if (!status.ok()) error_.Set(status.error());
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
  StreamHandle stream = side.NextCopyStream();
  std::byte* const piece = parts_.ring.Take(span.bytes);
  Status status;
  uint64_t at = 0;
  for (uint64_t i = 0; i < span.count && status.ok();) {
    const uint64_t first = i;
    uint64_t bytes = 0;
    do bytes += blocks[i++].bytes;
    while (i < span.count && blocks[i].device == blocks[first].device && blocks[i].tensor == blocks[first].tensor &&
           blocks[first].data + bytes == blocks[i].data);
    if (blocks[first].device == CAIRNFS_HOST) {
      std::memcpy(piece + at, blocks[first].data, bytes);
    } else {
      status = side.CopyToHost(piece + at, blocks[first].data, bytes, stream);
    }
    at += bytes;
  }
  Result<EventHandle> copied = status.ok() ? side.device().Record(stream) : Result<EventHandle>(status.error());
  if (!copied.ok()) {
    (void)side.device().WaitForStream(stream);
    parts_.ring.Give(piece);
    return copied.error();
  }
  crew_->Post(writes_, [this, &side, span, piece, event = *copied](unsigned) {
    Status written = side.device().WaitForEvent(event);
    side.device().DeleteEvent(event);
    if (written.ok() && !error_.IsSet()) {
      written = output_->Write(piece, span.bytes, layout_.blocks[span.first].offset);
      bytes_written_ += span.bytes;
    }
    if (!written.ok()) error_.Set(written.error());
    parts_.ring.Give(piece);
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
      if (error_.IsSet()) return;
      {
        MutexLock lock(problem_mutex_);
        if (problem_.has_value()) return;
      }
      if (auto problem = base_->Copy(run.from, output_->descriptor(), run.to, run.bytes)) {
        MutexLock lock(problem_mutex_);
        if (!problem_.has_value()) problem_ = *problem;
        return;
      }
      bytes_reused_ += run.bytes;
    });
  }
}

}  // namespace cairnfs::client
