#include "fs/check_files.h"

#include <optional>

#include "fs/marker.h"
#include "fs/recipe.h"
#include "fs/scan.h"
#include "meta/records.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kDigestsAtOnce = 65536;
constexpr size_t kUnreadablePagesMax = 100'000;

// Who walks a recipe to its end, whatever of it cannot be read.
struct RecipeVisitor {
  std::function<void(const Digest&)> chunk;  // pages too
  std::function<void(const Digest& page, const Error&)> unreadable;
  std::function<void(const Error&)> undecodable;
};

void VisitLeaf(store::ChunkStore& chunks, const PageRef& leaf, const RecipeVisitor& visitor) {
  visitor.chunk(leaf.digest);
  auto text = store::GetText(chunks, leaf.digest);
  if (!text.ok()) return visitor.unreadable(leaf.digest, text.error());
  auto extents = DecodeExtents(*text, leaf.index * kLeafBytes, kLeafBytes);
  if (!extents.ok()) return visitor.undecodable(extents.error());
  for (const Extent& extent : *extents) visitor.chunk(extent.digest);
}

void VisitRecipe(store::ChunkStore& chunks, const std::string& encoded, const RecipeVisitor& visitor) {
  auto recipe = Recipe::Decode(encoded);
  if (!recipe.ok()) return visitor.undecodable(recipe.error());
  for (const Extent& extent : recipe->extents) visitor.chunk(extent.digest);
  for (const PageRef& inner : recipe->inner) {
    visitor.chunk(inner.digest);
    auto text = store::GetText(chunks, inner.digest);
    if (!text.ok()) {
      visitor.unreadable(inner.digest, text.error());
      continue;
    }
    auto leaves = DecodePageRefs(*text);
    if (!leaves.ok()) {
      visitor.undecodable(leaves.error());
      continue;
    }
    for (const PageRef& leaf : *leaves) VisitLeaf(chunks, leaf, visitor);
  }
}

}  // namespace

// Asks the store which of the digests it has, many at once.
class FilesCheck::LiveCount {
 public:
  LiveCount(const Context& context, store::ChunkStore& chunks) : context_(context), chunks_(chunks) {}
  void Add(const Digest& digest, std::vector<Digest>& missing) {
    batch_.push_back(digest);
    if (batch_.size() == kDigestsAtOnce) Ask(missing);
  }
  void Ask(std::vector<Digest>& missing) {
    if (has_failed()) return batch_.clear();
    const auto there = chunks_.Has(context_, batch_);
    if (!there.ok()) failure_ = there.error();
    for (size_t i = 0; i < batch_.size() && there.ok(); i++) {
      if ((*there)[i]) {
        live_.Add(batch_[i]);
      } else {
        missing.push_back(batch_[i]);
      }
    }
    batch_.clear();
  }
  bool has_failed() const { return failure_.has_value(); }
  // The store's error: not all of it could be asked.
  Result<uint64_t> Count() {
    if (failure_) return *failure_;
    live_.Seal();
    return live_.size();
  }

 private:
  const Context& context_;
  store::ChunkStore& chunks_;
  std::optional<Error> failure_;
  std::vector<Digest> batch_;
  LiveSet live_;
};

FilesCheck::Look FilesCheck::LookAt(const std::string& recipe, LiveCount& live) {
  Look look;
  VisitRecipe(
      chunks_, recipe,
      {.chunk = [&](const Digest& digest) { live.Add(digest, look.missing); },
       .unreadable = [&](const Digest& page, const Error& error) { look.unreadable.emplace_back(page, error.message); },
       .undecodable = [&](const Error& error) { look.undecodable = error.message; }});
  live.Ask(look.missing);
  return look;
}

void FilesCheck::CheckFile(const Context& context, kv::KvEntry entry, LiveCount& live, CheckReport& report) {
  const InodeId inode = meta::InodeOfKey(entry.key).value_or(InodeId{});
  for (int looks = 1;; looks++) {
    auto record = meta::FileRecord::Decode(entry.value);
    if (!record.ok()) return findings_.AddFile("its file record does not decode", inode);
    Look look = LookAt(record->recipe, live);
    // Chunks of a record that was replaced since may have been collected: it counts only if it still holds.
    auto again = look.clean() ? Result<std::optional<kv::KvEntry>>(std::nullopt) : kv_.Get(context, entry.key);
    bool is_gone = again.ok() && !again->has_value() && !look.clean();
    if (is_gone) return;
    if (again.ok() && again->has_value() && (*again)->revision != entry.revision && looks < Findings::kLooksMax) {
      entry = std::move(**again);
      continue;
    }
    report.bytes += record->allocated_bytes;
    for (const Digest& digest : look.missing) findings_.AddMissing(digest);
    for (auto& [page, why] : look.unreadable) {
      if (unreadable_pages_.size() < kUnreadablePagesMax) unreadable_pages_.push_back({inode, page, std::move(why)});
    }
    if (!look.undecodable.empty()) findings_.AddFile("its recipe does not decode: " + look.undecodable, inode);
    return;
  }
}

Status FilesCheck::FindMissing(const Context& context, CheckReport& report) {
  LiveCount live(context, chunks_);
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(context, kv_, "D", [&](const kv::KvEntry& entry) {
    CheckFile(context, entry, live, report);
    return !context.Expired() && !live.has_failed();
  }));
  CAIRNFS_ASSIGN_OR_RETURN(live_chunks_, live.Count());
  return {};
}

Status FilesCheck::NoteDamagedFiles(const Context& context) {
  // Most pages that could not be read are chunks that were found missing or damaged, and are told as those.
  for (const UnreadablePage& unreadable : unreadable_pages_) {
    if (findings_.HasChunk(unreadable.page)) continue;
    findings_.AddFile("its recipe cannot be read: " + unreadable.why, unreadable.inode);
  }
  if (!findings_.HasChunks()) return {};
  return ScanPrefix(context, kv_, "D", [&](const kv::KvEntry& entry) {
    auto inode = meta::InodeOfKey(entry.key);
    auto record = meta::FileRecord::Decode(entry.value);
    if (!inode || !record.ok()) return true;
    std::vector<Digest> named;
    VisitRecipe(chunks_, record->recipe,
                {.chunk =
                     [&](const Digest& digest) {
                       if (findings_.HasChunk(digest)) named.push_back(digest);
                     },
                 .unreadable = [](const Digest&, const Error&) {},
                 .undecodable = [](const Error&) {}});
    if (!named.empty()) findings_.NoteFile(*inode, named);
    return !context.Expired();
  });
}

}  // namespace cairnfs::fs
