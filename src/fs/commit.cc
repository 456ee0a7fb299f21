// Renames among other hosts. A directory shows its new name once every byte that was closed below it before, on any
// host, is durable and published; where that cannot be, the rename fails and says which host and which files.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "cairnfs/cairnfs.h"
#include "fs/impl.h"
#include "kv/patience.h"

namespace cairnfs::fs {
namespace {

Failpoint shared_rename_ready("fs.shared_rename_ready", Failpoint::Kind::kKill);

constexpr size_t kFailedCommitsMax = 16;
constexpr size_t kCausesNamedMax = 5;    // in an error's message
constexpr size_t kLackingNamedMax = 20;  // files of one commit
// Then a rename that is refused answers, be the metadata as slow as it likes. Each path takes some reads of it.
constexpr std::chrono::seconds kNamingTimeMax{5};

struct Moved {
  const meta::RenameParams& params;
  const std::vector<meta::Attr>& sources;
};

// What was published at level `local`, by whatever host, gets its copies before it is seen where they are promised.
Status MakeReplicated(const Moved& moved, Covering covering, ClusterHost& host, InodeTable& table,
                      meta::Namespace& names) {
  const meta::RenameParams& params = moved.params;
  if (params.from_parent == params.to_parent) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Durability> levels,
                           host.levels().Of({params.from_parent, params.to_parent}));
  // Where two are exchanged one of them comes to lie there, whichever of the parents it is.
  const bool is_exchange = params.mode == meta::RenameMode::kExchange;
  if (levels[0] == levels[1] || (!is_exchange && levels[1] == Durability::kLocal)) return {};
  const meta::Attr& source = moved.sources[levels[0] == Durability::kLocal ? 0 : 1];
  std::map<InodeId, uint64_t> published;  // revisions of the records
  std::vector<InodeId> ids;
  table.ForEachHeld([&](const InodePtr& inode) {
    MutexLock lock(inode->mutex);
    if (!inode->content || !inode->content->shared().published_locally) return;
    published.emplace(inode->id, inode->content->shared().base_revision);
    ids.push_back(inode->id);
  });
  CAIRNFS_RETURN_IF_ERROR(covering.Cover(source));
  std::set<InodeId> replicated;
  if (published.contains(source.inode)) replicated.insert(source.inode);
  if (S_ISDIR(source.mode) && !ids.empty()) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> found, names.FindBelow(source.inode, ids));
    replicated.insert(found.begin(), found.end());
  }
  for (InodeId id : replicated) {
    InodePtr inode = table.Find(id);
    if (!inode) continue;
    MutexLock lock(inode->mutex);
    if (!inode->content || inode->content->shared().base_revision != published[id]) continue;
    inode->content->shared().published_locally = false;
  }
  return {};
}

}  // namespace

std::string CommitFailure::JoinCauses() const {
  std::string text;
  for (size_t i = 0; i < causes.size() && i < kCausesNamedMax; i++) text += (i > 0 ? "; " : "") + causes[i];
  if (causes.size() > kCausesNamedMax) text += "; and " + std::to_string(causes.size() - kCausesNamedMax) + " more";
  return text;
}

std::optional<CommitFailure> FileSystem::LastFailedCommit(InodeId directory) const {
  MutexLock lock(impl_->failed_commits_mutex);
  for (const CommitFailure& failure : impl_->failed_commits) {
    if (failure.source == directory) return failure;
  }
  return std::nullopt;
}

void FileSystem::Impl::RenameShared(const meta::RenameParams& names, const Caller& caller, Done<void> done) {
  if (Status status = AwaitSession(); !status.ok()) return done(status);
  meta::RenameParams params = names;
  const uint64_t session = host->session();
  std::vector<meta::Attr> sources;
  constexpr auto kWithMarks = meta::Namespace::WithMarks::kYes;
  auto source = parts.names.Lookup(params.from_parent, params.from_name, kWithMarks);
  if (!source.ok()) return done(source.error());
  sources.push_back(std::move(*source));
  if (params.mode == meta::RenameMode::kExchange) {
    auto target = parts.names.Lookup(params.to_parent, params.to_name, kWithMarks);
    if (!target.ok()) return done(target.error());
    sources.push_back(std::move(*target));
    params.expected_to = sources.back().inode;
  }
  params.expected_from = sources.front().inode;
  bool has_directory = false;
  bool waits = params.from_parent != params.to_parent;  // perhaps: for copies
  for (meta::Attr& attr : sources) {
    // A file that a dead host was writing can be moved: its name says no more than before.
    std::erase_if(attr.marks, [](const meta::Mark& mark) { return mark.record.failure.empty(); });
    has_directory = has_directory || S_ISDIR(attr.mode);
    waits = waits || S_ISDIR(attr.mode);
    Status ready = PrepareForNewName(attr.inode);
    if (!ready.ok()) return done(ready);
  }
  auto commit = [this, params, caller, sources, session, waits, done = std::move(done)](const Status& durable) {
    // Who is killed is not kept waiting.
    if (!durable.ok() && durable.error().code == ErrorCode::kInterrupted) return done(durable);
    auto go_on = [this, params, caller, sources, session, durable, done] {
      if (!durable.ok()) return RefuseRename(params, durable.error(), done, LackingCopies(durable.error(), sources));
      CommitShared(params, caller, sources, session, done);
    };
    if (waits) return PostToWait(caller, std::move(go_on), done);
    PostFor(caller, std::move(go_on), done);
  };
  // Of a directory whatever was written; of a file what was closed before, which this one counts as.
  RequestUnlessCancelled(caller, std::move(commit),
                         has_directory ? SyncRounds::Scope::kAll : SyncRounds::Scope::kClosed);
}

void FileSystem::Impl::CommitShared(const meta::RenameParams& params, const Caller& caller,
                                    const std::vector<meta::Attr>& sources, uint64_t session, Done<void> done) {
  Status status;
  bool is_noted = false;
  for (const meta::Attr& attr : sources) {
    InodePtr inode = S_ISREG(attr.mode) ? table.Find(attr.inode) : nullptr;
    if (inode && status.ok()) status = CheckPublished(inode);
  }
  if (status.ok()) status = CheckNothingLost(params);
  if (status.ok()) {
    auto causes = FindUnpublished(sources);
    if (!causes.ok()) {
      status = causes.error();
    } else if (!causes->empty()) {
      status = MakeError(ErrorCode::kIo, NoteFailedCommit(params, std::move(*causes)));
      is_noted = true;
    }
  }
  if (status.ok()) {
    status = MakeReplicated({params, sources}, CoveringFor(caller), *host, table, parts.names);
  }
  // What was given up with the session looks as if it were published.
  if (status.ok()) status = CheckSameSession(session);
  if (is_noted) return done(status);
  if (!status.ok()) return RefuseRename(params, status.error(), done);
  shared_rename_ready.Pass();
  meta::RenameParams guarded = params;
  // The compare that every transaction has is with the session that there is by then.
  guarded.guard = [this, session](kv::Transaction& transaction) {
    host->AddSessionCompare(transaction, session);
    return CheckSameSession(session);
  };
  auto renamed = CommitRename(guarded);
  // Another host has put something else there, which was not waited for.
  const bool is_another = !renamed.ok() && renamed.error().code == ErrorCode::kStale && session == host->session();
  if (is_another) return RenameShared(params, caller, std::move(done));
  done(renamed.ok() ? Status() : Status(renamed.error()));
}

Covering FileSystem::Impl::CoveringFor(const Caller& caller) {
  const auto wait_max = std::chrono::seconds(options.commit_wait_seconds_max);
  auto check = [this, caller]() -> Status {
    if (IsForsaken(caller)) return Forsaken();
    if (waits_ended) return MakeError(ErrorCode::kUnavailable, "this host is stopping, and copies are still missing");
    return {};
  };
  return {parts, *host, {Clock::Now() + wait_max, std::move(check)}};
}

// FindBelow names what may lie there, which is right for what is waited for, and not for what a commit fails for.
Result<std::set<InodeId>> FileSystem::Impl::LyingBelow(const std::vector<meta::Attr>& sources,
                                                       const std::vector<InodeId>& inodes) {
  std::set<InodeId> directories, below, candidates, unknown;
  if (inodes.empty()) return below;
  for (const meta::Attr& attr : sources) {
    if (std::find(inodes.begin(), inodes.end(), attr.inode) != inodes.end()) below.insert(attr.inode);
    if (!S_ISDIR(attr.mode)) continue;
    directories.insert(attr.inode);
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<InodeId> found, parts.names.FindBelow(attr.inode, inodes));
    candidates.insert(found.begin(), found.end());
  }
  if (candidates.empty()) return below;
  const std::vector<InodeId> asked(candidates.begin(), candidates.end());
  CAIRNFS_ASSIGN_OR_RETURN(const auto nearest, parts.names.FindNearest(directories, asked));
  for (size_t i = 0; i < asked.size(); i++) {
    if (nearest[i] && nearest[i]->value != 0) below.insert(asked[i]);
    if (!nearest[i]) unknown.insert(asked[i]);
  }
  for (InodeId directory : directories) {
    if (unknown.empty()) break;
    CAIRNFS_ASSIGN_OR_RETURN(const auto found, FindNames(directory, unknown));
    for (const auto& [inode, path] : found) below.insert(inode);
  }
  return below;
}

// What this host is still to publish the round before has done, or left behind. What a live host is still writing is
// not waited for: its close has not returned.
Result<std::vector<std::string>> FileSystem::Impl::FindUnpublished(const std::vector<meta::Attr>& sources) {
  std::vector<std::string> causes;
  const std::map<InodeId, Error> left_behind = rounds->LeftBehind();
  std::vector<InodeId> inodes;
  for (const auto& [inode, why] : left_behind) inodes.push_back(inode);
  std::vector<meta::Namespace::MarkedFile> marked;
  const auto is_directory = [](const meta::Attr& attr) { return S_ISDIR(attr.mode); };
  if (std::any_of(sources.begin(), sources.end(), is_directory)) {
    CAIRNFS_ASSIGN_OR_RETURN(marked, parts.names.ListMarks());
  } else {
    for (const meta::Attr& attr : sources) {
      for (const meta::Mark& mark : attr.marks) marked.push_back({attr.inode, mark});
    }
  }
  std::erase_if(marked, [&](const auto& file) {
    return host->Lives(file.mark) && (host->IsOwn(file.mark) || file.mark.record.failure.empty());
  });
  for (const auto& file : marked) inodes.push_back(file.inode);
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> below, LyingBelow(sources, inodes));
  const auto add_cause = [&](InodeId inode, std::string_view node, const std::string& why) {
    if (!below.contains(inode)) return;
    causes.push_back("'" + parts.names.PathOfInode(inode) + "': host " + host->NameOf(node) + why);
  };
  for (const auto& [inode, why] : left_behind) add_cause(inode, host->self(), ": " + why.message);
  for (const auto& [inode, mark] : marked) {
    const bool is_lost = !host->Lives(mark);
    add_cause(inode, mark.node,
              is_lost ? " was lost before its bytes were safe: write the file again, truncate or remove it"
                      : ": " + mark.record.failure);
  }
  return causes;
}

Status FileSystem::Impl::CheckPublishedBelow(InodeId inode) {
  CAIRNFS_ASSIGN_OR_RETURN(meta::Attr attr, parts.names.GetAttr(inode));
  if (S_ISREG(attr.mode)) {
    CAIRNFS_ASSIGN_OR_RETURN(meta::FileState state, parts.names.ReadFile(inode, meta::Namespace::WithMarks::kYes));
    attr.marks = std::move(state.marks);
  }
  CommitFailure failure;
  CAIRNFS_ASSIGN_OR_RETURN(failure.causes, FindUnpublished({std::move(attr)}));
  if (failure.causes.empty()) return {};
  return MakeError(ErrorCode::kIo, failure.JoinCauses());
}

// A round that waits for copies may go on meanwhile: of what it has taken over the contents tell too, and of chunks
// that were stored since then.
std::vector<std::string> FileSystem::Impl::LackingCopies(const Error& why, const std::vector<meta::Attr>& sources) {
  if (why.code != ErrorCode::kUnavailable && why.code != ErrorCode::kNoSpace) return {};
  if (host->WhatIsLacking().empty()) return {};
  const auto deadline = Clock::Now() + kNamingTimeMax;
  const auto goes_on = [&] { return !waits_ended && host->membership().LeaseHolds() && Clock::Now() < deadline; };
  if (!goes_on()) return {};
  std::map<InodeId, std::vector<Digest>> unpublished;
  table.ForEachHeld([&](const InodePtr& inode) {
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
    const size_t count = host->CountLacking(chunks);
    if (count == 0) continue;
    counts.emplace(inode, count);
    lacking.push_back(inode);
  }
  const auto below = LyingBelow(sources, lacking);
  if (!below.ok()) return {};
  std::vector<std::string> causes;
  size_t left = below->size();
  for (InodeId inode : *below) {
    if (causes.size() == kLackingNamedMax || !goes_on()) {
      causes.push_back("host " + host->NameOf(host->self()) + ": " + std::to_string(left) +
                       " more of its files lack copies");
      break;
    }
    left--;
    const auto level = host->levels().Of(inode);
    if (level.ok() && *level == Durability::kLocal) continue;  // waits for none
    const size_t count = counts.at(inode);
    causes.push_back("'" + parts.names.PathOfInode(inode) + "': host " + host->NameOf(host->self()) + ": " +
                     std::to_string(count) + " of its chunks " + (count == 1 ? "lacks" : "lack") + " durable copies");
  }
  return causes;
}

void FileSystem::Impl::RefuseRename(const meta::RenameParams& params, const Error& why, const Done<void>& done,
                                    const std::vector<std::string>& files) {
  if (why.code == ErrorCode::kInterrupted) return done(why);
  std::vector<std::string> causes{"host " + host->NameOf(host->self()) + ": " + why.message};
  causes.insert(causes.end(), files.begin(), files.end());
  NoteFailedCommit(params, std::move(causes));
  done(why);
}

std::string FileSystem::Impl::NoteFailedCommit(const meta::RenameParams& params, std::vector<std::string> causes) {
  CommitFailure failure;
  failure.at = Clock::WallTime();
  failure.source = params.expected_from.value_or(InodeId{});
  // The path is read from the metadata, for which nobody who is to hear of a failure waits once more.
  const bool may_ask = host->membership().LeaseHolds();
  const std::string above =
      params.from_parent == kRootInode ? "" : "#" + std::to_string(params.from_parent.value) + "/";
  failure.directory = may_ask ? parts.names.PathOf(params.from_parent, params.from_name) : above + params.from_name;
  for (const std::string& cause : causes) spdlog::error("commit of '{}': {}", failure.directory, cause);
  failure.causes = std::move(causes);
  std::string said = failure.JoinCauses();
  MutexLock lock(failed_commits_mutex);
  failed_commits.push_front(std::move(failure));
  if (failed_commits.size() > kFailedCommitsMax) failed_commits.pop_back();
  return said;
}

Result<std::string> FileSystem::Impl::DurabilityShared(InodeId id) {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, parts.names.GetAttr(id));
  bool is_pending = false, is_local = false;
  if (S_ISDIR(attr.mode)) {
    is_pending = !rounds->NothingPending();
  } else if (InodePtr inode = table.Find(id)) {
    MutexLock lock(inode->mutex);
    is_pending = inode->content && inode->content->changed;
    is_local = inode->content && inode->content->shared().published_locally;
  }
  CAIRNFS_ASSIGN_OR_RETURN(const std::vector<meta::Namespace::MarkedFile> marked, parts.names.ListMarks());
  std::vector<InodeId> live, dead;
  for (const auto& file : marked) (host->Lives(file.mark) ? live : dead).push_back(file.inode);
  CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> dead_below, LyingBelow({attr}, dead));
  const bool is_lost = !dead_below.empty();
  if (!is_pending) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::set<InodeId> live_below, LyingBelow({attr}, live));
    is_pending = !live_below.empty();
  }
  if (is_lost) return std::string(CAIRNFS_DURABILITY_LOST);
  if (is_pending) return std::string(CAIRNFS_DURABILITY_PENDING);
  // Wherever it lies by now. Which of the missing copies are of this file is not looked up.
  if (!is_local && parts.lacks_copies) is_local = parts.lacks_copies();
  if (is_local) return std::string(CAIRNFS_DURABILITY_LOCAL);
  CAIRNFS_ASSIGN_OR_RETURN(const Durability level, host->levels().Of(id));
  return std::string(NameOf(level));
}

}  // namespace cairnfs::fs
