// Checking: every index entry against the record that it names, and every such record against its digest.
#include <algorithm>
#include <optional>

#include "chunking/digest.h"
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

}  // namespace

Status LocalChunkStore::Impl::Check(const Context& context, const Reporter& report, std::atomic<uint64_t>& bytes_read) {
  // First: which segments does the index name, and how often?
  SegmentUses uses;
  ChunkIndex::View view = index_.TakeView();
  uint64_t seen_count = 0, seen_bytes = 0;
  std::string after;
  for (;;) {
    if (context.Expired()) return Stopped();
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index_.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) break;
    for (const ChunkIndex::Entry& entry : entries) {
      ++uses[entry.location.segment.value].live_count;
      ++seen_count;
      seen_bytes += entry.location.raw_bytes;
    }
  }
  if (seen_count != view.chunk_count || seen_bytes != view.unique_bytes) {
    report({"the chunk index counts " + std::to_string(view.chunk_count) + " chunks of " +
            std::to_string(view.unique_bytes) + " bytes and holds " + std::to_string(seen_count) + " of " +
            std::to_string(seen_bytes) + "; a collection corrects that"});
  }
  CAIRNFS_RETURN_IF_ERROR(ReportMissing(uses, view, report));
  CAIRNFS_RETURN_IF_ERROR(ReportUnnamed(report));
  view.snapshot.reset();  // while it lives, the engine cannot recover from a full disk; what follows takes long
  std::vector<SegmentPtr> segments = segments_.All();
  size_t begin = 0;
  while (begin < segments.size()) {
    uint64_t entries = 0;
    size_t end = begin;
    while (end < segments.size() && (end == begin || entries < kCheckedEntriesMax)) {
      entries += uses[segments[end++]->header.id.value].live_count;
    }
    CAIRNFS_ASSIGN_OR_RETURN(Victims victims, CollectEntries(std::span(segments).subspan(begin, end - begin)));
    for (size_t i = begin; i < end; ++i) segments[i] = nullptr;
    for (Victim& victim : victims) {
      CAIRNFS_RETURN_IF_ERROR(CheckSegment(context, victim, report, bytes_read));
      victim = Victim();  // lets it be freed meanwhile
    }
    begin = end;
  }
  return {};
}

Status LocalChunkStore::Impl::ReportMissing(const SegmentUses& uses, const ChunkIndex::View& view,
                                            const Reporter& report) {
  std::map<uint64_t, std::vector<Digest>> lost;
  for (const auto& [id, what] : unusable_) lost[id];
  for (const auto& [id, use] : uses) {
    SegmentId segment{id};
    if (!segments_.Find(segment) && index_.NamesSegment(segment)) lost[id];
  }
  if (lost.empty()) return {};
  CAIRNFS_RETURN_IF_ERROR(CollectChunks(view, lost));
  for (auto& [id, chunks] : lost) {
    const std::string names = ": the index names " + std::to_string(chunks.size()) + " chunks in it";
    auto unusable = unusable_.find(id);
    if (unusable == unusable_.end()) {
      report({MakeSegmentName(SegmentName::kSegment, SegmentId{id}) + " is missing" + names, std::move(chunks)});
    } else {
      report({unusable->second + names +
                  "; put that file back from a copy, or give the chunks up with: cairnfs check --rebuild-index",
              std::move(chunks)});
    }
  }
  return {};
}

// Reports open segments whose file somebody removed or renamed. They can be read until this process ends.
Status LocalChunkStore::Impl::ReportUnnamed(const Reporter& report) {
  const std::vector<SegmentPtr> segments = segments_.All();
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<std::string> names, disk_.List());
  for (const SegmentPtr& segment : segments) {
    const SegmentId id = segment->header.id;
    const std::string name = segment->name();
    if (std::binary_search(names.begin(), names.end(), name)) continue;
    if (segments_.Find(id) == nullptr || !index_.NamesSegment(id)) continue;  // freed meanwhile
    if (!segments_.FileOf(*segment).ok()) continue;  // it is not open, and so lost: CheckSegment tells
    report({name + " was removed or renamed while it is in use, and what lies in it is lost when the daemon ends: put "
                   "the file back, or copy what you need to another file system before that"});
  }
  return {};
}

Status LocalChunkStore::Impl::CollectChunks(const ChunkIndex::View& view,
                                            std::map<uint64_t, std::vector<Digest>>& chunks) {
  std::string after;
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(auto entries, index_.ReadEntries(view.snapshot.get(), &after, 4096));
    if (entries.empty()) return {};
    for (const ChunkIndex::Entry& entry : entries) {
      auto found = chunks.find(entry.location.segment.value);
      if (found != chunks.end()) found->second.push_back(entry.digest);
    }
  }
}

bool LocalChunkStore::Impl::StillThere(const ChunkIndex::Entry& entry) {
  auto found = index_.Find(entry.digest);
  return found.ok() && found->has_value() && **found == entry.location;
}

void LocalChunkStore::Impl::NoteDamaged(const ChunkIndex::Entry& entry) {
  index_.NoteDamaged(entry.digest, entry.location);
  MutexLock lock(damage_mutex_);
  if (on_damage_) on_damage_(entry.digest);
}

Status LocalChunkStore::Impl::CheckSegment(const Context& context, Victim& victim, const Reporter& report,
                                           std::atomic<uint64_t>& bytes_read) {
  const Segment& segment = *victim.segment;
  auto file = segments_.FileOf(*victim.segment);
  if (!file.ok()) {
    if (segment.freed.load()) return {};
    const ErrorCode code = file.error().code;
    if (code == ErrorCode::kExhausted || code == ErrorCode::kPermission) {  // says nothing about the chunks
      report({segment.name() + ": " + file.error().message + "; its chunks were not checked"});
      return {};
    }
    for (const ChunkIndex::Entry& entry : victim.entries) NoteDamaged(entry);
    report({segment.name() + ": " + file.error().message, DigestsOf(victim.entries)});
    return {};
  }
  FileWindow window(**file, kCheckReadBytesMax);
  auto block = window.Load(0, kSegmentHeaderBytes, kSegmentHeaderBytes);
  auto header = block.ok() ? DecodeSegmentHeader(*block) : Result<SegmentHeader>(block.error());
  if (!header.ok()) {
    report({segment.name() + ": " + header.error().message});
  } else if (*header != segment.header && !segment.freed.load()) {
    report({segment.name() + ": the header changed since the store was opened"});
  }
  uint64_t limit = segment.header.size_bytes;
  for (const ChunkIndex::Entry& entry : victim.entries) {
    if (context.Expired()) return Stopped();
    auto record = window.Load(entry.location.offset, kRecordHeaderBytes + entry.location.stored_bytes, limit);
    auto wrong = WhatIsWrong(entry, record, segment.header.generation);
    bytes_read += entry.location.raw_bytes;
    if (!wrong || !StillThere(entry)) continue;
    if (!wrong->chunks.empty()) NoteDamaged(entry);
    report(*wrong);
  }
  return {};
}

}  // namespace cairnfs::store
