#include "fs/name_changes.h"

#include <sys/stat.h>

#include <chrono>
#include <utility>

#include "base/clock.h"

namespace cairnfs::fs {

static constexpr size_t kShortNameBytes = 64;

bool NameChanges::MakesName(const meta::RenameParams& params) {
  return params.mode != meta::RenameMode::kExchange && params.to_name.size() > kShortNameBytes &&
         params.to_name.size() > params.from_name.size();
}

void NameChanges::NoteRemoved(const meta::Attr& attr) {
  at_.privileges.NoteNameRemoved(attr);
  if (attr.nlink > 0) return;
  at_.totals.NoteRemoved();
  if (attr.allocated_bytes > 0) at_.room.NoteRemoved();
  at_.table.MarkUnlinked(attr.inode, (attr.mode & S_IFMT) == S_IFREG ? attr.allocated_bytes : 0);
  at_.lost.Forget(attr.inode);
}

Result<bool> NameChanges::Commit(const Context& context, const meta::RenameParams& params) {
  SyncRounds::Operation operation(at_.rounds);
  CAIRNFS_ASSIGN_OR_RETURN(meta::RenameResult result, at_.parts.names.Rename(context, params));
  if (result.replaced) NoteRemoved(*result.replaced);
  return result.replaced.has_value();
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
