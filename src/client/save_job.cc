#include "client/save_job.h"

#include <algorithm>
#include <cassert>
#include <cstdio>
#include <exception>

#include "client/copy_memory.h"
#include "client/errors.h"

namespace cairnfs::client {

SaveJob::SaveJob(Layout layout, Options options, SaveParts parts, std::shared_ptr<SaveOutcome> outcome)
    : layout_(std::move(layout)), options_(std::move(options)), parts_(parts), outcome_(std::move(outcome)) {
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
  CAIRNFS_RETURN_IF_ERROR(OpenFiles());
  const Judging judging = base_ != nullptr ? Judging::kCompare : Judging::kWriteAll;
  PostHost(MakeSpans(layout_, SpanKind::kHost, false, kHostSpanBytes), judging);
  CAIRNFS_RETURN_IF_ERROR(JudgeDevices());
  PostCopies(Where::kDevice);
  CAIRNFS_RETURN_IF_ERROR(StageDevices(MakeSpans(layout_, SpanKind::kDevice, false, DeviceSpanBytes())));
  host_.Wait();
  PostCopies(Where::kHost);
  CAIRNFS_RETURN_IF_ERROR(WaitForSource());
  return MoveAgain();
}

Status SaveJob::OpenFiles() {
  CAIRNFS_ASSIGN_OR_RETURN(output_, OutputFile::Create({options_.path, options_.mode, layout_.file_bytes}));
  OpenBase();
  return {};
}

void SaveJob::OpenBase() {
  if (!options_.base.has_value()) {
    result_.base_use = CAIRNFS_BASE_NOT_ASKED;
    return;
  }
  if (!parts_.old.has_value()) {
    DropBase({CAIRNFS_BASE_NO_FINGERPRINTS, *options_.base + ": this saver has no fingerprints of it"});
    return;
  }
  BaseFile::Opened opened = BaseFile::Open(*options_.base, parts_.old->file, output_->device());
  base_ = std::move(opened.file);
  if (base_ == nullptr) {
    DropBase(opened.problem);
  } else {
    result_.base_use = CAIRNFS_BASE_USED;
  }
}

void SaveJob::DropBase(const BaseProblem& problem) {
  result_.base_use = problem.use;
  std::snprintf(result_.base_text, sizeof result_.base_text, "%s", problem.text.c_str());
}

uint64_t SaveJob::DeviceSpanBytes() const {
  return std::min(kDeviceSpanBytesMax, std::max<uint64_t>(parts_.ring.room() / 4, kBlockBytes));
}

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

const SavedTensor* SaveJob::OldTensor(uint32_t tensor) const {
  if (base_ == nullptr) return nullptr;
  const auto found = parts_.old->tensors.find(layout_.tensors[tensor].name);
  return found == parts_.old->tensors.end() || found->second.device != layout_.tensors[tensor].device ? nullptr
                                                                                                      : &found->second;
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
  if (base_ == nullptr) return {};  // nothing to wait for before the copies
  for (const auto& [number, stream] : layout_.streams) {
    CAIRNFS_RETURN_IF_ERROR(parts_.devices.at(number)->WaitForJudgement());
  }
  for (uint32_t i = 0; i < layout_.tensors.size(); i++) {
    const Tensor& tensor = layout_.tensors[i];
    const SavedTensor* old = tensor.device == CAIRNFS_HOST ? nullptr : OldTensor(i);
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
  std::optional<BaseProblem> problem;
  if (base_ != nullptr) {
    MutexLock lock(problem_mutex_);
    problem = problem_.has_value() ? problem_ : base_->Check();
  }
  if (problem.has_value()) {
    DropBase(*problem);
    bytes_reused_ = 0;
    const std::vector<Span> host = MakeSpans(layout_, SpanKind::kHost, true, kHostSpanBytes);
    const std::vector<Span> device = MakeSpans(layout_, SpanKind::kDevice, true, DeviceSpanBytes());
    for (Block& block : layout_.blocks) block.is_reused = false;
    PostHost(host, Judging::kWriteAll);
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
  base_.reset();
  result_.bytes_written = bytes_written_;
  result_.bytes_reused = bytes_reused_;
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
