// Checking: every index entry against the record that it names, and every such record against its digest.
#include <algorithm>
#include <optional>

#include "chunking/digest.h"
#include "store/compaction.h"
#include "store/segment_scanner.h"
#include "store/store_impl.h"

namespace cairnfs::store {
namespace {

constexpr uint64_t kCheckedEntriesMax = 1'000'000;
constexpr size_t kCheckReadBytesMax = 8 * kMiB;

std::string Describe(const ChunkIndex::Entry& entry) {
  return MakeSegmentName(SegmentName::kSegment, entry.location.segment) + ": chunk " + entry.digest.ToHex() +
         " at offset " + std::to_string(entry.location.offset) + ": ";
}

Error Stopped() { return MakeError(ErrorCode::kInterrupted, "the check was stopped"); }

// nullopt: the record is what the entry says.
std::optional<CheckProblem> WhatIsWrong(const ChunkIndex::Entry& entry, const Result<ByteSpan>& read,
                                        const Generation& generation) {
  const Location& location = entry.location;
  if (!read.ok()) return CheckProblem{Describe(entry) + read.error().message, {entry.digest}};
  const ByteSpan record = *read;
  if (record.size() < kRecordHeaderBytes + location.stored_bytes) {
    return CheckProblem{Describe(entry) + "the segment file ends before the chunk does", {entry.digest}};
  }
  bool data_matches =
      chunking::Names(entry.digest, chunking::ComputeDigest(record.subspan(kRecordHeaderBytes, location.stored_bytes)));
  if (!data_matches) return CheckProblem{Describe(entry) + "the bytes do not match the digest", {entry.digest}};
  RecordHeader expected{location.codec, location.raw_bytes, location.stored_bytes, entry.digest};
  auto header = DecodeRecordHeader(record, generation, location.offset);
  if (!header || *header != expected) {
    return CheckProblem{Describe(entry) + "the record's header is damaged (the bytes are intact)"};
  }
  return std::nullopt;
}

std::vector<Digest> DigestsOf(const std::vector<ChunkIndex::Entry>& entries) {
  std::vector<Digest> digests;
  digests.reserve(entries.size());
  for (const ChunkIndex::Entry& entry : entries) digests.push_back(entry.digest);
  return digests;
}

using Reporter = std::function<void(const CheckProblem&)>;

class StoreCheck {
 public:
  struct Parts {  // all outlive it
    io::Disk& disk;
    ChunkIndex& index;
    SegmentSet& segments;
    const std::map<uint64_t, std::string>& unusable;  // segment id: what is wrong
    std::function<void(const ChunkIndex::Entry&)> note_damaged;
  };
  StoreCheck(Parts parts, const Context& context, const Reporter& report, std::atomic<uint64_t>& bytes_read)
      : at_(std::move(parts)), context_(context), report_(report), bytes_read_(bytes_read) {}
  Status Run();

 private:
  Status CheckSegment(const NamedSegment& named);
  // Fills in, for each segment that is a key, the chunks that the index names in it.
  Status CollectChunks(const ChunkIndex::View& view, std::map<uint64_t, std::vector<Digest>>& chunks);
  // True when the index still has the entry: so what is wrong there is damage, not a chunk that moved.
  bool StillThere(const ChunkIndex::Entry& entry);
  Status ReportMissing(const SegmentUses& uses, const ChunkIndex::View& view);
  Status ReportUnnamed();

  const Parts at_;
  const Context& context_;
  const Reporter& report_;
  std::atomic<uint64_t>& bytes_read_;
};

Status StoreCheck::Run() {
  // First: which segments does the index name, and how often?
  SegmentUses uses;
  ChunkIndex::View view = at_.index.TakeView();
  uint64_t seen_count = 0, seen_bytes = 0;
  std::string after;
  for (;;) {
    if (context_.Expired()) return Stopped();
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, at_.index.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) break;
    for (const ChunkIndex::Entry& entry : entries) {
      ++uses[entry.location.segment.value].live_count;
      ++seen_count;
      seen_bytes += entry.location.raw_bytes;
    }
  }
  if (seen_count != view.chunk_count || seen_bytes != view.unique_bytes) {
    report_({"the chunk index counts " + std::to_string(view.chunk_count) + " chunks of " +
             std::to_string(view.unique_bytes) + " bytes and holds " + std::to_string(seen_count) + " of " +
             std::to_string(seen_bytes) + "; a collection corrects that"});
  }
  CAIRNFS_RETURN_IF_ERROR(ReportMissing(uses, view));
  CAIRNFS_RETURN_IF_ERROR(ReportUnnamed());
  view.snapshot.reset();  // while it lives, the engine cannot recover from a full disk; what follows takes long
  std::vector<SegmentPtr> segments = at_.segments.All();
  size_t begin = 0;
  while (begin < segments.size()) {
    uint64_t entries = 0;
    size_t end = begin;
    while (end < segments.size() && (end == begin || entries < kCheckedEntriesMax)) {
      entries += uses[segments[end++]->header.id.value].live_count;
    }
    const std::span group = std::span(segments).subspan(begin, end - begin);
    CAIRNFS_ASSIGN_OR_RETURN(NamedSegments checked, CollectEntries(at_.index, group));
    for (size_t i = begin; i < end; ++i) segments[i] = nullptr;
    for (NamedSegment& each : checked) {
      CAIRNFS_RETURN_IF_ERROR(CheckSegment(each));
      each = NamedSegment();  // lets it be freed meanwhile
    }
    begin = end;
  }
  return {};
}

Status StoreCheck::ReportMissing(const SegmentUses& uses, const ChunkIndex::View& view) {
  std::map<uint64_t, std::vector<Digest>> lost;
  for (const auto& [id, what] : at_.unusable) lost[id];
  for (const auto& [id, use] : uses) {
    SegmentId segment{id};
    if (!at_.segments.Find(segment) && at_.index.NamesSegment(segment)) lost[id];
  }
  if (lost.empty()) return {};
  CAIRNFS_RETURN_IF_ERROR(CollectChunks(view, lost));
  for (auto& [id, chunks] : lost) {
    const std::string names = ": the index names " + std::to_string(chunks.size()) + " chunks in it";
    auto unusable = at_.unusable.find(id);
    if (unusable == at_.unusable.end()) {
      report_({MakeSegmentName(SegmentName::kSegment, SegmentId{id}) + " is missing" + names, std::move(chunks)});
    } else {
      report_({unusable->second + names +
                   "; put that file back from a copy, or give the chunks up with: cairnfs check --rebuild-index",
               std::move(chunks)});
    }
  }
  return {};
}

// Reports open segments whose file somebody removed or renamed. They can be read until this process ends.
Status StoreCheck::ReportUnnamed() {
  const std::vector<SegmentPtr> segments = at_.segments.All();
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<std::string> names, at_.disk.List());
  for (const SegmentPtr& segment : segments) {
    const SegmentId id = segment->header.id;
    const std::string name = segment->name();
    if (std::binary_search(names.begin(), names.end(), name)) continue;
    if (at_.segments.Find(id) == nullptr || !at_.index.NamesSegment(id)) continue;  // freed meanwhile
    if (!at_.segments.FileOf(*segment).ok()) continue;  // it is not open, and so lost: CheckSegment tells
    report_({name + " was removed or renamed while it is in use, and what lies in it is lost when the daemon ends: put "
                    "the file back, or copy what you need to another file system before that"});
  }
  return {};
}

Status StoreCheck::CollectChunks(const ChunkIndex::View& view, std::map<uint64_t, std::vector<Digest>>& chunks) {
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, at_.index.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) return {};
    for (const ChunkIndex::Entry& entry : entries) {
      auto found = chunks.find(entry.location.segment.value);
      if (found != chunks.end()) found->second.push_back(entry.digest);
    }
  }
}

bool StoreCheck::StillThere(const ChunkIndex::Entry& entry) {
  auto found = at_.index.Find(entry.digest);
  return found.ok() && found->has_value() && **found == entry.location;
}

Status StoreCheck::CheckSegment(const NamedSegment& named) {
  const Segment& segment = *named.segment;
  auto file = at_.segments.FileOf(*named.segment);
  if (!file.ok()) {
    if (segment.freed.load()) return {};
    const ErrorCode code = file.error().code;
    if (code == ErrorCode::kExhausted || code == ErrorCode::kPermission) {  // says nothing about the chunks
      report_({segment.name() + ": " + file.error().message + "; its chunks were not checked"});
      return {};
    }
    for (const ChunkIndex::Entry& entry : named.entries) at_.note_damaged(entry);
    report_({segment.name() + ": " + file.error().message, DigestsOf(named.entries)});
    return {};
  }
  FileWindow window(**file, kCheckReadBytesMax);
  auto block = window.Load(0, kSegmentHeaderBytes, kSegmentHeaderBytes);
  auto header = block.ok() ? DecodeSegmentHeader(*block) : Result<SegmentHeader>(block.error());
  if (!header.ok()) {
    report_({segment.name() + ": " + header.error().message});
  } else if (*header != segment.header && !segment.freed.load()) {
    report_({segment.name() + ": the header changed since the store was opened"});
  }
  uint64_t limit = segment.header.size_bytes;
  for (const ChunkIndex::Entry& entry : named.entries) {
    if (context_.Expired()) return Stopped();
    auto record = window.Load(entry.location.offset, kRecordHeaderBytes + entry.location.stored_bytes, limit);
    auto wrong = WhatIsWrong(entry, record, segment.header.generation);
    bytes_read_ += entry.location.raw_bytes;
    if (!wrong || !StillThere(entry)) continue;
    if (!wrong->chunks.empty()) at_.note_damaged(entry);
    report_(*wrong);
  }
  return {};
}

}  // namespace

Status LocalChunkStore::Impl::Check(const Context& context, const Reporter& report, std::atomic<uint64_t>& bytes_read) {
  auto note_damaged = [this](const ChunkIndex::Entry& entry) {
    index_.NoteDamaged(entry.digest, entry.location);
    MutexLock lock(damage_mutex_);
    if (on_damage_) on_damage_(entry.digest);
  };
  return StoreCheck({disk_, index_, segments_, unusable_, note_damaged}, context, report, bytes_read).Run();
}

}  // namespace cairnfs::store
