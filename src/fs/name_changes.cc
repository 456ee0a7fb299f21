#include "fs/name_changes.h"

#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "retention/values.h"

namespace cairnfs::fs {

static constexpr size_t kShortNameBytes = 64;

NameChange NameChanges::ChangeOf(const meta::RenameParams& params) {
  if (params.unnamed) return NameChange::kMakes;
  const bool is_longer = params.to_name.size() > params.from_name.size();
  if (params.mode == meta::RenameMode::kExchange || !is_longer) return NameChange::kShortens;
  return params.to_name.size() > kShortNameBytes ? NameChange::kMakes : NameChange::kAlters;
}

void NameChanges::NoteRemoved(const meta::Attr& attr) {
  at_.privileges.NoteNameRemoved(attr);
  if (attr.nlink > 0) return;
  if (attr.in_trash) {  // all of it stays
    if (const InodePtr inode = S_ISDIR(attr.mode) ? at_.table.Find(attr.inode) : nullptr) inode->generation++;
    return at_.trash.NoteAdded(attr.allocated_bytes);
  }
  at_.totals.NoteRemoved();
  if (attr.allocated_bytes > 0) at_.room.NoteRemoved();
  at_.table.MarkUnlinked(attr.inode, (attr.mode & S_IFMT) == S_IFREG ? attr.allocated_bytes : 0);
  at_.lost.Forget(attr.inode);
}

// By names of what retention removes: it publishes nothing, and what is pinned or held gets none.
Result<meta::RenameResult> NameChanges::RenameGoing(const Context& context, meta::RenameParams params) {
  const bool goes = retention::IsGoingName(params.to_name), comes = retention::IsGoingName(params.from_name);
  if (params.mode == meta::RenameMode::kExchange) {
    return MakeError(ErrorCode::kInvalidArgument, "names of what retention removes cannot be exchanged");
  }
  params.may_move = [&](InodeId moved) -> Status {
    const Keeping::Names names{params.from_name, params.to_name, params.from_parent != params.to_parent};
    if (comes) CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckMayComeBack(context, moved, names));
    if (goes && !comes) CAIRNFS_RETURN_IF_ERROR(at_.keeping.CheckHasNoMark(context, moved));
    if (goes && !comes) CAIRNFS_RETURN_IF_ERROR(at_.tickets.CheckMayGo(context, moved));
    return goes ? at_.keeping.CheckMayGo(context, moved) : Status();
  };
  params.commit.reset();
  return at_.parts.names.Rename(context, params);
}

Result<meta::RenameResult> NameChanges::Commit(const Context& context, const meta::RenameParams& params) {
  SyncRounds::Operation operation(at_.rounds);
  const bool is_going = retention::IsGoingName(params.to_name) || retention::IsGoingName(params.from_name);
  CAIRNFS_ASSIGN_OR_RETURN(meta::RenameResult result,
                           is_going ? RenameGoing(context, params) : at_.parts.names.Rename(context, params));
  if (result.replaced && result.replaced->in_trash) result.replaced->allocated_bytes = params.trash->held.bytes;
  if (result.replaced) NoteRemoved(*result.replaced);
  if (result.unchanged) return result;
  if (result.moved_type == S_IFDIR || result.exchanged) at_.atomic_rules.NoteMoved();
  if (const InodePtr moved = at_.table.Find(result.moved)) moved->directory = params.to_parent.value;
  const InodePtr exchanged = result.exchanged ? at_.table.Find(*result.exchanged) : nullptr;
  if (exchanged) exchanged->directory = params.from_parent.value;
  if (S_ISDIR(result.moved_type)) at_.saves.NoteMoved(result.moved);
  if (exchanged) at_.saves.NoteMoved(*result.exchanged);
  return result;
}

Result<meta::Attr> NameChanges::LookUpSource(const Context& context, const meta::RenameParams& params) {
  meta::Namespace& names = at_.parts.names;
  const auto with_marks = at_.parts.cluster ? meta::Namespace::WithMarks::kYes : meta::Namespace::WithMarks::kNo;
  if (!params.unnamed) return names.Lookup(context, params.from_parent, params.from_name, with_marks);
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, names.GetAttr(context, *params.unnamed));
  if (!at_.parts.cluster) return attr;
  CAIRNFS_ASSIGN_OR_RETURN(meta::FileState state, names.ReadFile(context, *params.unnamed, with_marks));
  attr.marks = std::move(state.marks);
  return attr;
}

Status NameChanges::PrepareForNewName(InodeId id) {
  if (auto failure = at_.rounds.DiskFailure()) return *failure;
  InodePtr inode = at_.table.Find(id);
  if (!inode) return {};
  MutexLock lock(inode->mutex);
  CAIRNFS_RETURN_IF_ERROR(inode->error.TakeUnreported());
  if (inode->content) inode->content->must_publish = true;
  return {};
}

void NameChanges::Sync(const Caller& caller, SyncRounds::Scope scope, Done<void> done) {
  const auto wait_max = std::chrono::seconds(at_.options.commit_wait_seconds_max);
  auto late = [this] { return TookTooLong(); };
  at_.rounds.Request(at_.waits.Within(caller.context.WithTimeout(wait_max), std::move(late), std::move(done)), scope);
}

// The wait for a round may end before the round does, which then tells nobody what it waits for.
Error NameChanges::TookTooLong() const {
  const std::string seconds_max = std::to_string(at_.options.commit_wait_seconds_max);
  const std::string lacking = at_.copies.DescribeShortage();
  return MakeError(ErrorCode::kUnavailable, "the data did not become durable in " + seconds_max +
                                                " s (commit_wait_max)" + (lacking.empty() ? "" : ": " + lacking));
}

}  // namespace cairnfs::fs
