#include "fs/keeping.h"

#include <sys/stat.h>

#include <set>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/utc_text.h"
#include "cairnfs/cairnfs.h"
#include "retention/values.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::minutes kTellSilentEvery{1};

}  // namespace

Status Keeping::CheckOwner(const Caller& caller, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, names_.GetAttr(caller.context, directory));
  if (!S_ISDIR(attr.mode)) return MakeError(ErrorCode::kNotDirectory, "only directories have attributes of retention");
  if (directory == kRootInode) {
    return MakeError(ErrorCode::kInvalidArgument, "the root of the filesystem is no run and no checkpoint");
  }
  if (caller.uid == 0 || caller.uid == attr.uid) return {};
  return MakeError(ErrorCode::kPermission, "only the owner of the directory and root may do that");
}

// A pin or hold that is new lets nothing go.
Keeping::Effect Keeping::EffectOf(std::string_view name, Change change) {
  using Own = Effect::Own;
  Effect effect;
  const bool keeps = name == CAIRNFS_XATTR_PINNED || name == CAIRNFS_XATTR_HELD_UNTIL || name == CAIRNFS_XATTR_REMOVING;
  effect.touches_above = change == Change::kRemoved || !keeps;
  effect.only_keeps = name == CAIRNFS_XATTR_PINNED || name == CAIRNFS_XATTR_HELD_UNTIL || retention::IsMetric(name);
  effect.ends_commit = name == CAIRNFS_XATTR_REMOVING && change == Change::kSet;
  if (name == CAIRNFS_XATTR_RETAIN) effect.own = change == Change::kSet ? Own::kHasOne : Own::kHasNone;
  return effect;
}

void Keeping::NoteSilent(const Error& why) {
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  if (now < tell_silent_at_) return;
  tell_silent_at_ = now + kTellSilentEvery;
  spdlog::warn("retention leaves what may be open: {}", why.message);
}

// In the transaction that sets it. A hold is not shortened: another reader may have asked for it.
Status Keeping::CheckSet(const Context& context, InodeId directory, const Attribute& attribute,
                         const std::optional<std::string>& before) {
  if (attribute.name == CAIRNFS_XATTR_REMOVING) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto mark, retention::ParseRemovalMark(attribute.value));
    // Another removal's: what is to stay may differ.
    if (before && *before != attribute.value) return MakeError(ErrorCode::kBusy, "its removal has begun");
    CAIRNFS_RETURN_IF_ERROR(CheckHasName(context, directory, mark.going));
    const Status unsealed = names_.CheckNoneSealedBelow(context, directory);
    if (!unsealed.ok()) return MakeError(ErrorCode::kBusy, unsealed.error().message);
    return CheckMayGo(context, directory);
  }
  if (attribute.name == CAIRNFS_XATTR_PINNED) return CheckHasNoMark(context, directory);
  if (attribute.name != CAIRNFS_XATTR_HELD_UNTIL) return {};
  CAIRNFS_RETURN_IF_ERROR(CheckHasNoMark(context, directory));
  CAIRNFS_ASSIGN_OR_RETURN(const Timestamp until, retention::ParseHeldUntil(attribute.value));
  const auto held = before ? retention::ParseHeldUntil(*before) : Timestamp();
  if (!held.ok() || *held <= until) return {};
  return MakeError(ErrorCode::kAlreadyExists, "it is held until " + UtcText(*held));
}

Status Keeping::CheckHasName(const Context& context, InodeId directory, std::string_view name) {
  CAIRNFS_ASSIGN_OR_RETURN(const InodeId parent, names_.ParentOf(context, directory));
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr named, names_.Lookup(context, parent, name));
  return named.inode == directory ? Status() : Status(MakeError(ErrorCode::kNotFound, "another one has that name"));
}

Status Keeping::Set(const Caller& caller, InodeId directory, std::string_view name, std::string_view value,
                    meta::Namespace::XattrMode mode) {
  CAIRNFS_RETURN_IF_ERROR(CheckOwner(caller, directory));
  CAIRNFS_RETURN_IF_ERROR(retention::CheckValue(name, value));
  const auto check = [&](const std::optional<std::string>& before) {
    return CheckSet(caller.context, directory, {name, value}, before);
  };
  return names_.SetXattr(caller.context, directory, name, value, mode, caller.uid, check, EffectOf(name, Change::kSet));
}

Status Keeping::Remove(const Caller& caller, InodeId directory, std::string_view name) {
  CAIRNFS_RETURN_IF_ERROR(CheckOwner(caller, directory));
  if (name == CAIRNFS_XATTR_REMOVING) CAIRNFS_RETURN_IF_ERROR(CheckRemovalIsOver(caller.context, directory));
  return names_.RemoveXattr(caller.context, directory, name, EffectOf(name, Change::kRemoved));
}

Status Keeping::CheckMayGo(const Context& context, InodeId directory) {
  const auto pin = names_.GetXattr(context, directory, CAIRNFS_XATTR_PINNED);
  if (pin.ok()) return MakeError(ErrorCode::kBusy, "it is pinned");
  if (pin.error().code != ErrorCode::kNoData) return pin.error();
  const auto value = names_.GetXattr(context, directory, CAIRNFS_XATTR_HELD_UNTIL);
  if (!value.ok() && value.error().code == ErrorCode::kNoData) return {};
  if (!value.ok()) return value.error();
  const auto until = retention::ParseHeldUntil(*value);
  if (until.ok() && *until <= Clock::WallTime()) return {};
  return MakeError(ErrorCode::kBusy, "it is held" + (until.ok() ? " until " + UtcText(*until) : ""));
}

Result<std::optional<std::string>> Keeping::ReadMark(const Context& context, InodeId directory) {
  auto mark = names_.GetXattr(context, directory, CAIRNFS_XATTR_REMOVING);
  if (mark.ok()) return std::optional(*std::move(mark));
  if (mark.error().code == ErrorCode::kNoData) return std::optional<std::string>();
  return mark.error();
}

Status Keeping::CheckHasNoMark(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto mark, ReadMark(context, directory));
  return mark ? Status(MakeError(ErrorCode::kBusy, "its removal has begun")) : Status();
}

Status Keeping::CheckMayComeBack(const Context& context, InodeId directory, const Names& names) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto text, ReadMark(context, directory));
  if (!text) return {};
  const auto mark = retention::ParseRemovalMark(*text);
  const bool has_own = mark.ok() && !mark->keep_inside.empty() && mark->going == names.from && !names.is_move;
  if (has_own && retention::NameBeforeGoing(names.from) == names.to) return {};
  return MakeError(ErrorCode::kBusy, "its removal has begun");
}

// What has its own name back is what was left of a checkpoint.
Status Keeping::CheckRemovalIsOver(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto text, ReadMark(context, directory));
  if (!text) return MakeError(ErrorCode::kNoData, "its removal has not begun");
  CAIRNFS_ASSIGN_OR_RETURN(const auto mark, retention::ParseRemovalMark(*text));
  const Status has_name = CheckHasName(context, directory, mark.going);
  if (has_name.ok()) return MakeError(ErrorCode::kBusy, "its removal has begun");
  return has_name.error().code == ErrorCode::kNotFound ? Status() : has_name;
}

// By the directory in which this host last found the name of an open file.
std::vector<InodeId> Keeping::PlacesOfOpen() {
  std::vector<InodeId> places;
  table_.ForEachHeld([&](const InodePtr& inode) {
    if (inode->unlinked) return;
    const uint64_t place = inode->directory;
    MutexLock lock(inode->mutex);
    if (inode->open_count > 0) places.push_back(place != 0 ? InodeId{place} : inode->id);
  });
  return places;
}

std::vector<InodeId> Keeping::OpenPlaces() {
  const std::vector<InodeId> places = PlacesOfOpen();
  const std::set<InodeId> distinct(places.begin(), places.end());
  return {distinct.begin(), distinct.end()};
}

Result<size_t> Keeping::CountOpen(const Caller& caller, InodeId directory) {
  CAIRNFS_RETURN_IF_ERROR(CheckOwner(caller, directory));
  std::vector<InodeId> places = PlacesOfOpen();
  if (open_elsewhere_) {
    const auto others = open_elsewhere_(caller.context);
    if (!others.ok()) NoteSilent(others.error());
    if (!others.ok()) return others.error();
    places.insert(places.end(), others->begin(), others->end());
  }
  const std::set<InodeId> distinct(places.begin(), places.end());
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, names_.FindBelow(caller.context, directory,
                                                              std::vector<InodeId>(distinct.begin(), distinct.end())));
  const std::set<InodeId> below(found.begin(), found.end());
  size_t count = 0;
  for (const InodeId place : places) count += below.contains(place) ? 1 : 0;
  return count;
}

}  // namespace cairnfs::fs
