// rename(2), with RENAME_NOREPLACE and RENAME_EXCHANGE.
//
// No cycles: a move of a directory to another parent reads V, walks up from the new parent to the root to see that the
// directory is not on the way, and commits only if V is still the same; the commit bumps V. So when two such moves
// overlap, one starts again, and its walk sees what the other one did.
#include "base/clock.h"
#include "base/coding.h"
#include "base/failpoint.h"
#include "meta/look_ahead.h"
#include "meta/policy_records.h"

namespace cairnfs::meta {
namespace {

Failpoint before_commit("meta.rename_before_commit", Failpoint::Kind::kKill);
Failpoint after_commit("meta.rename_after_commit", Failpoint::Kind::kKill);

// More levels than this are a cycle that should not exist.
constexpr int kDepthMax = 1 << 20;
constexpr int kLevelsGuessedMax = 32;

// What a rename read, and decides on.
struct Plan {
  Entry from;
  std::optional<Entry> to;
  std::optional<uint64_t> to_parent_revision;    // compared when the name is new there, or quotas are compared
  std::optional<uint64_t> from_parent_revision;  // compared when quotas are
  std::optional<Versioned<uint64_t>> moves;      // V: compared and bumped when a directory changes its parent
  bool crosses = false;                          // the two parents differ
  bool may_move_directory = true;                // V was read before, or with, all else
  // Directories that get a record of this commit, with the revision of the one that they have.
  std::vector<std::pair<InodeId, uint64_t>> committed;
  bool names_unnamed = false;    // it was made without a name, and gets its first one
  kv::Transaction under_quota;   // of one that falls under another quota by that
  std::vector<InodeId> touched;  // directories whose policy has something to do by this
  bool unchanged = false;
  uint64_t seals_revision = 0;
  std::optional<TrashRecord> removed;  // of what it replaces, which goes to the trash
};

}  // namespace

Result<Versioned<uint64_t>> LoadMoves(const Context& context, kv::KvStore& store) {
  CAIRNFS_ASSIGN_OR_RETURN(auto entry, store.Get(context, MoveKey()));
  if (!entry) return Versioned<uint64_t>{0, 0};
  Decoder decoder(entry->value);
  const uint64_t count = decoder.U64();
  if (!decoder.Finished()) return MakeError(ErrorCode::kCorrupt, "the count of directory moves does not decode");
  return Versioned<uint64_t>{count, entry->revision};
}

Status CheckNotAbove(const Context& context, kv::KvStore& store, InodeId directory, InodeId below) {
  InodeId current = below;
  for (int depth = 0; depth < kDepthMax; depth++) {
    if (current == directory) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "directory " + std::to_string(directory.value) + " cannot be moved below itself");
    }
    if (current == kRootInode) return {};
    auto loaded = LoadLiveDirectory(context, store, current);
    // Moved away and removed while this walk went over it, which the count of moves tells; or it is in the trash.
    if (!loaded.ok()) return loaded.error();
    current = loaded->record.parent;
  }
  return MakeError(ErrorCode::kCorrupt, "directory " + std::to_string(below.value) + " does not lead up to the root");
}

namespace {

Status CheckAncestors(const Context& context, kv::KvStore& store, const RenameParams& params, Plan& plan) {
  const bool moves_back = params.mode == RenameMode::kExchange && plan.to && IsDirectory(*plan.to);
  if (!plan.crosses || (!IsDirectory(plan.from) && !moves_back)) return {};
  if (!plan.may_move_directory) return MakeError(ErrorCode::kConflict, "a directory is where a file was");
  CAIRNFS_ASSIGN_OR_RETURN(plan.moves, LoadMoves(context, store));
  Status status;
  if (IsDirectory(plan.from)) status = CheckNotAbove(context, store, plan.from.id(), params.to_parent);
  if (status.ok() && moves_back) status = CheckNotAbove(context, store, plan.to->id(), params.from_parent);
  if (status.ok()) return {};
  // A walk over directories that move meanwhile may see a path that never was.
  CAIRNFS_ASSIGN_OR_RETURN(auto moves_now, LoadMoves(context, store));
  if (moves_now.revision != plan.moves->revision) return MakeError(ErrorCode::kConflict, "directories moved");
  return status;
}

Status CheckReplaceable(const Context& context, kv::KvStore& store, const RenameParams& params, const Plan& plan) {
  const std::string target = Describe(params.to_parent, params.to_name);
  if (!IsDirectory(*plan.to)) {
    if (!IsDirectory(plan.from)) return {};
    return MakeError(ErrorCode::kNotDirectory, "a directory cannot replace " + target);
  }
  if (!IsDirectory(plan.from)) return MakeError(ErrorCode::kIsDirectory, target + " is a directory");
  CAIRNFS_ASSIGN_OR_RETURN(const bool empty, IsEmptyDirectory(context, store, plan.to->id()));
  if (!empty) return MakeError(ErrorCode::kNotEmpty, target + " is not empty");
  return {};
}

// Which of the two leaves a record of this as its commit.
Status PlanCommits(const Context& context, kv::KvStore& store, const RenameParams& params, Plan& plan) {
  if (!params.commit) return {};
  std::vector<InodeId> directories;
  if (IsDirectory(plan.from)) directories.push_back(plan.from.id());
  if (params.mode == RenameMode::kExchange && IsDirectory(*plan.to)) directories.push_back(plan.to->id());
  for (const InodeId directory : directories) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto record, store.Get(context, CommitKey(directory)));
    if (record && (!params.was_written_below || !params.was_written_below(directory))) continue;
    plan.committed.emplace_back(directory, record ? record->revision : 0);
  }
  return {};
}

// Which directories get one that whoever applies policies is to look at.
Status PlanPolicies(const Context& context, kv::KvStore& store, const RenameParams& params, Plan& plan) {
  if (params.wants_look && IsDirectory(plan.from)) plan.touched.push_back(params.to_parent);
  if (!params.commit) return {};
  std::vector<InodeId> into;
  if (IsDirectory(plan.from)) into.push_back(params.to_parent);
  if (params.mode == RenameMode::kExchange && IsDirectory(*plan.to)) into.push_back(params.from_parent);
  for (const InodeId directory : into) {
    CAIRNFS_ASSIGN_OR_RETURN(const auto policy, store.Get(context, PolicyKey(directory)));
    if (policy) plan.touched.push_back(directory);
  }
  return {};
}

// Whether what it replaces goes to the trash: as when its last name is unlinked.
Status PlanTrash(const Context& context, kv::KvStore& store, const RenameParams& params, Plan& plan) {
  const bool replaces = plan.to && params.mode == RenameMode::kReplace && plan.to->inode.record.nlink == 1;
  if (!params.trash || !replaces) return {};
  CAIRNFS_ASSIGN_OR_RETURN(const auto parent, LoadInode(context, store, params.to_parent));
  plan.removed = TrashRecord{.parent_owner = parent.record.uid, .parent = params.to_parent, .name = params.to_name};
  return {};
}

// A file without a name, as if the name led to it that it is to get.
Result<Entry> LoadUnnamed(const Context& context, kv::KvStore& store, InodeId inode) {
  Entry entry;
  CAIRNFS_ASSIGN_OR_RETURN(entry.inode, LoadInode(context, store, inode));
  if (!IsRegular(entry.inode.record))
    return MakeError(ErrorCode::kInvalidArgument, "only files are made without a name");
  if (entry.inode.record.nlink > 0) return MakeError(ErrorCode::kAlreadyExists, Describe(inode) + " has a name by now");
  entry.dentry.record = {inode, entry.inode.record.mode & S_IFMT};
  return entry;
}

Status CheckMayTake(const RenameParams& params, const Plan& plan) {
  if (!params.may_take) return {};
  using Target = RenameParams::Target;
  return params.may_take(plan.to ? std::optional(Target{plan.to->id(), plan.to->inode.record.uid}) : std::nullopt);
}

// A directory that is sealed keeps its name. One that is sealed by this has the mark of it until then.
Status PlanSeals(const RenameParams& params, Plan& plan) {
  InodeRecord& record = plan.from.inode.record;
  SealState& state = record.seal;
  if (params.seals && (!IsSealing(state) || record.seal_mark != *params.seals)) {
    return MakeError(ErrorCode::kBusy, "its seal was changed meanwhile; try again");
  }
  const bool is_replaced = plan.to && Blocks(plan.to->inode.record.seal);
  if (is_replaced || (!params.seals && Blocks(state))) {
    return MakeError(ErrorCode::kSealed,
                     "a directory that is sealed keeps its name: its owner and root can end that "
                     "(cairnfs unseal)");
  }
  if (params.seals) {
    state = SealState::kSealed;
    record.seal_mark = 0;
  }
  return {};
}

// What a directory holds falls under its quota, so both must fall under the same one.
Status CompareQuotas(const Context& context, kv::KvStore& store, const RenameParams& params, const InodeRecord& to,
                     Plan& plan) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto from, LoadInode(context, store, params.from_parent));
  plan.from_parent_revision = from.revision;
  return CheckSameQuota(context, store, from.record.quota, to.quota);
}

struct PlanOptions {
  bool may_move_directory = true, has_quotas = false;
  const NamespaceOptions& of_namespace;
};

// The checks come in the order in which Linux makes them.
Result<Plan> MakePlan(const Context& context, kv::KvStore& store, const RenameParams& params,
                      const PlanOptions& options) {
  Plan plan;
  plan.may_move_directory = options.may_move_directory;
  plan.crosses = params.from_parent != params.to_parent;
  plan.names_unnamed = params.unnamed.has_value();
  CAIRNFS_ASSIGN_OR_RETURN(plan.from, params.unnamed ? LoadUnnamed(context, store, *params.unnamed)
                                                     : LoadEntry(context, store, params.from_parent, params.from_name));
  CAIRNFS_ASSIGN_OR_RETURN(plan.to, FindEntry(context, store, params.to_parent, params.to_name));
  const bool is_expected = plan.from.id() == params.expected_from.value_or(plan.from.id()) &&
                           (!plan.to || plan.to->id() == params.expected_to.value_or(plan.to->id()));
  if (!is_expected) return MakeError(ErrorCode::kStale, "the name stands for something else by now");
  CAIRNFS_RETURN_IF_ERROR(CheckMayTake(params, plan));
  // The transaction compares the inode's record, which each change of an attribute rewrites.
  if (params.may_move) CAIRNFS_RETURN_IF_ERROR(params.may_move(plan.from.id()));
  const bool is_new = !plan.to && (plan.crosses || plan.names_unnamed);
  const bool compares_quotas = options.has_quotas && plan.crosses && !plan.names_unnamed;
  const bool follows_quota = options.has_quotas && plan.names_unnamed;
  if (is_new || compares_quotas || follows_quota) {
    CAIRNFS_ASSIGN_OR_RETURN(auto directory, LoadLiveDirectory(context, store, params.to_parent));
    plan.to_parent_revision = directory.revision;
    if (compares_quotas) CAIRNFS_RETURN_IF_ERROR(CompareQuotas(context, store, params, directory.record, plan));
    // It fell under that of the directory in which it was begun, as that was then.
    InodeRecord& named = plan.from.inode.record;
    if (follows_quota && named.quota != directory.record.quota) {
      CAIRNFS_RETURN_IF_ERROR(MoveFileUnderQuota(context, store, options.of_namespace,
                                                 {plan.from.id(), directory.record.quota}, named, plan.under_quota));
    }
  }
  if (plan.to && params.mode == RenameMode::kNoReplace) {
    return MakeError(ErrorCode::kAlreadyExists, "there is a " + Describe(params.to_parent, params.to_name));
  }
  if (!plan.to && params.mode == RenameMode::kExchange) {
    return MakeError(ErrorCode::kNotFound, "there is no " + Describe(params.to_parent, params.to_name));
  }
  CAIRNFS_RETURN_IF_ERROR(CheckAncestors(context, store, params, plan));
  if (plan.to && plan.to->id() == plan.from.id()) {
    plan.unchanged = true;
    return plan;
  }
  if (plan.to && params.mode == RenameMode::kReplace) {
    CAIRNFS_RETURN_IF_ERROR(CheckReplaceable(context, store, params, plan));
  }
  CAIRNFS_RETURN_IF_ERROR(PlanTrash(context, store, params, plan));
  CAIRNFS_RETURN_IF_ERROR(PlanCommits(context, store, params, plan));
  CAIRNFS_RETURN_IF_ERROR(PlanPolicies(context, store, params, plan));
  return plan;
}

void AddCompares(const RenameParams& params, const Plan& plan, kv::Transaction& transaction) {
  if (!plan.names_unnamed) {
    transaction.IfRevision(DentryKey(params.from_parent, params.from_name), plan.from.dentry.revision);
  }
  transaction.IfRevision(DentryKey(params.to_parent, params.to_name), plan.to ? plan.to->dentry.revision : 0)
      .IfRevision(InodeKey(plan.from.id()), plan.from.inode.revision)
      .IfRevision(SealsKey(), plan.seals_revision);
  if (plan.to) transaction.IfRevision(InodeKey(plan.to->id()), plan.to->inode.revision);
  if (plan.to_parent_revision) transaction.IfRevision(InodeKey(params.to_parent), *plan.to_parent_revision);
  if (plan.from_parent_revision) transaction.IfRevision(InodeKey(params.from_parent), *plan.from_parent_revision);
  if (plan.moves) {
    transaction.IfRevision(MoveKey(), plan.moves->revision)
        .Put(MoveKey(), Encoder().U64(plan.moves->record + 1).Take());
  }
  for (const auto& [directory, revision] : plan.committed) transaction.IfRevision(CommitKey(directory), revision);
}

// Puts the entry's inode under a name, which may be in another directory.
void PutMoved(Entry& entry, InodeId parent, std::string_view name, Timestamp now, kv::Transaction& transaction) {
  InodeRecord& record = entry.inode.record;
  record.ctime = now;
  record.parent = parent;
  transaction.Put(InodeKey(entry.id()), record.Encode()).Put(DentryKey(parent, name), entry.dentry.record.Encode());
}

kv::Transaction BuildTransaction(const RenameParams& params, Plan& plan, Timestamp now) {
  kv::Transaction transaction = std::move(plan.under_quota);
  transaction.makes_names_for = params.makes_names_for;
  transaction.may_lengthen = params.may_lengthen;
  AddCompares(params, plan, transaction);
  if (params.mode == RenameMode::kExchange) {
    PutMoved(*plan.to, params.from_parent, params.from_name, now, transaction);
  } else {
    if (plan.names_unnamed) {
      plan.from.inode.record.nlink = 1;
      transaction.Delete(OrphanKey(plan.from.id()));
    } else {
      transaction.Delete(DentryKey(params.from_parent, params.from_name));
    }
    if (plan.to) {
      if (IsDirectory(*plan.to)) AddDirectoryEmptyCompare(transaction, plan.to->id());
      if (plan.removed) {
        MoveToTrash(transaction, plan.to->id(), plan.to->inode.record, *params.trash, *plan.removed, now);
      } else {
        DropLink(transaction, plan.to->id(), plan.to->inode.record, now);
      }
    }
  }
  PutMoved(plan.from, params.to_parent, params.to_name, now, transaction);
  PutDirectoryTimes(transaction, params.to_parent, now);
  if (plan.crosses && !plan.names_unnamed) PutDirectoryTimes(transaction, params.from_parent, now);
  for (const auto& [directory, revision] : plan.committed) {
    CommitRecord record = *params.commit;
    record.at = now;
    transaction.Put(CommitKey(directory), record.Encode());
  }
  for (const InodeId directory : plan.touched) transaction.Put(PolicyKey(directory), PolicyKeyValue());
  return transaction;
}

}  // namespace

Result<RenameResult> Namespace::Rename(const Context& context, const RenameParams& params) {
  CAIRNFS_RETURN_IF_ERROR(ValidateName(params.from_name));
  CAIRNFS_RETURN_IF_ERROR(ValidateName(params.to_name));
  return RetryOnConflict(context, "rename", PaceOf(options_), [&](int attempt) -> Result<RenameResult> {
    LookAhead ahead(store_);
    // A guess from what was seen last. If it is a directory after all, the next attempt knows.
    auto is_file = [&](InodeId parent, const std::string& name) {
      return hints_ && attempt == 0 && hints_->IsFile(DentryKey(parent, name));
    };
    const bool exchanges = params.mode == RenameMode::kExchange;
    const bool may_move_directory =
        !is_file(params.from_parent, params.from_name) || (exchanges && !is_file(params.to_parent, params.to_name));
    if (hints_ && may_move_directory && params.from_parent != params.to_parent) {
      // A move of a directory reads V and the way up to the root, as this host last saw that.
      ahead.Want(MoveKey());
      InodeId above = params.to_parent;
      for (int level = 0; level < kLevelsGuessedMax && above != kRootInode; level++) {
        auto seen = hints_->DirectoryOf(above);
        if (!seen) break;
        above = seen->record.parent;
        ahead.Want(InodeKey(above));
      }
    }
    if (hints_ && params.commit) {
      for (const auto& expected : {params.expected_from, params.expected_to}) {
        if (expected) ahead.Want(CommitKey(*expected));
      }
      for (const InodeId parent : {params.from_parent, params.to_parent}) ahead.Want(PolicyKey(parent));
    }
    if (hints_ && params.unnamed) ahead.WantInode(*params.unnamed, WithMarks::kNo);
    kv::KvStore& store =
        LookAt(context, ahead, {{params.from_parent, params.from_name}, {params.to_parent, params.to_name}});
    CAIRNFS_ASSIGN_OR_RETURN(
        Plan plan, MakePlan(context, store, params, {may_move_directory, options_.remote || has_quotas_, options_}));
    RenameResult result;
    result.moved = plan.from.id();
    result.moved_type = plan.from.inode.record.mode & S_IFMT;
    result.unchanged = plan.unchanged;
    if (plan.unchanged && params.seals) {
      CAIRNFS_RETURN_IF_ERROR(EndSealing(context, result.moved, {SealState::kNone, *params.seals}, SealEnd::kSeal));
    }
    if (plan.unchanged) return result;
    CAIRNFS_ASSIGN_OR_RETURN(
        plan.seals_revision,
        CheckUnsealed(context, attempt, {params.unnamed ? params.to_parent : params.from_parent, params.to_parent}));
    CAIRNFS_RETURN_IF_ERROR(PlanSeals(params, plan));
    {
      DirectoryTimesLock lock(directory_times_stripes_, options_, params.from_parent, params.to_parent);
      kv::Transaction transaction = BuildTransaction(
          params, plan, hints_ ? std::max(TimeFor(params.from_parent), TimeFor(params.to_parent)) : Clock::WallTime());
      if (params.guard) CAIRNFS_RETURN_IF_ERROR(params.guard(transaction));
      before_commit.Pass();
      CAIRNFS_RETURN_IF_ERROR(store_.Commit(context, transaction));
    }
    if (hints_) hints_->NoteName(DentryKey(params.to_parent, params.to_name), plan.from.id());
    after_commit.Pass();
    for (const auto& [directory, revision] : plan.committed) result.committed.push_back(directory);
    if (params.mode == RenameMode::kExchange) {
      result.exchanged = plan.to->id();
    } else if (plan.to) {
      result.replaced = LoadAttrOrBasics(context, store, plan.to->id(), plan.to->inode.record);
      result.replaced->in_trash = plan.removed.has_value();
    }
    return result;
  });
}

}  // namespace cairnfs::meta
