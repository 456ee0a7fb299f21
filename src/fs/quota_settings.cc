#include "fs/quota_settings.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace cairnfs::fs {
namespace {

using State = meta::QuotaRecord::State;

constexpr int kDepthMax = 1 << 20;
// By then each host has heard of a new quota, and compares quotas in renames.
constexpr std::chrono::milliseconds kNewsTime{1000};
constexpr std::chrono::milliseconds kDoneLook{20};
constexpr uint64_t kRoundedBytes = 64 * kMiB;

Error ChangedElsewhere() {
  return MakeError(ErrorCode::kBusy, "the quota was changed meanwhile, perhaps on another host: try again");
}

Status CheckLimit(std::string_view what, const std::optional<uint64_t>& limit, uint64_t used, bool may_be_below) {
  if (!limit || may_be_below || *limit >= used) return {};
  return InvalidArgument("a quota of " + std::to_string(*limit) + " " + std::string(what) + " bytes is below the " +
                         std::to_string(used) +
                         " that are used: remove something first, or set it all the same with --force, and nothing can "
                         "be written until less is used");
}

Result<meta::QuotaBytes> NewLimits(const QuotaRequest& request, const meta::QuotaBytes& before) {
  const meta::QuotaBytes limit{.logical = request.logical_bytes.value_or(before.logical),
                               .unique = request.unique_bytes.value_or(before.unique)};
  if (limit.logical != meta::QuotaRecord::kNoLimit || limit.unique != meta::QuotaRecord::kNoLimit) return limit;
  return InvalidArgument("no limit would be left: cairnfs quota off takes the quota off");
}

}  // namespace

std::string_view NameOf(meta::QuotaRecord::State state) {
  switch (state) {
    case State::kGiving: return "being set";
    case State::kOn: return "on";
    case State::kTaking: return "being taken off";
  }
  return "unknown";
}

void QuotaSettings::Start() {
  const auto all = at_.quotas.usage().All();
  const bool is_any =
      std::any_of(all.begin(), all.end(), [](const auto& item) { return item.second.record.state != State::kOn; });
  if (is_any && !at_.options.read_only) going_on_ = std::thread([this] { GoOn(); });
}

void QuotaSettings::Stop() {
  stop_.request_stop();
  if (going_on_.joinable()) going_on_.join();
}

void QuotaSettings::GoOn() {
  const Context context(stop_.get_token());
  for (const auto& [directory, quota] : at_.quotas.usage().All()) {
    if (quota.record.state == State::kOn) continue;
    MutexLock lock(changing_);
    const auto told = [](uint64_t) { return true; };
    const Status status =
        quota.record.state == State::kGiving ? Give(context, directory, told) : Take(context, directory, told);
    if (status.ok()) continue;
    spdlog::warn("the quota of inode {} is still {}: {}; the command that was to do it goes on with it",
                 directory.value, NameOf(quota.record.state), status.error().message);
  }
}

Result<std::vector<InodeId>> QuotaSettings::Above(const Context& context, InodeId directory) const {
  std::vector<InodeId> above;
  for (int depth = 0; depth < kDepthMax && directory != kRootInode; depth++) {
    CAIRNFS_ASSIGN_OR_RETURN(directory, at_.parts.names.ParentOf(context, directory));
    if (directory != kRootInode) above.push_back(directory);
  }
  return above;
}

// None lies in another one.
Status QuotaSettings::CheckPlace(const Context& context, InodeId directory) const {
  CAIRNFS_ASSIGN_OR_RETURN(const auto above, Above(context, directory));
  for (const auto& [other, quota] : at_.quotas.usage().All()) {
    if (other == directory) continue;
    if (std::find(above.begin(), above.end(), other) != above.end()) {
      return InvalidArgument("it lies in '" + at_.parts.names.PathOfInode(context, other) +
                             "', which has a quota: no quota lies in another one");
    }
    const auto above_other = Above(context, other);
    if (!above_other.ok()) continue;  // it is being removed
    if (std::find(above_other->begin(), above_other->end(), directory) != above_other->end()) {
      return InvalidArgument("'" + at_.parts.names.PathOfInode(context, other) +
                             "' below it has a quota: no quota lies in another one");
    }
  }
  return {};
}

Status QuotaSettings::CheckLimits(const QuotaRequest& request, const meta::QuotaBytes& used) {
  CAIRNFS_RETURN_IF_ERROR(CheckLimit("logical", request.logical_bytes, used.logical, request.may_be_below_use));
  return CheckLimit("unique", request.unique_bytes, used.unique, request.may_be_below_use);
}

Status QuotaSettings::Put(const Context& context, InodeId directory, const std::optional<meta::QuotaRecord>& record,
                          uint64_t revision) {
  const std::string key = meta::QuotaKey(directory);
  kv::Transaction transaction;
  transaction.IfRevision(key, revision);
  if (record) {
    transaction.Put(key, record->Encode()).IfExists(meta::InodeKey(directory));
  } else {
    transaction.Delete(key);
  }
  uint64_t committed = 0;
  {
    SyncRounds::Operation operation(at_.rounds);
    auto done = kv_.Commit(context, transaction);
    if (!done.ok()) return done.error().code == ErrorCode::kConflict ? ChangedElsewhere() : done.error();
    committed = *done;
  }
  at_.parts.names.SetHasQuotas(true);
  if (at_.parts.cluster) static_cast<void>(at_.quotas.usage().AwaitRevision(context.WithTimeout(kNewsTime), committed));
  return {};
}

Status QuotaSettings::Set(const Context& context, const QuotaRequest& request, const Progress& progress) {
  CAIRNFS_RETURN_IF_ERROR(at_.trash.CheckMayChange());
  if (!request.logical_bytes && !request.unique_bytes) {
    return InvalidArgument("say how much it may be: --logical, --unique, or both");
  }
  for (const auto& limit : {request.logical_bytes, request.unique_bytes}) {
    if (limit == meta::QuotaRecord::kNoLimit) continue;
    if (limit && (*limit == 0 || *limit > INT64_MAX)) return InvalidArgument("a quota has 1 to 2^63-1 bytes");
  }
  if (request.directory == kRootInode) {
    return InvalidArgument("the root of the filesystem has no quota: give one to directories in it");
  }
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.parts.names.GetAttr(context, request.directory));
  if (!S_ISDIR(attr.mode)) return MakeError(ErrorCode::kNotDirectory, "only a directory has a quota");
  MutexLock lock(changing_);
  if (at_.quotas.usage().Find(request.directory)) return ChangeLimits(context, request, progress);
  return SetNew(context, request, progress);
}

Status QuotaSettings::ChangeLimits(const Context& context, const QuotaRequest& request, const Progress& progress) {
  const auto known = at_.quotas.usage().Find(request.directory);
  if (!known) return ChangedElsewhere();
  meta::QuotaRecord record = known->record;
  if (record.state == State::kTaking) {
    return MakeError(ErrorCode::kBusy, "its quota is being taken off: run cairnfs quota off again, then set it");
  }
  if (record.state == State::kOn) CAIRNFS_RETURN_IF_ERROR(CheckLimits(request, known->used));
  CAIRNFS_ASSIGN_OR_RETURN(record.limit, NewLimits(request, record.limit));
  CAIRNFS_RETURN_IF_ERROR(Put(context, request.directory, record, known->record_revision));
  return record.state == State::kGiving ? Give(context, request.directory, progress) : Status();
}

Status QuotaSettings::SetNew(const Context& context, const QuotaRequest& request, const Progress& progress) {
  meta::QuotaRecord record;
  record.state = State::kGiving;
  CAIRNFS_ASSIGN_OR_RETURN(record.limit, NewLimits(request, record.limit));
  CAIRNFS_RETURN_IF_ERROR(CheckPlace(context, request.directory));
  const auto ask = [&progress](uint64_t inodes) -> Status {
    return progress(inodes) ? Status() : Status(MakeError(ErrorCode::kInterrupted, "the caller is gone"));
  };
  CAIRNFS_ASSIGN_OR_RETURN(const QuotaWalk::Survey found, QuotaWalk(at_, ask).Look(context, request.directory));
  if (!found.linked_from_outside.empty()) {
    return InvalidArgument(
        "'" + found.linked_from_outside +
        "' below it has a name elsewhere too (a hard link), and a file counts for one quota: copy it, "
        "or remove the other name");
  }
  CAIRNFS_RETURN_IF_ERROR(CheckLimits(request, found.used));
  CAIRNFS_RETURN_IF_ERROR(Put(context, request.directory, record, 0));
  if (at_.parts.cluster) static_cast<void>(context.Sleep(kNewsTime));
  // Another host may have set one above or below it at the same time: each sees the other's now.
  if (Status place = CheckPlace(context, request.directory); !place.ok()) {
    CAIRNFS_RETURN_IF_ERROR(Take(context, request.directory, progress));
    return place;
  }
  return Give(context, request.directory, progress);
}

QuotaWalk::GoOn QuotaSettings::GoesOnWhile(InodeId directory, State state, const Progress& progress) const {
  return [this, directory, state, &progress](uint64_t inodes) -> Status {
    const auto known = at_.quotas.usage().Find(directory);
    if (!known || known->record.state != state) return ChangedElsewhere();
    if (progress(inodes)) return {};
    return MakeError(ErrorCode::kInterrupted, "the caller is gone: the same command goes on with it");
  };
}

// Of two hosts that go on with the same, one is told that it was changed elsewhere, and the other has done it.
Status QuotaSettings::UnlessDone(const Context& context, InodeId directory, std::optional<State> state, Status here) {
  const Context soon = context.WithTimeout(kNewsTime);
  while (!here.ok() && here.error().code == ErrorCode::kBusy) {
    const auto known = at_.quotas.usage().Find(directory);
    const bool is_done = state ? known && known->record.state == *state : !known;
    if (is_done) here = at_.rounds.RequestAndWait();
    if (is_done || !soon.Sleep(kDoneLook)) break;
  }
  return here;
}

Status QuotaSettings::Give(const Context& context, InodeId directory, const Progress& progress) {
  return UnlessDone(context, directory, State::kOn, GiveHere(context, directory, progress));
}

Status QuotaSettings::Take(const Context& context, InodeId directory, const Progress& progress) {
  return UnlessDone(context, directory, {}, TakeHere(context, directory, progress));
}

Status QuotaSettings::GiveHere(const Context& context, InodeId directory, const Progress& progress) {
  CAIRNFS_RETURN_IF_ERROR(
      QuotaWalk(at_, GoesOnWhile(directory, State::kGiving, progress)).Move(context, directory, directory));
  const auto known = at_.quotas.usage().Find(directory);
  if (!known || known->record.state != State::kGiving) return ChangedElsewhere();
  meta::QuotaRecord record = known->record;
  record.state = State::kOn;
  CAIRNFS_RETURN_IF_ERROR(Put(context, directory, record, known->record_revision));
  return at_.rounds.RequestAndWait();
}

Status QuotaSettings::TakeHere(const Context& context, InodeId directory, const Progress& progress) {
  auto known = at_.quotas.usage().Find(directory);
  if (!known) return ChangedElsewhere();
  if (known->record.state != State::kTaking) {
    meta::QuotaRecord record = known->record;
    record.state = State::kTaking;
    CAIRNFS_RETURN_IF_ERROR(Put(context, directory, record, known->record_revision));
    known = at_.quotas.usage().Find(directory);
    if (!known) return ChangedElsewhere();
  }
  CAIRNFS_RETURN_IF_ERROR(
      QuotaWalk(at_, GoesOnWhile(directory, State::kTaking, progress)).Move(context, directory, {}));
  CAIRNFS_RETURN_IF_ERROR(Put(context, directory, std::nullopt, known->record_revision));
  return at_.rounds.RequestAndWait();
}

Status QuotaSettings::TakeOff(const Context& context, InodeId directory, const Progress& progress) {
  CAIRNFS_RETURN_IF_ERROR(at_.trash.CheckMayChange());
  MutexLock lock(changing_);
  if (!at_.quotas.usage().Find(directory)) return MakeError(ErrorCode::kNotFound, "the directory has no quota");
  return Take(context, directory, progress);
}

std::vector<QuotaReport> QuotaSettings::All(const Context& context, size_t count_max) const {
  std::vector<QuotaReport> reports;
  for (const auto& [directory, quota] : at_.quotas.usage().All()) {
    if (reports.size() == count_max) break;
    reports.push_back({directory, at_.parts.names.PathOfInode(context, directory), quota.record, quota.used});
  }
  return reports;
}

// Small steps of what is unique would tell who writes something whether it was there already (docs/security.md).
Result<std::string> QuotaSettings::Describe(const Caller& caller, InodeId inode) const {
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.parts.names.GetAttr(caller.context, inode));
  const auto quota = attr.quota.value == 0 ? std::nullopt : at_.quotas.usage().Find(attr.quota);
  if (!quota) return MakeError(ErrorCode::kNoData, "it falls under no quota");
  const bool tells_all = caller.uid == 0 || at_.parts.dedup == meta::Dedup::kOwner;
  const auto limit = [](uint64_t bytes) {
    return bytes == meta::QuotaRecord::kNoLimit ? nlohmann::ordered_json() : nlohmann::ordered_json(bytes);
  };
  nlohmann::ordered_json json;
  json["directory_inode"] = attr.quota.value;
  json["state"] = NameOf(quota->record.state);
  json["logical_limit_bytes"] = limit(quota->record.limit.logical);
  json["logical_used_bytes"] = quota->used.logical;
  json["unique_limit_bytes"] = limit(quota->record.limit.unique);
  json["unique_used_bytes"] = tells_all ? quota->used.unique : AlignDown(quota->used.unique, kRoundedBytes);
  return json.dump();
}

FsSpace QuotaSettings::Bounded(const Context& context, InodeId inode, const FsSpace& exact) const {
  const FsSpace space = exact.Rounded();
  if (!at_.quotas.any()) return space;
  const auto attr = at_.parts.names.GetAttr(context, inode);
  if (!attr.ok() || attr->quota.value == 0) return space;
  const auto quota = at_.quotas.usage().Find(attr->quota);
  if (!quota) return space;
  const bool is_logical = quota->record.limit.logical != meta::QuotaRecord::kNoLimit;
  const uint64_t limit = is_logical ? quota->record.limit.logical : quota->record.limit.unique;
  const uint64_t used = is_logical ? quota->used.logical : AlignDown(quota->used.unique, kRoundedBytes);
  FsSpace bounded = space;
  bounded.total_bytes = limit;
  bounded.free_bytes = limit - std::min(limit, used);
  bounded.available_bytes = std::min(bounded.free_bytes, space.available_bytes);
  return bounded;
}

}  // namespace cairnfs::fs
