#include "client/save_job.h"

#include <algorithm>
#include <cassert>
#include <exception>

#include "client/errors.h"

namespace cairnfs::client {

SaveJob::SaveJob(Layout layout, Options options, SaveParts parts, std::shared_ptr<SaveOutcome> outcome)
    : layout_(std::move(layout)),
      options_(std::move(options)),
      parts_(parts),
      outcome_(std::move(outcome)),
      reuse_(options_.base, parts_.old) {
  uint64_t digests = 0;
  for (const Tensor& tensor : layout_.tensors) {
    first_host_digest_.push_back(digests);
    if (tensor.device == CAIRNFS_HOST) digests += tensor.BlockCount();
  }
  host_digests_.resize(digests);
  result_.file_bytes = layout_.file_bytes;
  result_.blocks = layout_.tensor_blocks;
  result_.ring_bytes = parts_.ring.bytes();
}

SaveJob::Ending SaveJob::Run() {
  Status status = Caught([this] { return MoveBytes(); });
  Finish();
  if (status.ok()) {
    status = Caught([this]() -> Status {
      CAIRNFS_RETURN_IF_ERROR(error_.Get());  // of the last writes
      return output_->Publish();
    });
  }
  if (!status.ok()) {
    output_.reset();
    outcome_->Fail(status.error());
    return {false, std::nullopt};
  }
  Ending ending{true, std::nullopt};
  (void)Caught([this, &ending]() -> Status {
    const std::optional<FileIdentity> file = output_->Look();
    if (file.has_value()) ending.fingerprints = MakeFingerprints(*file);
    return {};
  });
  if (ending.fingerprints.has_value()) {
    for (const auto& [number, stream] : layout_.streams) parts_.devices.at(number)->Commit();
  }
  // After the look: what its caller does to the file from now on shows.
  outcome_->Succeed(result_);
  return ending;
}

Status SaveJob::Caught(const std::function<Status()>& step) const {
  try {
    return step();
  } catch (const std::exception&) {  // std::bad_alloc, or a size that no memory can have
    return NoMemory(options_.path.c_str());
  }
}

Status SaveJob::MoveBytes() {
  CAIRNFS_ASSIGN_OR_RETURN(crew_, Crew::Start(options_.writers, error_));
  CAIRNFS_RETURN_IF_ERROR(StageHost());
  CAIRNFS_ASSIGN_OR_RETURN(output_, OutputFile::Create({options_.path, options_.mode, layout_.file_bytes}));
  reuse_.Open(output_->device());
  PostHost(MakeSpans(layout_, SpanKind::kHost, false, kHostSpanBytes));
  CAIRNFS_RETURN_IF_ERROR(JudgeDevices());
  PostCopies(Where::kDevice);
  CAIRNFS_RETURN_IF_ERROR(StageDevices(MakeSpans(layout_, SpanKind::kDevice, false, DeviceSpanBytes())));
  host_.Wait();
  PostCopies(Where::kHost);
  CAIRNFS_RETURN_IF_ERROR(WaitForSource());
  return MoveAgain();
}

Status SaveJob::JudgeDevices() {
  bool all_snapshots = true;
  for (const auto& [number, stream] : layout_.streams) {
    DeviceSide& side = *parts_.devices.at(number);
    all_snapshots = all_snapshots && side.made_snapshot();
    if (side.made_snapshot()) CAIRNFS_RETURN_IF_ERROR(side.WaitForSnapshot());
  }
  if (!layout_.streams.empty() && all_snapshots) {
    result_.snapshot = CAIRNFS_SNAPSHOT_DEVICE;
    if (layout_.host_tensor_bytes == 0 || is_staged_) outcome_->SourceIsFree();
  }
  if (!reuse_.IsPossible()) return {};  // nothing to wait for before the copies
  for (const auto& [number, stream] : layout_.streams) {
    CAIRNFS_RETURN_IF_ERROR(parts_.devices.at(number)->WaitForJudgement());
  }
  for (uint32_t i = 0; i < layout_.tensors.size(); i++) {
    const Tensor& tensor = layout_.tensors[i];
    const SavedTensor* old = tensor.device == CAIRNFS_HOST ? nullptr : reuse_.Find(tensor);
    if (old == nullptr) continue;
    const DeviceSide& side = *parts_.devices.at(tensor.device);
    for (uint64_t index = 0; index < tensor.BlockCount(); index++) {
      Block& block = layout_.blocks[tensor.first_block + index];
      block.is_reused = !side.IsChanged(i, index);
      block.old_offset = old->offset + index * kBlockBytes;
    }
  }
  return {};
}

Status SaveJob::WaitForSource() {
  copies_.Wait();
  for (const auto& [number, stream] : layout_.streams) {
    CAIRNFS_RETURN_IF_ERROR(parts_.devices.at(number)->WaitForCopies());
    CAIRNFS_RETURN_IF_ERROR(parts_.devices.at(number)->WaitForJudgement());
  }
  return error_.Get();
}

// When the base was not what it should be after all, what was taken from it comes from the source.
Status SaveJob::MoveAgain() {
  if (!reuse_.Confirm()) {
    const std::vector<Span> host = MakeSpans(layout_, SpanKind::kHost, true, kHostSpanBytes);
    const std::vector<Span> device = MakeSpans(layout_, SpanKind::kDevice, true, DeviceSpanBytes());
    for (Block& block : layout_.blocks) block.is_reused = false;
    PostHost(host);
    CAIRNFS_RETURN_IF_ERROR(StageDevices(device));
    host_.Wait();
    CAIRNFS_RETURN_IF_ERROR(WaitForSource());
  }
  outcome_->SourceIsFree();
  for (const Block& block : layout_.blocks) {
    if (block.tensor != Block::kLiteral && !block.is_reused) result_.blocks_changed++;
  }
  return {};
}

// Also after an error: nothing may use the memory of anybody when this returns.
void SaveJob::Finish() {
  if (crew_ != nullptr) {
    host_.Wait();
    copies_.Wait();
    writes_.Wait();
    crew_.reset();
  }
  for (const auto& [number, stream] : layout_.streams) {
    parts_.devices.at(number)->Finish();
    result_.bytes_over_bus += parts_.devices.at(number)->bytes_over_bus();
  }
  parts_.ring.PutBack();
  reuse_.Close();
  reuse_.Report(result_);
  result_.bytes_written = bytes_written_;
}

Fingerprints SaveJob::MakeFingerprints(const FileIdentity& file) {
  Fingerprints fingerprints{file, {}, std::move(host_digests_)};
  for (uint32_t i = 0; i < layout_.tensors.size(); i++) {
    const Tensor& tensor = layout_.tensors[i];
    const uint64_t first =
        tensor.device == CAIRNFS_HOST ? first_host_digest_[i] : parts_.devices.at(tensor.device)->FirstDigest(i);
    fingerprints.tensors.emplace(tensor.name, SavedTensor{tensor.offset, tensor.bytes, tensor.device, first});
  }
  return fingerprints;
}

}  // namespace cairnfs::client
