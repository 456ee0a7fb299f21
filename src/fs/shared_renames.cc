#include "fs/shared_renames.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"

namespace cairnfs::fs {
namespace {

Failpoint shared_rename_ready("fs.shared_rename_ready", Failpoint::Kind::kKill);

constexpr size_t kLackingNamedMax = 20;      // files of one commit
constexpr size_t kSessionsComparedMax = 64;  // by one transaction, which takes 127 compares on an etcd
// So long a rename that is refused looks for what to name. Each path takes some reads of the metadata.
constexpr std::chrono::seconds kNamingTimeMax{5};

}  // namespace

// What no close has waited for is to be durable before what it took the place of is deleted.
void SharedNameChanges::WhenAdmitted(NameChange change, const Caller& caller, Done<void> go) {
  if (Status session = shared_.session.Await(caller.context); !session.ok()) return go(session);
  if (change != NameChange::kRemoves) return go({});
  AfterUnawaited({at().rounds, at().waits, at().calls}, shared_.host, caller, std::move(go));
}

Result<SharedNameChanges::Renaming> SharedNameChanges::Begin(const meta::RenameParams& names, const Caller& caller) {
  CAIRNFS_RETURN_IF_ERROR(shared_.session.Await(caller.context));
  Renaming renaming{
      .params = names, .caller = caller, .sources = {}, .session = shared_.host.session(), .begun_at = Clock::Now()};
  meta::RenameParams& params = renaming.params;
  const NameChange change = ChangeOf(params);
  if (change == NameChange::kMakes) params.makes_names_for = caller.uid;
  params.may_lengthen = change == NameChange::kAlters;
  constexpr auto kWithMarks = meta::Namespace::WithMarks::kYes;
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr source, LookUpSource(caller.context, params));
  renaming.sources.push_back(std::move(source));
  if (params.mode == meta::RenameMode::kExchange) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::Attr target,
                             at().parts.names.Lookup(caller.context, params.to_parent, params.to_name, kWithMarks));
    renaming.sources.push_back(std::move(target));
    params.expected_to = renaming.sources.back().inode;
  }
  params.expected_from = renaming.sources.front().inode;
  for (meta::Attr& attr : renaming.sources) {
    // A file that a dead host was writing can be moved: its name says no more than before.
    std::erase_if(attr.marks, [](const meta::Mark& mark) { return mark.record.failure.empty(); });
    renaming.has_directory = renaming.has_directory || S_ISDIR(attr.mode);
    CAIRNFS_RETURN_IF_ERROR(PrepareForNewName(attr.inode));
  }
  if (renaming.has_directory) at().commits.AddTo(params, caller);
  renaming.may_need_copies = renaming.has_directory || params.from_parent != params.to_parent;
  return renaming;
}

void SharedNameChanges::Rename(const meta::RenameParams& names, const Caller& caller, Done<void> done) {
  Result<Renaming> begun = Begin(names, caller);
  if (!begun.ok()) return done(begun.error());
  if (SealsInstead(names, begun->sources.front(), caller, done)) return;
  const bool has_directory = begun->has_directory;
  const bool is_published = !has_directory && ArePublished(begun->sources);
  SyncRounds::Sources sources = begun->sources;
  auto commit = [this, renaming = std::move(*begun), done = std::move(done)](const Status& durable) {
    // Who is killed is not kept waiting.
    if (!durable.ok() && durable.error().code == ErrorCode::kInterrupted) return done(durable);
    auto go_on = [this, renaming, durable, done] {
      if (durable.ok()) return CommitPublished(renaming, done);
      Refuse(renaming, durable.error(), done, LackingCopies(durable.error(), renaming.sources));
    };
    if (renaming.may_need_copies) return at().calls.RunToWait(renaming.caller, std::move(go_on), done);
    at().calls.Run(renaming.caller, std::move(go_on), done);
  };
  // Of a file that lacks nothing it only replaces what the name stood for.
  if (is_published) {
    return AfterUnawaited({at().rounds, at().waits, at().calls}, shared_.host, caller, std::move(commit));
  }
  // Of a directory whatever was written; of a file what was closed before, which this one counts as.
  if (has_directory) return Sync(caller, SyncRounds::Scope::kCommit, std::move(commit), std::move(sources));
  Sync(caller, SyncRounds::Scope::kClosed, std::move(commit));
}

bool SharedNameChanges::ArePublished(const std::vector<meta::Attr>& files) {
  return std::none_of(files.begin(), files.end(), [this](const meta::Attr& file) {
    const InodePtr inode = at().table.Find(file.inode);
    if (!inode) return false;
    MutexLock lock(inode->mutex);
    return inode->content && inode->content->changed;
  });
}

Status SharedNameChanges::CheckAllPublished(const Renaming& renaming) {
  for (const meta::Attr& attr : renaming.sources) {
    InodePtr inode = S_ISREG(attr.mode) ? at().table.Find(attr.inode) : nullptr;
    if (inode) CAIRNFS_RETURN_IF_ERROR(CheckPublished(inode));
  }
  return {};
}

Result<Unpublished::Found> SharedNameChanges::FindUnsafe(const Renaming& renaming) {
  CAIRNFS_ASSIGN_OR_RETURN(auto lost, at().lost.FindMoved(renaming.caller.context, renaming.params));
  for (meta::RefusalCause& cause : lost) cause.host = shared_.host.NameOf(shared_.host.self());
  if (!lost.empty()) return Unpublished::Found{.causes = std::move(lost), .live = {}};
  return shared_.unpublished.Find(renaming.caller.context, renaming.sources);
}

void SharedNameChanges::CommitPublished(const Renaming& renaming, const Done<void>& done) {
  const meta::RenameParams& params = renaming.params;
  Status status = CheckAllPublished(renaming);
  std::vector<meta::Mark> still_written;
  if (status.ok()) {
    auto found = FindUnsafe(renaming);
    if (found.ok() && !found->causes.empty()) {
      return done(MakeError(ErrorCode::kIo, NoteRefused(renaming, std::move(found->causes))));
    }
    if (!found.ok()) status = found.error();
    // Below what is being sealed nobody writes.
    if (found.ok() && !params.seals) still_written = std::move(found->live);
  }
  if (status.ok()) status = MakeReplicated(renaming);
  // What was given up with the session looks as if it were published.
  if (status.ok()) status = shared_.session.Check(renaming.session);
  if (!status.ok()) return Refuse(renaming, status.error(), done);
  shared_rename_ready.Pass();
  meta::RenameParams guarded = params;
  // The compare that every transaction has is with the session that there is by then. A host that dies from here on,
  // or while the rename waits for it, is found out by that of its session.
  guarded.guard = [&, session = renaming.session](kv::Transaction& transaction) -> Status {
    shared_.host.AddSessionCompare(transaction, session);
    for (size_t i = 0; i < still_written.size(); i++) {
      if (!shared_.host.Lives(still_written[i]))
        return MakeError(ErrorCode::kStale, "a host was lost that was writing");
      if (i < kSessionsComparedMax) ClusterHost::AddSessionCompare(transaction, still_written[i]);
    }
    return shared_.session.Check(session);
  };
  auto renamed = Commit(renaming.caller.context, guarded);
  // Another host has put something else there, which was not waited for, or was lost.
  const bool is_another = !params.seals && !renamed.ok() && renamed.error().code == ErrorCode::kStale &&
                          renaming.session == shared_.host.session();
  if (is_another) return Rename(params, renaming.caller, done);
  if (renamed.ok()) {
    at().commits.NoteCommitted(renamed->committed, {.uid = renaming.caller.uid,
                                                    .took = Clock::Now() - renaming.begun_at,
                                                    .waited_for_it = !at().tickets.IsRenaming(renamed->moved)});
  }
  done(renamed.ok() ? Status() : Status(renamed.error()));
}

Status SharedNameChanges::MakeReplicated(const Renaming& renaming) {
  const meta::RenameParams& params = renaming.params;
  if (params.from_parent == params.to_parent) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Durability> levels,
                           shared_.host.levels().Of(renaming.caller.context, {params.from_parent, params.to_parent}));
  // Where two are exchanged one of them comes to lie there, whichever of the parents it is.
  const bool is_exchange = params.mode == meta::RenameMode::kExchange;
  if (levels[0] == levels[1] || (!is_exchange && levels[1] == Durability::kLocal)) return {};
  const meta::Attr& source = renaming.sources[levels[0] == Durability::kLocal ? 0 : 1];
  std::map<InodeId, uint64_t> published;  // revisions of the records
  std::vector<InodeId> ids;
  at().table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->shared().published_locally) return;
    published.emplace(inode->id, inode->content->shared().base_revision);
    ids.push_back(inode->id);
  });
  CAIRNFS_RETURN_IF_ERROR(shared_.copies.CoveringFor(renaming.caller).Cover(source));
  std::set<InodeId> replicated;
  if (published.contains(source.inode)) replicated.insert(source.inode);
  if (S_ISDIR(source.mode) && !ids.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> found,
                             at().parts.names.FindBelow(renaming.caller.context, source.inode, ids));
    replicated.insert(found.begin(), found.end());
  }
  for (InodeId id : replicated) {
    InodePtr inode = at().table.Find(id);
    if (!inode) continue;
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->shared().base_revision != published[id]) continue;
    inode->content->shared().published_locally = false;
  }
  return {};
}

// A round that waits for copies may go on meanwhile: of what it has taken over the contents tell too, and of chunks
// that were stored since then.
std::vector<meta::RefusalCause> SharedNameChanges::LackingCopies(const Error& why,
                                                                 const std::vector<meta::Attr>& sources) {
  if (why.code != ErrorCode::kUnavailable && why.code != ErrorCode::kNoSpace) return {};
  if (shared_.host.chunks().DescribeShortage().empty()) return {};
  const Context context = Context(shared_.session.waits_end()).WithTimeout(kNamingTimeMax);
  const auto goes_on = [&] { return !context.Expired() && shared_.host.membership().LeaseHolds(); };
  if (!goes_on()) return {};
  std::map<InodeId, std::vector<Digest>> unpublished;
  at().table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->changed) return;
    std::vector<Digest>& chunks = unpublished[inode->id];
    chunks = inode->content->shared().publishing_chunks;
    for (const store::ChunkPin& pin : inode->content->pins) chunks.push_back(pin.digest());
  });
  std::map<InodeId, size_t> counts;
  std::vector<InodeId> lacking;
  for (auto& [inode, chunks] : unpublished) {
    std::sort(chunks.begin(), chunks.end());
    chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
    const size_t count = shared_.host.chunks().CountUnderReplicated(chunks);
    if (count == 0) continue;
    counts.emplace(inode, count);
    lacking.push_back(inode);
  }
  const auto below = shared_.unpublished.LyingBelow(context, sources, lacking);
  if (!below.ok()) return {};
  std::vector<meta::RefusalCause> causes;
  size_t left = below->size();
  for (InodeId inode : *below) {
    if (causes.size() == kLackingNamedMax || !goes_on()) {
      causes.push_back({.host = shared_.host.NameOf(shared_.host.self()),
                        .why = std::to_string(left) + " more of its files lack copies"});
      break;
    }
    left--;
    const auto level = shared_.host.levels().Of(context, inode);
    if (level.ok() && *level == Durability::kLocal) continue;  // waits for none
    const size_t count = counts.at(inode);
    causes.push_back(
        {.file = at().parts.names.PathOfInode(context, inode),
         .host = shared_.host.NameOf(shared_.host.self()),
         .why = std::to_string(count) + " of its chunks " + (count == 1 ? "lacks" : "lack") + " durable copies"});
  }
  return causes;
}

void SharedNameChanges::Refuse(const Renaming& renaming, const Error& why, const Done<void>& done,
                               const std::vector<meta::RefusalCause>& files) {
  if (why.code == ErrorCode::kInterrupted) return done(why);
  std::vector<meta::RefusalCause> causes{{.host = shared_.host.NameOf(shared_.host.self()), .why = why.message}};
  causes.insert(causes.end(), files.begin(), files.end());
  NoteRefused(renaming, std::move(causes));
  done(why);
}

void SharedNameChanges::Refuse(const meta::RenameParams& params, const Caller& caller, const Error& why) {
  Renaming renaming;
  renaming.params = params;
  renaming.caller = caller;
  Refuse(renaming, why, [](const Status&) {});
}

std::string SharedNameChanges::NoteRefused(const Renaming& renaming, std::vector<meta::RefusalCause> causes) {
  const meta::RenameParams& params = renaming.params;
  meta::RefusedCommit refused{.source = params.expected_from.value_or(InodeId{}),
                              .at = Clock::WallTime(),
                              .host = shared_.host.NameOf(shared_.host.self()),
                              .uid = renaming.caller.uid,
                              .causes = std::move(causes)};
  // The path is read from the metadata, for which nobody who is to hear of a failure waits once more.
  const bool may_ask = shared_.host.membership().LeaseHolds();
  const std::string above =
      params.from_parent == kRootInode ? "" : "#" + std::to_string(params.from_parent.value) + "/";
  refused.directory =
      may_ask ? at().parts.names.PathOf({}, params.from_parent, params.from_name) : above + params.from_name;
  std::string said = refused.JoinCauses();
  at().commits.refusals().Note(std::move(refused));
  return said;
}

}  // namespace cairnfs::fs
