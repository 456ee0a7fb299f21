#include "fs/name_changes.h"

#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/failpoint.h"
#include "retention/values.h"

namespace cairnfs::fs {

static constexpr size_t kShortNameBytes = 64;
static Failpoint seal_marked("fs.seal_marked", Failpoint::Kind::kKill);
// The kernel tells that a descriptor is closed some time after close(2) has returned. Who seals by hand asks again.
static constexpr std::chrono::milliseconds kWriterClosesMax{5000}, kWriterClosesByHandMax{500};
static constexpr std::chrono::milliseconds kWriterPoll{50};

NameChange NameChanges::ChangeOf(const meta::RenameParams& params) {
  if (params.unnamed) return NameChange::kMakes;
  const bool is_longer = params.to_name.size() > params.from_name.size();
  if (params.mode == meta::RenameMode::kExchange || !is_longer) return NameChange::kShortens;
  return params.to_name.size() > kShortNameBytes ? NameChange::kMakes : NameChange::kAlters;
}

void NameChanges::NoteRemoved(const meta::Attr& attr) {
  at_.privileges.NoteNameRemoved(attr);
  if (attr.nlink > 0) return;
  at_.quotas.usage().NoteGone(attr.inode);  // so that who removes something finds room at once
  if (attr.in_trash) {                      // all of it stays
    if (const InodePtr inode = at_.table.Find(attr.inode)) {
      inode->in_trash = true;
      if (S_ISDIR(attr.mode)) inode->generation++;
    }
    return at_.trash.NoteAdded(attr.allocated_bytes);
  }
  at_.totals.NoteRemoved();
  if (attr.allocated_bytes > 0) at_.room.NoteRemoved();
  const InodePtr inode = at_.table.Find(attr.inode);
  if (inode && inode->freeze_points > 0)
    at_.rounds.DropFreezePoints();  // of a file that goes no round stores the bytes
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
  params.wants_look = goes && !comes && LacksPolicy(context, params.to_parent);
  return at_.parts.names.Rename(context, params);
}

// Nobody would find what a removal that is cut short leaves there. Where the directory is being removed itself, who
// goes on with that finds it.
bool NameChanges::LacksPolicy(const Context& context, InodeId directory) {
  if (directory == kRootInode) return false;  // it is no run
  for (const char* attribute : {CAIRNFS_XATTR_RETAIN, CAIRNFS_XATTR_REMOVING}) {
    if (at_.parts.names.GetXattr(context, directory, attribute).ok()) return false;
  }
  return true;
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

// Whether the rename is to seal the directory that it moves.
Result<bool> NameChanges::WantsSeal(const meta::RenameParams& params, const meta::Attr& moved, const Context& context) {
  if (!S_ISDIR(moved.mode) || params.seals || params.mode == meta::RenameMode::kExchange) return false;
  const bool is_going = retention::IsGoingName(params.to_name) || retention::IsGoingName(params.from_name);
  if (params.wants_seal) {
    if (is_going) return MakeError(ErrorCode::kBusy, "its removal by retention has begun");
    if (params.expected_from != moved.inode) return MakeError(ErrorCode::kStale, "another one has that name by now");
    return true;
  }
  if (is_going) return false;
  // One that a host has left when it died goes on.
  if (moved.seal == meta::SealState::kAtCommit || moved.seal == meta::SealState::kCommitting) return true;
  if (meta::Blocks(moved.seal)) return false;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::SealState above, at_.parts.names.SealOf(context, params.to_parent));
  return above == meta::SealState::kCommits;
}

bool NameChanges::SealsInstead(const meta::RenameParams& params, const meta::Attr& moved, const Caller& caller,
                               const Done<void>& done) {
  const auto seals = WantsSeal(params, moved, caller.context);
  if (seals.ok() && !*seals) return false;
  meta::RenameParams sealed_params = params;
  sealed_params.expected_from = moved.inode;
  auto end = [this, sealed_params, caller, done](const Status& sealed) {
    if (!sealed.ok() && !sealed_params.wants_seal) Refuse(sealed_params, caller, sealed.error());
    done(sealed);
  };
  if (!seals.ok()) {
    end(seals.error());
    return true;
  }
  Sealing sealing{std::move(sealed_params), caller, Clock::Now(), std::move(end), done};
  sealing.until += params.wants_seal ? kWriterClosesByHandMax : kWriterClosesMax;
  SealOnceClosed(sealing);
  return true;
}

// Looks again and again, without a thread, until nobody writes below.
void NameChanges::SealOnceClosed(const Sealing& sealing) {
  auto look = [this, sealing] {
    const Caller& caller = sealing.caller;
    if (!at_.seals.TakePlace(caller.uid)) return LookAgain(sealing, {"too many of this user's look for writers"});
    const auto writers = at_.seals.DescribeWriters(caller.context, DirectoryOf(sealing), Seals::What::kWritten);
    at_.seals.LeavePlace(caller.uid);
    if (!writers.ok()) return sealing.refuse(writers.error());
    if (!writers->empty()) return LookAgain(sealing, *writers);
    MakeDurableAndSeal(sealing);
  };
  at_.calls.RunToWait(sealing.caller, std::move(look), sealing.refuse);
}

void NameChanges::LookAgain(const Sealing& sealing, const std::vector<std::string>& writers) {
  if (Clock::Now() >= sealing.until) {
    std::string text;
    for (const std::string& writer : writers) text += (text.empty() ? "" : "; ") + writer;
    return sealing.refuse(MakeError(ErrorCode::kBusy, "it cannot be sealed: " + text));
  }
  AfterPause(at_, sealing.caller, kWriterPoll, [this, sealing](const Status& paused) {
    if (!paused.ok()) return sealing.refuse(paused);
    SealOnceClosed(sealing);
  });
}

// Before the mark, so that it is there for a short time.
void NameChanges::MakeDurableAndSeal(const Sealing& now_closed) {
  Sync(now_closed.caller, SyncRounds::Scope::kCommit,
       [this, sealing = now_closed, begun = Clock::Now()](const Status& durable) mutable {
         if (!durable.ok()) return sealing.refuse(durable);
         sealing.until += Clock::Now() - begun;
         at_.calls.RunToWait(
             sealing.caller, [this, sealing] { MarkAndSeal(sealing); }, sealing.refuse);
       });
}

// Nobody seemed to write. From the mark on nobody begins to; who had begun just before is found by the second look.
void NameChanges::MarkAndSeal(const Sealing& sealing) {
  using meta::Namespace;
  const Context& context = sealing.caller.context;
  const meta::RenameParams& params = sealing.params;
  const bool stays = params.from_parent == params.to_parent && params.from_name == params.to_name;
  const auto marked = [&] {
    SyncRounds::Operation operation(at_.rounds);
    return at_.parts.names.MarkSealing(context, DirectoryOf(sealing),
                                       stays ? Namespace::SealFor::kItself : Namespace::SealFor::kCommit);
  }();
  if (!marked.ok()) return sealing.refuse(marked.error());
  seal_marked.Pass();
  if (marked->before == meta::SealState::kSealed) {
    return sealing.refuse(stays ? Status() : Status(MakeError(ErrorCode::kSealed, "it is sealed, and keeps its name")));
  }
  auto reopen = [this, directory = DirectoryOf(sealing), marked = *marked] {
    SyncRounds::Operation operation(at_.rounds);
    // Where it is sealed, or somebody has ended that, the mark is another.
    static_cast<void>(at_.parts.names.EndSealing({}, directory, marked, Namespace::SealEnd::kReopen).ok());
  };
  const auto writers = at_.seals.DescribeWriters(context, DirectoryOf(sealing), Seals::What::kWrittenForSeal);
  if (!writers.ok() || !writers->empty()) reopen();
  if (!writers.ok()) return sealing.refuse(writers.error());
  if (!writers->empty()) return LookAgain(sealing, *writers);
  meta::RenameParams rename = params;
  rename.seals = marked->mark;
  Rename(rename, sealing.caller, [this, reopen, done = sealing.done](const Status& renamed) {
    if (renamed.ok()) return done(renamed);
    // On a thread that may wait, also for a caller who is gone.
    auto end = [reopen, renamed, done] {
      reopen();
      done(renamed);
    };
    at_.calls.RunToWait({}, std::move(end), [renamed, done](const Status&) { done(renamed); });
  });
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

void NameChanges::Sync(const Caller& caller, SyncRounds::Scope scope, Done<void> done, SyncRounds::Sources sources) {
  const auto wait_max = std::chrono::seconds(at_.options.commit_wait_seconds_max);
  auto late = [this] { return TookTooLong(); };
  at_.rounds.Request(at_.waits.Within(caller.context.WithTimeout(wait_max), std::move(late), std::move(done)), scope,
                     std::move(sources));
}

// The wait for a round may end before the round does, which then tells nobody what it waits for.
Error NameChanges::TookTooLong() const {
  const std::string seconds_max = std::to_string(at_.options.commit_wait_seconds_max);
  const std::string lacking = at_.copies.DescribeShortage();
  return MakeError(ErrorCode::kUnavailable, "the data did not become durable in " + seconds_max +
                                                " s (commit_wait_max)" + (lacking.empty() ? "" : ": " + lacking));
}

}  // namespace cairnfs::fs
