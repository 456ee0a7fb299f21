#include "fs/commits.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/log.h"
#include "fs/count_below.h"
#include "fs/processes.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

constexpr unsigned kCommitThreads = 3;  // one may look for copies for long, and one wait to look at all records
constexpr size_t kUncopiedMax = 1024;
constexpr std::chrono::seconds kLookForCopiesEvery{1};
constexpr std::chrono::seconds kRefreshRunsEvery{10};
constexpr size_t kCommitsLookedAtMax = 1024;  // for runs, at a start

double SecondsOf(const Timestamp& time) { return static_cast<double>(time.seconds) + 1e-9 * time.nanoseconds; }
double SecondsOf(uint64_t nanoseconds) { return 1e-9 * static_cast<double>(nanoseconds); }

// From the first write on; null where one of them is not known.
nlohmann::ordered_json SecondsSince(const std::optional<Timestamp>& first, const std::optional<Timestamp>& time) {
  if (!first || !time) return nullptr;
  return std::max(0.0, SecondsOf(*time) - SecondsOf(*first));
}

// No more than was written is new: the end of a file that is synced while it grows is stored again, with what follows
// it. Returns how many count.
uint64_t AddNewBytes(meta::CommitPart& part, uint64_t bytes) {
  const uint64_t before = part.new_bytes;
  part.new_bytes = std::min(before + bytes, part.written_bytes);
  return part.new_bytes - std::min(before, part.new_bytes);
}

}  // namespace

Commits::Commits(const Parts& parts, Self self)
    : at_(parts),
      self_(std::move(self)),
      until_stop_(stop_.get_token()),
      runs_(parts.names, parts.kv),
      queue_(std::make_unique<TaskQueue>("cairn-commits", kCommitThreads, TaskQueue::Priority::kBackground)),
      refusals_({parts.names, parts.kv, *queue_}, self_.node, until_stop_) {}

Status Commits::WatchOthers(kv::SharedKvStore& store) {
  kv::WatchCallbacks callbacks;
  callbacks.changed = [this](const std::vector<kv::KvEvent>& events, uint64_t) { OnChanged(events); };
  callbacks.lost = [this](uint64_t) { OnMissed(); };
  const std::string prefix = meta::CommitsPrefix();
  CAIRNFS_ASSIGN_OR_RETURN(watch_, store.Watch(until_stop_, prefix, kv::PrefixEnd(prefix), 0, std::move(callbacks)));
  return {};
}

void Commits::Stop() {
  {
    MutexLock lock(mutex_);  // who has not posted yet posts nothing any more
    stop_.request_stop();
  }
  refusals_.Stop();
  watch_.reset();
  queue_.reset();
}

void Commits::AddTo(meta::RenameParams& params, const Caller& caller) {
  params.commit = meta::CommitRecord{
      .at = {}, .node = self_.node, .host = self_.name(), .uid = caller.uid, .command = CommandOf(caller.pid)};
  params.was_written_below = [this](InodeId directory) { return WasWrittenBelow(directory); };
}

bool Commits::WasWrittenBelow(InodeId directory) {
  {
    MutexLock lock(mutex_);
    if (wanted_.contains(directory)) return false;  // what was written is about to be taken by the commit before
  }
  return at_.saves.IsWrittenBelow(directory);
}

void Commits::Withdraw(const std::vector<InodeId>& directories) {
  kv::Transaction transaction;
  for (const InodeId directory : directories) transaction.Delete(meta::CommitKey(directory));
  if (!directories.empty()) static_cast<void>(at_.kv.Commit(until_stop_, transaction).ok());
}

void Commits::NoteCommitted(const std::vector<InodeId>& directories, const Renamed& renamed) {
  const auto took_ns = static_cast<uint64_t>(std::chrono::nanoseconds(renamed.took).count());
  for (const InodeId directory : directories) {
    Post(directory, renamed.uid,
         {.takes_over = true,
          .counts = true,
          .is_news = true,
          .durable = Clock::WallTime(),
          .renamed_ns = took_ns,
          .waited_ns = renamed.waited_for_it ? took_ns : 0});
  }
}

void Commits::OnChanged(const std::vector<kv::KvEvent>& events) {
  for (const kv::KvEvent& event : events) {
    const auto directory = meta::InodeOfCommitKey(event.key);
    if (!directory || !event.value) continue;
    const auto record = meta::CommitRecord::Decode(*event.value);
    // One of its own whose answer was lost, too.
    const bool is_own = record.ok() && record->node == self_.node;
    if (!record.ok()) continue;
    Post(*directory, record->uid,
         {.takes_over = is_own || at_.saves.IsWrittenBelow(*directory), .counts = is_own, .is_news = true});
  }
}

// Commits may have been among what was missed.
void Commits::OnMissed() { PostLook(Look::kOthersToo); }
void Commits::LookAtRecords() { PostLook(Look::kOwn); }

void Commits::Post(InodeId directory, uint32_t uid, const Wanted& wanted) {
  MutexLock lock(mutex_);
  if (stop_.stop_requested() || is_read_only_) return;
  const auto [found, is_new] = wanted_.try_emplace(directory, wanted);
  if (is_new) {
    const auto gone = waiting_.Add(uid, directory);
    if (!gone) return queue_->Post([this] { RunNext(); });
    wanted_.erase(*gone);
    return LookAgain();
  }
  found->second.takes_over |= wanted.takes_over;
  found->second.counts |= wanted.counts;
  found->second.is_news |= wanted.is_news;
  found->second.renamed_ns += wanted.renamed_ns;
  found->second.waited_ns += wanted.waited_ns;
  if (wanted.durable) found->second.durable = wanted.durable;
}

void Commits::RunNext() {
  std::optional<Turns<InodeId>::Taken> taken;
  {
    MutexLock lock(mutex_);
    taken = waiting_.Take();
  }
  if (!taken) return;
  CompleteAll(taken->item);
  MutexLock lock(mutex_);
  waiting_.NoteDone(taken->uid);
  if (!stop_.stop_requested()) queue_->Post([this] { RunNext(); });  // one of this user's may have waited for that
}

void Commits::CompleteAll(InodeId directory) {
  for (;;) {
    Wanted wanted;
    {
      MutexLock lock(mutex_);
      const auto found = wanted_.find(directory);
      const bool is_done = !found->second.takes_over && !found->second.counts && !found->second.is_news;
      if (is_done || until_stop_.Expired()) {
        wanted_.erase(found);
        return;
      }
      wanted = std::exchange(found->second, {});
    }
    const Status completed = Complete(directory, wanted);
    // kConflict: another commit has taken its place, or the directory is removed.
    if (!completed.ok() && completed.error().code != ErrorCode::kConflict && !until_stop_.Expired()) {
      spdlog::warn("the record of a commit of inode {} is not complete: {}", directory.value,
                   completed.error().message);
    }
  }
}

Status Commits::Complete(InodeId directory, const Wanted& wanted) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto commit, at_.names.ReadCommit(until_stop_, directory));
  if (!commit) return {};
  const auto own = AddOwn(directory, *commit, wanted);
  Runs::News news{.at = commit->record.at};
  if (wanted.durable) news.renamed_ns = wanted.renamed_ns;
  if (own.ok()) news.own = *own;
  if (wanted.is_news || news.own) runs_.Note(until_stop_, directory, news);
  return own.ok() ? Status() : Status(own.error());
}

Result<std::optional<meta::CommitPart>> Commits::AddOwn(InodeId directory, const meta::Commit& commit,
                                                        const Wanted& wanted) {
  std::optional<meta::CommitPart> whole;
  if (!wanted.takes_over && !wanted.counts) return whole;
  CAIRNFS_ASSIGN_OR_RETURN(const OwnPart own, ReadOwn(directory, commit));
  std::optional<meta::CommitPart::Totals> totals;
  if (wanted.counts && !own.part.totals) {
    CAIRNFS_ASSIGN_OR_RETURN(totals, CountBelow(until_stop_, at_.names, at_.kv, directory));
  }
  Saves::Taken taken;
  if (wanted.takes_over) taken = at_.saves.TakeBelow(directory);
  const bool has_taken = !taken.tallies.empty();
  if (!has_taken && !totals && !wanted.durable) return whole;
  meta::CommitPart changed_part;
  const Status changed = ChangePart(directory, commit, [&](meta::CommitPart& part) {
    part.Add(taken.part);
    AddNewBytes(part, 0);
    part.wait_ns += wanted.waited_ns;
    if (wanted.durable) part.durable = wanted.durable;
    if (totals) part.totals = totals;
    changed_part = part;
  });
  if (!changed.ok() && changed.error().code != ErrorCode::kConflict) {
    at_.saves.GiveBack(directory, commit.record.uid, taken.part);
  }
  if (!changed.ok()) return changed.error();
  // The host that renamed has it all once its rename was answered.
  if (commit.record.node == self_.node ? wanted.durable.has_value() : has_taken) whole = changed_part;
  MutexLock lock(mutex_);
  if (stop_.stop_requested() || uncopied_.size() >= kUncopiedMax) return whole;
  uncopied_.push_back({directory, commit, std::move(taken.tallies)});
  if (uncopied_.size() == 1) queue_->Post([this] { AwaitCopies(); });
  return whole;
}

// On one thread, which looks now and then: to wait as a sync does would have copies made sooner than the bytes of those
// who write.
void Commits::AwaitCopies() {
  for (;;) {
    std::vector<Uncopied> uncopied;
    {
      MutexLock lock(mutex_);
      uncopied = uncopied_;
    }
    while (!self_.has_copies()) {
      if (!until_stop_.Sleep(kLookForCopiesEvery)) return;
    }
    for (const Uncopied& one : uncopied) {
      uint64_t late = 0, added = 0;
      const Status changed = ChangePart(one.directory, one.commit, [&](meta::CommitPart& part) {
        late += Saves::TakeLate(one.taken);
        added = AddNewBytes(part, late);
        part.copied = Clock::WallTime();
      });
      if (changed.ok() && added > 0) runs_.NoteNewBytes(until_stop_, one.directory, added);
    }
    MutexLock lock(mutex_);
    uncopied_.erase(uncopied_.begin(), uncopied_.begin() + static_cast<std::ptrdiff_t>(uncopied.size()));
    if (uncopied_.empty()) return;
  }
}

void Commits::PostLook(Look how) {
  MutexLock lock(mutex_);
  if (!stop_.stop_requested() && !is_read_only_) queue_->Post([this, how] { LookAtAll(how); });
}

void Commits::LookAgain() {
  if (std::exchange(looks_again_, true)) return;
  spdlog::warn("more is committed than can be added to its records: they are looked at again");
  queue_->Post([this] {
    if (!until_stop_.Sleep(kLookAgainAfter)) return;
    {
      MutexLock lock(mutex_);
      looks_again_ = false;
    }
    LookAtAll(Look::kOthersToo);
  });
}

void Commits::LookAtAll(Look how) {
  using Found = std::pair<Timestamp, InodeId>;
  std::vector<Found> last;
  std::map<InodeId, meta::CommitRecord> incomplete;  // records of this host to which it has added nothing
  std::set<InodeId> committed;
  const auto written = how == Look::kOthersToo ? at_.saves.Written() : std::vector<InodeId>();
  const auto keep_newest = [&] {
    std::sort(last.begin(), last.end(), std::greater<Found>());
    last.resize(std::min(last.size(), kCommitsLookedAtMax));
  };
  const auto visit = [&](const kv::KvEntry& entry) {
    const auto directory = meta::InodeOfCommitKey(entry.key);
    if (!directory) {  // a part comes after its record
      const auto of = meta::InodeOfCommitPartKey(entry.key, self_.node);
      const auto record = of ? incomplete.find(*of) : incomplete.end();
      if (record == incomplete.end()) return true;
      const auto part = meta::CommitPart::Decode(entry.value);
      if (part.ok() && part->commit_at == record->second.at && part->totals) incomplete.erase(record);
      return true;
    }
    auto record = meta::CommitRecord::Decode(entry.value);
    if (!record.ok()) return true;
    if (!written.empty()) committed.insert(*directory);
    last.emplace_back(record->at, *directory);
    if (last.size() >= 2 * kCommitsLookedAtMax) keep_newest();
    if (record->node == self_.node && incomplete.size() < kWaitingMax) incomplete.emplace(*directory, *record);
    return true;
  };
  const Status scanned = ScanPrefix(until_stop_, at_.kv, meta::CommitsPrefix(), visit);  // what was found will do
  for (const auto& [directory, record] : incomplete) {
    Post(directory, record.uid, {.takes_over = true, .counts = true, .is_news = true});
  }
  if (scanned.ok() && !written.empty()) FindMissedOfOthers(committed, written);
  keep_newest();
  for (const auto& [at, directory] : last) {
    if (until_stop_.Expired()) return;
    runs_.Note(until_stop_, directory, {.at = at});
  }
}

void Commits::FindMissedOfOthers(const std::set<InodeId>& committed, const std::vector<InodeId>& written) {
  const auto nearest = at_.names.FindNearest(until_stop_, committed, written);
  if (!nearest.ok()) return;
  for (const auto& directory : *nearest) {
    if (!directory || directory->value == 0) continue;
    const auto commit = at_.names.ReadCommit(until_stop_, *directory);
    if (commit.ok() && *commit) Post(*directory, (*commit)->record.uid, {.takes_over = true});
  }
}

std::vector<RunReport> Commits::TellRuns() {
  {
    MutexLock lock(mutex_);
    if (!stop_.stop_requested() && !refreshes_runs_ && Clock::Now() - runs_refreshed_at_ >= kRefreshRunsEvery) {
      refreshes_runs_ = true;
      queue_->Post([this] {
        runs_.Refresh(until_stop_);
        MutexLock posted_lock(mutex_);
        refreshes_runs_ = false;
        runs_refreshed_at_ = Clock::Now();
      });
    }
  }
  return runs_.Tell();
}

Result<Commits::OwnPart> Commits::ReadOwn(InodeId directory, const meta::Commit& commit) {
  OwnPart own{.part = {.commit_at = commit.record.at}};
  CAIRNFS_ASSIGN_OR_RETURN(const auto entry, at_.kv.Get(until_stop_, meta::CommitPartKey(directory, self_.node)));
  if (!entry) return own;
  own.revision = entry->revision;
  CAIRNFS_ASSIGN_OR_RETURN(const meta::CommitPart kept, meta::CommitPart::Decode(entry->value));
  if (kept.commit_at == own.part.commit_at) own.part = kept;
  return own;
}

Status Commits::ChangePart(InodeId directory, const meta::Commit& commit,
                           const std::function<void(meta::CommitPart&)>& change) {
  const std::string record_key = meta::CommitKey(directory), key = meta::CommitPartKey(directory, self_.node);
  for (;;) {
    CAIRNFS_ASSIGN_OR_RETURN(OwnPart own, ReadOwn(directory, commit));
    change(own.part);
    kv::Transaction transaction;
    transaction.IfRevision(record_key, commit.revision).IfRevision(key, own.revision).Put(key, own.part.Encode());
    const auto committed = at_.kv.Commit(until_stop_, transaction);
    if (committed.ok()) return {};
    if (committed.error().code != ErrorCode::kConflict) return committed.error();
    CAIRNFS_ASSIGN_OR_RETURN(const auto record, at_.kv.Get(until_stop_, record_key));
    if (!record || record->revision != commit.revision) return committed.error();
  }
}

Result<std::string> Commits::Describe(const Context& context, InodeId directory, Tell what) {
  CAIRNFS_ASSIGN_OR_RETURN(const auto commit, at_.names.ReadCommit(context, directory));
  if (!commit) return MakeError(ErrorCode::kNoData, "no rename has published it");
  const auto& [record, sum, revision] = *commit;
  // Whoever was to count them may have ended, or had no place for that.
  const bool is_own = record.node == self_.node;
  if (!sum.totals) Post(directory, record.uid, {.takes_over = is_own, .counts = true, .is_news = is_own});
  nlohmann::ordered_json json;
  json["committed_at"] = SecondsOf(record.at);
  json["revision"] = revision;
  json["host"] = record.host;
  json["uid"] = record.uid;
  json["command"] = record.command;
  json["files"] = sum.totals ? nlohmann::ordered_json(sum.totals->files) : nullptr;
  json["bytes"] = sum.totals ? nlohmann::ordered_json(sum.totals->bytes) : nullptr;
  // Where there are bytes and no write is known, they were copied, or whoever knew of the writes has ended.
  const bool is_cost_known = sum.first_write || (sum.totals && sum.totals->bytes == 0);
  const auto known = [&](const auto& cost) { return is_cost_known ? nlohmann::ordered_json(cost) : nullptr; };
  json["written_bytes"] = known(sum.written_bytes);
  json["new_bytes"] = what == Tell::kAll ? known(sum.new_bytes) : nullptr;
  json["save_seconds"] = SecondsSince(sum.first_write, record.at);
  json["durable_seconds"] = SecondsSince(sum.first_write, sum.durable);
  json["copied_seconds"] = SecondsSince(sum.first_write, sum.copied);
  json["write_seconds"] = known(SecondsOf(sum.write_ns));
  json["wait_seconds"] = known(SecondsOf(sum.wait_ns));
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cairnfs::fs
