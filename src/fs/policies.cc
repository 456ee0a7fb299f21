#include "fs/policies.h"

#include <pthread.h>
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/log.h"
#include "base/printable.h"
#include "fs/paths.h"
#include "fs/scan.h"
#include "meta/policy_records.h"

namespace cairnfs::fs {
namespace {

using retention::LastTime;
using retention::Report;

constexpr unsigned kRunsAtOnce = 3;
constexpr std::chrono::seconds kLookForDueEvery{3}, kLookPauseMax{20};
constexpr int kLookShare = 50;  // of the time at most goes into looks, one in so many
constexpr std::chrono::seconds kRestMin{60};
constexpr std::chrono::seconds kRunMax{300};  // what is left then goes on the next time
constexpr size_t kOwnersPerRead = 512;
constexpr std::chrono::minutes kTellEvery{1};
// A seal takes seconds from its mark on; clocks of hosts may differ by minutes.
constexpr std::chrono::minutes kSealsLookEvery{1}, kSealIsLeftAfter{5};
constexpr size_t kTellAtOnce = 10;

LastTime LastTimeOf(const meta::AppliedRecord& record) {
  return {.revision = record.revision, .at = record.at, .next = record.next, .looks_in_vain = record.looks_in_vain};
}

}  // namespace

Policies::Policies(const Parts& parts, Self self)
    : at_(parts), self_(std::move(self)), until_stop_(stop_.get_token()) {}

void Policies::Start(PolicyRunner runner) {
  runner_ = std::move(runner);
  for (unsigned i = 0; i < kRunsAtOnce; ++i) threads_.emplace_back([this] { Work(); });
}

void Policies::Stop() {
  stop_.request_stop();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Policies::Pause(Clock::duration time, Clock::duration patience) {
  std::stop_source runs;
  {
    MutexLock lock(mutex_);
    paused_until_ = std::max(paused_until_, Clock::Now() + time);
    agenda_.Set({});
    runs = std::exchange(stop_runs_, std::stop_source());
  }
  runs.request_stop();
  MutexLock lock(mutex_);
  const auto is_idle = [this]() REQUIRES_LOCK(mutex_) { return running_.empty(); };
  static_cast<void>(until_stop_.WithTimeout(patience).Wait(mutex_, changed_, is_idle));
}

void Policies::Work() {
  pthread_setname_np(pthread_self(), "cairn-policies");
  while (!until_stop_.IsStopped()) {
    LookWhenDue();
    std::optional<Item> item;
    std::stop_token stop_run;
    {
      MutexLock lock(mutex_);
      const auto has_turn = [&]() REQUIRES_LOCK(mutex_) { return Clock::Now() >= paused_until_ && agenda_.HasTurn(); };
      if (!until_stop_.WithTimeout(kLookForDueEvery).Wait(mutex_, changed_, has_turn)) continue;
      item = agenda_.Take();
      running_.insert(item->directory);
      stop_run = stop_runs_.get_token();
    }
    Apply(*item, until_stop_.WithTimeout(kRunMax).WithStop(stop_run));
    MutexLock lock(mutex_);
    running_.erase(item->directory);
    ended_since_look_.insert(item->directory);
    agenda_.End(*item);
    changed_.NotifyAll();
  }
}

void Policies::LookWhenDue() {
  {
    MutexLock lock(mutex_);
    if (Clock::Now() < next_look_) return;
    next_look_ = Clock::time_point::max();  // until this one is done
    ended_since_look_.clear();
  }
  const auto begun = Clock::Now();
  auto due = FindDue();
  const auto pause = std::clamp<Clock::duration>((Clock::Now() - begun) * kLookShare, kLookForDueEvery, kLookPauseMax);
  if (!due.ok()) {
    MutexLock lock(mutex_);
    next_look_ = Clock::Now() + pause;
    if (!until_stop_.IsStopped()) spdlog::debug("policies are not looked at: {}", due.error().message);
    return;
  }
  MutexLock lock(mutex_);
  next_look_ = Clock::Now() + pause;
  if (Clock::Now() < paused_until_) return;
  std::erase_if(*due, [this](const Item& item) REQUIRES_LOCK(mutex_) {
    return running_.contains(item.directory) || ended_since_look_.contains(item.directory);
  });
  agenda_.Set(*due);
  changed_.NotifyAll();
}

Result<std::vector<Policies::Item>> Policies::FindDue() {
  std::vector<Item> due;
  CAIRNFS_ASSIGN_OR_RETURN(const bool applies, self_.applies(until_stop_, !is_read_only_));
  if (!applies) return due;
  EndLeftSeals();
  std::vector<Item> all;
  const auto visit = [&](const kv::KvEntry& entry) {
    if (const auto directory = meta::InodeOfPolicyKey(entry.key)) {
      all.push_back({.directory = *directory, .revision = entry.revision});
    } else if (const auto applied = meta::InodeOfAppliedKey(entry.key); applied && !all.empty()) {
      const auto record = meta::AppliedRecord::Decode(entry.value);
      if (record.ok() && all.back().directory == *applied) all.back().last = LastTimeOf(*record);
    }
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(until_stop_, at_.kv, meta::PoliciesPrefix(), visit));
  const Timestamp now = Clock::WallTime();
  for (Item& item : all) {
    if (retention::IsDue(item.revision, item.last, now)) due.push_back(item);
  }
  CAIRNFS_RETURN_IF_ERROR(AddOwners(due));
  // Of one owner that one is next which was applied longest ago.
  std::stable_sort(due.begin(), due.end(), [](const Item& left, const Item& right) {
    return (left.last ? left.last->at : Timestamp()) < (right.last ? right.last->at : Timestamp());
  });
  return due;
}

// What is being sealed stays, whatever the policy: of what a host that died was about to seal that has to end.
void Policies::EndLeftSeals() {
  if (Clock::Now() < next_seals_look_) return;
  next_seals_look_ = Clock::Now() + kSealsLookEvery;
  Timestamp begun_before = Clock::WallTime();
  begun_before.seconds -= std::chrono::seconds(kSealIsLeftAfter).count();
  const Status ended = at_.names.EndAllSealing(until_stop_, begun_before);
  if (!ended.ok() && !until_stop_.IsStopped()) spdlog::debug("seals that were begun: {}", ended.error().message);
}

// One that was removed lacks a record, or its last link; its keys go soon.
Status Policies::AddOwners(std::vector<Item>& due) {
  std::vector<std::string> keys;
  for (const Item& item : due) keys.push_back(meta::InodeKey(item.directory));
  std::vector<Item> live;
  const auto add = [&](size_t i, const kv::KvEntry* entry) -> Status {
    if (entry == nullptr) return {};
    CAIRNFS_ASSIGN_OR_RETURN(const meta::InodeRecord record, meta::InodeRecord::Decode(entry->value));
    if (record.nlink == 0) return {};
    live.push_back(due[i]);
    live.back().owner = record.uid;
    return {};
  };
  CAIRNFS_RETURN_IF_ERROR(kv::ReadKeys(until_stop_, at_.kv, keys, kOwnersPerRead, add));
  due = std::move(live);
  return {};
}

void Policies::Apply(const Item& item, const Context& context) {
  const auto path = PathBelowRoot(context, at_.names, item.directory);
  Report report;
  if (path.ok()) {
    report = runner_(context, {.directory = item.directory, .path = *path, .owner = item.owner});
  } else {
    report.error = path.error().message;
  }
  // What was cut short is due again.
  if (context.IsStopped()) return;
  // Without a name it lies in the trash, and is looked for again: it may be restored.
  const bool has_no_name = !path.ok() && path.error().code == ErrorCode::kNotFound;
  if (!report.error.empty() && !has_no_name) TellFailure(item, path.ok() ? *path : "", report.error);
  if (!report.has_policy && !report.notes.empty()) TellRemovals(item, *path, report);
  const Status noted = Note(item, report);
  // kConflict: the directory or its policy is gone.
  if (noted.ok() || noted.error().code == ErrorCode::kConflict) return;
  TellFailure(item, path.ok() ? *path : "", "what came of it cannot be kept: " + noted.error().message);
  Rest();
}

void Policies::Rest() {
  MutexLock lock(mutex_);
  agenda_.Set({});
  next_look_ = Clock::Now() + kRestMin;
}

// Where there is no room for all of it, when it was applied comes first.
Status Policies::Note(const Item& item, const Report& report) {
  kv::Transaction transaction;
  if (!report.has_policy) {
    transaction.IfRevision(meta::PolicyKey(item.directory), item.revision);
    meta::DropPolicy(item.directory, transaction);
  } else {
    const LastTime time = retention::After(item.revision, item.last, report, Clock::WallTime());
    const meta::AppliedRecord record{.revision = time.revision,
                                     .at = time.at,
                                     .next = time.next,
                                     .looks_in_vain = time.looks_in_vain,
                                     .host = self_.name()};
    transaction.IfExists(meta::PolicyKey(item.directory))
        .Put(meta::AppliedKey(item.directory), record.Encode())
        .Put(meta::AppliedReportKey(item.directory), report.Text());
    transaction.makes_names_for = item.owner;
  }
  auto committed = at_.kv.Commit(until_stop_, transaction);
  if (!committed.ok() && committed.error().code == ErrorCode::kNoSpace) {
    transaction.makes_names_for.reset();
    transaction.writes.back() = {meta::AppliedReportKey(item.directory), std::nullopt};
    committed = at_.kv.Commit(until_stop_, transaction);
  }
  return committed.ok() ? Status() : Status(committed.error());
}

bool Policies::MayTell() {
  const auto now = Clock::Now();
  MutexLock lock(mutex_);
  if (now >= minute_ends_) {
    if (to_tell_ > kTellAtOnce) {
      spdlog::warn("{} more lines about policies and removals: cairnfs retain DIR --show tells of policies",
                   to_tell_ - kTellAtOnce);
    }
    minute_ends_ = now + kTellEvery;
    to_tell_ = 0;
  }
  return ++to_tell_ <= kTellAtOnce;
}

void Policies::TellFailure(const Item& item, const std::string& path, const std::string& why) {
  if (!MayTell()) return;
  spdlog::warn("the policy of '{}' (inode {}, of uid {}) is not applied: {}", Printable(path), item.directory.value,
               item.owner, Printable(why));
}

void Policies::TellRemovals(const Item& item, const std::string& path, const Report& report) {
  if (!MayTell()) return;
  std::string notes;
  for (const std::string& note : report.notes) notes += (notes.empty() ? "" : "; ") + note;
  spdlog::warn("removals in '{}' (inode {}, of uid {}) that were cut short: {}", Printable(path), item.directory.value,
               item.owner, Printable(notes));
}

Result<std::string> Policies::Describe(const Context& context, InodeId directory) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(context, meta::AppliedKey(directory)));
  if (!entry) return MakeError(ErrorCode::kNoData, "its policy was not applied yet");
  CAIRNFS_ASSIGN_OR_RETURN(const meta::AppliedRecord record, meta::AppliedRecord::Decode(entry->value));
  CAIRNFS_ASSIGN_OR_RETURN(const auto report, at_.kv.Get(context, meta::AppliedReportKey(directory)));
  nlohmann::ordered_json json;
  json["at"] = record.at.seconds;
  json["host"] = record.host;
  json["next"] = record.next.seconds;
  auto parsed = nlohmann::ordered_json::parse(report ? report->value : "", nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) json.update(parsed);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cairnfs::fs
