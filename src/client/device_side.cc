#include "client/device_side.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace cairnfs::client {
namespace {

constexpr uint64_t kAlignment = 256;  // of a tensor in the snapshot
constexpr uint64_t kDigestBytes = blake3::kValueWords * sizeof(uint32_t);

}  // namespace

DeviceSide::~DeviceSide() {
  DeleteEvents();
  for (const Buffer* buffer : {&old_digests_, &digests_, &tile_values_, &table_, &bits_, &snapshot_}) {
    device_.Free(buffer->memory);
  }
  for (const Pinned* pinned : {&host_table_, &host_bits_}) {
    if (pinned->memory != nullptr) devices_.FreePinned(pinned->memory, pinned->bytes);
  }
  for (StreamHandle stream : streams_) device_.DeleteStream(stream);
}

Status DeviceSide::Grow(Buffer& buffer, uint64_t bytes) {
  if (bytes <= buffer.bytes) return {};
  device_.Free(buffer.memory);
  buffer = {};
  CAIRNFS_ASSIGN_OR_RETURN(buffer.memory, device_.Allocate(bytes));
  buffer.bytes = bytes;
  return {};
}

Status DeviceSide::Grow(Pinned& pinned, uint64_t bytes) {
  if (bytes <= pinned.bytes) return {};
  if (pinned.memory != nullptr) devices_.FreePinned(pinned.memory, pinned.bytes);
  pinned = {};
  CAIRNFS_ASSIGN_OR_RETURN(pinned.memory, devices_.AllocatePinned(bytes));
  pinned.bytes = bytes;
  return {};
}

Status DeviceSide::MakeStreams(uint32_t copies_in_flight) {
  streams_.reserve(copies_in_flight);
  while (streams_.size() < copies_in_flight) {
    CAIRNFS_ASSIGN_OR_RETURN(StreamHandle stream, device_.NewStream());
    streams_.push_back(stream);
  }
  return {};
}

void DeviceSide::MakeTable(const Layout& layout, const Fingerprints* old) {
  tensors_.clear();
  numbers_.clear();
  first_block_of_.assign(layout.tensors.size(), UINT32_MAX);
  block_count_ = 0;
  compares_ = false;
  for (uint32_t i = 0; i < layout.tensors.size(); i++) {
    const Tensor& tensor = layout.tensors[i];
    if (tensor.device != number_) continue;
    FingerprintTensor entry{reinterpret_cast<const unsigned char*>(tensor.data), tensor.bytes, block_count_, 0, 0, 0};
    if (old != nullptr) {
      const auto found = old->tensors.find(tensor.name);
      if (found != old->tensors.end() && found->second.device == number_) {
        entry.old_first_digest = static_cast<uint32_t>(found->second.first_digest);
        entry.old_digest_count = static_cast<uint32_t>(BlocksOf(found->second.bytes));
        compares_ = true;
      }
    }
    first_block_of_[i] = block_count_;
    block_count_ += static_cast<uint32_t>(tensor.BlockCount());
    tensors_.push_back(entry);
    numbers_.push_back(i);
  }
}

Status DeviceSide::Reserve() {
  const uint64_t table_bytes = tensors_.size() * sizeof(FingerprintTensor);
  const uint64_t bits_bytes = (uint64_t{block_count_} + 31) / 32 * sizeof(uint32_t);
  CAIRNFS_RETURN_IF_ERROR(Grow(table_, table_bytes));
  CAIRNFS_RETURN_IF_ERROR(Grow(host_table_, table_bytes));
  CAIRNFS_RETURN_IF_ERROR(Grow(bits_, bits_bytes));
  CAIRNFS_RETURN_IF_ERROR(Grow(host_bits_, bits_bytes));
  CAIRNFS_RETURN_IF_ERROR(Grow(digests_, uint64_t{block_count_} * kDigestBytes));
  return Grow(tile_values_, uint64_t{SlabBlocks()} * kTilesPerBlock * kDigestBytes);
}

Status DeviceSide::Begin(Layout& layout, const Options& options) {
  DeleteEvents();
  made_snapshot_ = false;
  bytes_over_bus_ = 0;
  next_stream_ = 0;
  last_stream_ = options.stream;
  CAIRNFS_RETURN_IF_ERROR(MakeStreams(options.copies_in_flight));
  MakeTable(layout, options.old);
  CAIRNFS_RETURN_IF_ERROR(Reserve());
  const Status status = Enqueue(layout, options);
  if (!status.ok()) Finish();
  return status;
}

// Where the device has no room for a snapshot that is not needed there is none.
Status DeviceSide::Snapshot(Layout& layout, const Options& options) {
  uint64_t bytes = 0;
  for (const FingerprintTensor& tensor : tensors_) bytes += AlignUp(tensor.bytes, kAlignment);
  const Status room = Grow(snapshot_, bytes);
  if (!room.ok()) return room.error().code == ErrorCode::kRange && !options.needs_snapshot ? Status() : room;
  auto* to = static_cast<std::byte*>(snapshot_.memory);
  for (size_t i = 0; i < tensors_.size(); i++) {
    FingerprintTensor& entry = tensors_[i];
    Tensor& tensor = layout.tensors[numbers_[i]];
    CAIRNFS_RETURN_IF_ERROR(device_.CopyOnDevice(to, entry.data, entry.bytes, options.stream));
    entry.data = reinterpret_cast<const unsigned char*>(to);
    tensor.data = to;
    for (uint64_t block = 0; block < tensor.BlockCount(); block++) {
      layout.blocks[tensor.first_block + block].data = to + block * kBlockBytes;
    }
    to += AlignUp(entry.bytes, kAlignment);
  }
  made_snapshot_ = true;
  return {};
}

Status DeviceSide::Enqueue(Layout& layout, const Options& options) {
  if (options.wants_snapshot) CAIRNFS_RETURN_IF_ERROR(Snapshot(layout, options));
  CAIRNFS_ASSIGN_OR_RETURN(readable_, device_.Record(options.stream));
  // Work on a snapshot would hold up what the caller puts on its stream.
  if (made_snapshot_) last_stream_ = streams_.front();
  for (StreamHandle stream : streams_) CAIRNFS_RETURN_IF_ERROR(device_.StreamWaits(stream, readable_));
  CAIRNFS_RETURN_IF_ERROR(Fingerprint(*last_stream_));
  CAIRNFS_ASSIGN_OR_RETURN(judged_, device_.Record(*last_stream_));
  return {};
}

Status DeviceSide::Fingerprint(StreamHandle stream) {
  const uint64_t table_bytes = tensors_.size() * sizeof(FingerprintTensor);
  const uint64_t bits_bytes = (uint64_t{block_count_} + 31) / 32 * sizeof(uint32_t);
  std::memcpy(host_table_.memory, tensors_.data(), table_bytes);
  CAIRNFS_RETURN_IF_ERROR(device_.CopyToDevice(table_.memory, host_table_.memory, table_bytes, stream));
  bytes_over_bus_ += table_bytes;
  FingerprintJob job{static_cast<const FingerprintTensor*>(table_.memory),
                     static_cast<uint32_t>(tensors_.size()),
                     block_count_,
                     SlabBlocks(),
                     static_cast<uint32_t*>(tile_values_.memory),
                     static_cast<const uint32_t*>(old_digests_.memory),
                     static_cast<uint32_t*>(digests_.memory),
                     compares_ ? static_cast<uint32_t*>(bits_.memory) : nullptr};
  if (compares_) CAIRNFS_RETURN_IF_ERROR(device_.SetToZero(bits_.memory, bits_bytes, stream));
  CAIRNFS_RETURN_IF_ERROR(device_.Fingerprint(job, stream));
  if (compares_) {
    CAIRNFS_RETURN_IF_ERROR(device_.CopyToHost(host_bits_.memory, bits_.memory, bits_bytes, stream));
    bytes_over_bus_ += bits_bytes;
  }
  return {};
}

Status DeviceSide::WaitForSnapshot() { return device_.WaitForEvent(readable_); }
Status DeviceSide::WaitForJudgement() { return device_.WaitForEvent(judged_); }

bool DeviceSide::IsChanged(uint32_t tensor, uint64_t index) const {
  if (!compares_) return true;
  const uint64_t block = first_block_of_[tensor] + index;
  return (static_cast<const uint32_t*>(host_bits_.memory)[block / 32] >> (block % 32) & 1) != 0;
}

StreamHandle DeviceSide::NextCopyStream() { return streams_[next_stream_++ % streams_.size()]; }

Status DeviceSide::CopyToHost(std::byte* to, const std::byte* from, uint64_t bytes, StreamHandle stream) {
  bytes_over_bus_ += bytes;
  return device_.CopyToHost(to, from, bytes, stream);
}

Status DeviceSide::WaitForCopies() {
  for (StreamHandle stream : streams_) CAIRNFS_RETURN_IF_ERROR(device_.WaitForStream(stream));
  return {};
}

void DeviceSide::Commit() { std::swap(old_digests_, digests_); }

uint64_t DeviceSide::FirstDigest(uint32_t tensor) const {
  assert(first_block_of_[tensor] != UINT32_MAX);
  return first_block_of_[tensor];
}

void DeviceSide::Finish() {
  if (!last_stream_.has_value()) return;
  // Errors were met before, or will be by the next call that the caller makes.
  for (StreamHandle stream : streams_) (void)device_.WaitForStream(stream);
  if (judged_ != nullptr) {
    (void)device_.WaitForEvent(judged_);
  } else {
    (void)device_.WaitForStream(*last_stream_);
  }
  last_stream_.reset();
  DeleteEvents();
}

void DeviceSide::DeleteEvents() {
  for (EventHandle* event : {&readable_, &judged_}) {
    if (*event != nullptr) device_.DeleteEvent(*event);
    *event = nullptr;
  }
}

}  // namespace cairnfs::client
