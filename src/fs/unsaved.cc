#include "fs/unsaved.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "fs/paths.h"
#include "fs/services.h"

namespace cairnfs::fs {
namespace {

// A tenth of the time, within these bounds.
constexpr std::chrono::milliseconds kListMin{500};
constexpr std::chrono::seconds kListMax{2};

struct Found {
  std::map<InodeId, uint64_t> bytes;
  bool has_lost = false;
};

// A record may be made while files are looked at, so that what was written is in both.
uint64_t InBoth(const std::map<InodeId, uint64_t>& before, const std::map<InodeId, uint64_t>& after, InodeId inode) {
  const auto first = before.find(inode), second = after.find(inode);
  return first == before.end() || second == after.end() ? 0 : std::min(first->second, second->second);
}

Found FindUnsaved(const Services& at, const PlacesToCome& to_come) {
  Found found;
  std::map<InodeId, uint64_t> sizes;  // of those to come
  std::set<InodeId> nameless;
  const auto unflushed_before = at.rounds.Unflushed();
  at.table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (inode->unlinked) nameless.insert(inode->id);
    const Content* content = inode->content.get();
    if (to_come.contains(inode->id)) sizes[inode->id] = content == nullptr ? 0 : content->size;
    if (content == nullptr || (!content->changed && content->lost.empty())) return;
    found.bytes[inode->id] = content->UnsavedBytes();
    found.has_lost = found.has_lost || (!content->lost.empty() && !inode->unlinked);
  });
  const auto unflushed = at.rounds.Unflushed();
  for (const auto& [inode, bytes] : unflushed) {
    const auto listed = found.bytes.find(inode);
    if (listed == found.bytes.end()) {
      found.bytes[inode] = bytes;
    } else {
      listed->second += InBoth(unflushed_before, unflushed, inode);
    }
  }
  for (const auto& [inode, bytes] : at.lost.Dropped()) {
    found.bytes[inode] += bytes;
    found.has_lost = true;
  }
  for (const auto& [inode, size] : sizes) found.bytes[inode] = size;
  for (InodeId inode : nameless) found.bytes.erase(inode);
  return found;
}

bool HasUnsavedNames(const Services& at) {
  if (at.parts.local_kv == nullptr) return false;
  // The records of files are told with their bytes; what is added to those of commits is waited for by nobody.
  constexpr std::string_view kOfNames = "EIOWXY";
  const auto is_of_names = [kOfNames](std::string_view key, const auto&) {
    return !key.empty() && kOfNames.find(key[0]) != std::string_view::npos;
  };
  return at.parts.local_kv->HasUnflushed("A", kv::PrefixEnd("Z"), is_of_names);
}

std::string NumberOf(InodeId inode) { return "#" + std::to_string(inode.value); }

// Without a look at names.
std::string PathByNumber(const PlacesToCome& to_come, InodeId inode) {
  const auto place = to_come.find(inode);
  if (place == to_come.end()) return NumberOf(inode);
  const auto& [directory, name] = place->second;
  return directory == kRootInode ? name : NumberOf(directory) + "/" + name;
}

void AddPaths(const Services& at, const PlacesToCome& to_come, const Context& context, Unsaved& unsaved) {
  meta::Namespace& names = at.parts.names;
  if (at.parts.cluster) {
    for (UnsavedFile& file : unsaved.files) {
      if (context.Expired()) return;
      const auto place = to_come.find(file.inode);
      file.path = place == to_come.end() ? names.PathOfInode(context, file.inode)
                                         : names.PathOf(context, place->second.directory, place->second.name);
    }
    return;
  }
  std::set<InodeId> inodes;
  std::vector<const PlaceToCome*> places;  // of each file; null: it has its name
  for (const UnsavedFile& file : unsaved.files) {
    const auto place = to_come.find(file.inode);
    places.push_back(place == to_come.end() ? nullptr : &place->second);
    inodes.insert(places.back() == nullptr ? file.inode : places.back()->directory);
  }
  std::map<InodeId, std::string> paths;
  static_cast<void>(FindPaths(context, at.parts.kv, names, inodes, paths));  // late: those that it found
  for (size_t i = 0; i < places.size(); ++i) {
    UnsavedFile& file = unsaved.files[i];
    const PlaceToCome* place = places[i];
    if (place != nullptr && place->directory == kRootInode) continue;  // it has its path
    const auto path = paths.find(place == nullptr ? file.inode : place->directory);
    if (path != paths.end()) file.path = place == nullptr ? path->second : path->second + "/" + place->name;
  }
}

}  // namespace

Clock::duration TimeToList(Clock::duration time) { return std::clamp<Clock::duration>(time / 10, kListMin, kListMax); }

void ListUnsaved(const Services& at, const PlacesToCome& to_come, const Context& context,
                 const std::function<void(const Unsaved&)>& tell) {
  Unsaved unsaved;
  const Found found = FindUnsaved(at, to_come);
  unsaved.has_lost = found.has_lost;
  for (const auto& [inode, bytes] : found.bytes) {
    unsaved.file_count++;
    unsaved.bytes += bytes;
    unsaved.unclosed_count += to_come.count(inode);
    unsaved.files.push_back({inode, PathByNumber(to_come, inode), bytes});
  }
  unsaved.has_names = HasUnsavedNames(at);
  std::stable_sort(unsaved.files.begin(), unsaved.files.end(),
                   [](const UnsavedFile& first, const UnsavedFile& second) { return first.bytes > second.bytes; });
  if (unsaved.files.size() > Unsaved::kFilesMax) unsaved.files.resize(Unsaved::kFilesMax);
  tell(unsaved);
  AddPaths(at, to_come, context, unsaved);
  tell(unsaved);
}

}  // namespace cairnfs::fs
