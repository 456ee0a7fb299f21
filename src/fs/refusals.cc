#include "fs/refusals.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/log.h"
#include "fs/permissions.h"
#include "fs/scan.h"

namespace cairnfs::fs {
namespace {

constexpr size_t kEndedAtOnce = 64;
constexpr std::chrono::seconds kListWait{2};  // for the store

using meta::RefusedCommit;

// Those that are kept, by user, each one's the oldest first: who goes when there are too many.
class Kept {
 public:
  void Add(const kv::KvEntry& entry) {
    const auto refused = RefusedCommit::Decode(entry.key, entry.value);
    ++count_;
    if (!refused.ok()) return unreadable_.push_back(entry.key);
    users_[refused->uid].emplace(refused->at, entry.key);
  }
  size_t count() const { return count_; }
  // The oldest of who has most; what does not decode goes before. `uid`: whose the new one is. REQUIRES: count() > 0.
  std::string TakeOne(uint32_t uid) {
    --count_;
    if (!unreadable_.empty()) return TakeLast();
    const auto count_of = [&](const auto& user) { return user.second.size() + (user.first == uid ? 1 : 0); };
    const auto gives_way = [&](const auto& one, const auto& other) {
      const size_t its_count = count_of(one), other_count = count_of(other);
      return its_count != other_count ? its_count < other_count : *one.second.begin() > *other.second.begin();
    };
    const auto most = std::max_element(users_.begin(), users_.end(), gives_way);
    std::string key = most->second.begin()->second;
    most->second.erase(most->second.begin());
    if (most->second.empty()) users_.erase(most);
    return key;
  }

 private:
  std::string TakeLast() {
    std::string key = std::move(unreadable_.back());
    unreadable_.pop_back();
    return key;
  }

  size_t count_ = 0;
  std::vector<std::string> unreadable_;
  std::map<uint32_t, std::set<std::pair<Timestamp, std::string>>> users_;  // none is empty
};

}  // namespace

void Refusals::Stop() {
  MutexLock lock(mutex_);
  is_stopped_ = true;
}

void Refusals::Note(RefusedCommit refused) {
  for (const meta::RefusalCause& cause : refused.causes) {
    spdlog::error("commit of '{}': {}", refused.directory, cause.Sentence());
  }
  refused.Shorten();
  MutexLock lock(mutex_);
  std::erase_if(recent_, [&](const RefusedCommit& recent) { return recent.source == refused.source; });
  recent_.push_front(refused);
  if (recent_.size() > kRecentMax) recent_.pop_back();
  if (is_stopped_) return;
  const uint32_t uid = refused.uid;
  const auto gone = waiting_.Add(uid, std::move(refused));
  if (!gone) at_.queue.Post([this] { WriteNext(); });
}

void Refusals::WriteNext() {
  std::optional<Turns<RefusedCommit>::Taken> taken;
  {
    MutexLock lock(mutex_);
    taken = waiting_.Take();
  }
  if (!taken) return;
  Write(taken->item);
  MutexLock lock(mutex_);
  waiting_.NoteDone(taken->uid);
  if (!is_stopped_) at_.queue.Post([this] { WriteNext(); });  // one of this user's may have waited for that
}

void Refusals::Write(const RefusedCommit& refused) {
  const std::string key = meta::RefusalKey(refused.source, node_);
  kv::Transaction transaction;
  transaction.Put(key, refused.Encode());
  Kept others;
  const Status scanned = ScanPrefix(until_stop_, at_.kv, meta::RefusalsPrefix(), [&](const kv::KvEntry& entry) {
    if (entry.key != key) others.Add(entry);
    return true;
  });
  for (size_t i = 0; scanned.ok() && i < kEndedAtOnce && others.count() >= kKeptMax; ++i) {
    transaction.Delete(others.TakeOne(refused.uid));
  }
  const auto committed = at_.kv.Commit(until_stop_, transaction);
  if (!committed.ok() && !until_stop_.Expired()) {
    spdlog::warn("a refused commit could not be recorded: {}", committed.error().message);
  }
}

std::optional<RefusedCommit> Refusals::Last(InodeId directory) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(recent_.begin(), recent_.end(),
                                  [&](const RefusedCommit& refused) { return refused.source == directory; });
  return found == recent_.end() ? std::nullopt : std::optional(*found);
}

std::vector<RefusedCommit> Refusals::List(const Context& context) {
  std::vector<RefusedCommit> refused;
  std::set<std::string> recent;  // which may not be written yet
  {
    MutexLock lock(mutex_);
    refused.assign(recent_.begin(), recent_.end());
  }
  for (const RefusedCommit& one : refused) recent.insert(meta::RefusalKey(one.source, node_));
  const size_t recent_count = refused.size();
  const auto visit = [&](const kv::KvEntry& entry) {
    if (recent.contains(entry.key)) return true;
    auto kept = RefusedCommit::Decode(entry.key, entry.value);
    if (kept.ok()) refused.push_back(*std::move(kept));
    return true;
  };
  const Status scanned = ScanPrefix(context.WithTimeout(kListWait), at_.kv, meta::RefusalsPrefix(), visit);
  if (!scanned.ok()) refused.resize(recent_count);
  std::sort(refused.begin(), refused.end(),
            [](const RefusedCommit& one, const RefusedCommit& other) { return one.at > other.at; });
  return refused;
}

// What lies elsewhere, by another of its names, is for root alone.
bool Refusals::IsFor(const Caller& caller, const RefusedCommit& refused, meta::RefusalCause& cause) {
  if (cause.file.empty()) return true;
  const bool lies_below = cause.file.starts_with(refused.directory + "/");
  cause.file = lies_below ? cause.file.substr(refused.directory.size() + 1) : "/" + cause.file;
  return caller.uid == 0 || (lies_below && MayFindBelow(caller.context, at_.names, caller, refused.source, cause.file));
}

Result<std::string> Refusals::Describe(const Caller& caller, InodeId directory) {
  std::optional<RefusedCommit> last = Last(directory);
  const auto visit = [&](const kv::KvEntry& entry) {
    auto kept = RefusedCommit::Decode(entry.key, entry.value);
    const bool is_its = kept.ok() && kept->source == directory;
    if (is_its && (!last || last->at < kept->at)) last = *std::move(kept);
    return true;
  };
  CAIRNFS_RETURN_IF_ERROR(ScanPrefix(caller.context, at_.kv, meta::RefusalsPrefix(directory), visit));
  if (!last) return MakeError(ErrorCode::kNoData, "no commit of it was refused");
  CAIRNFS_ASSIGN_OR_RETURN(const meta::Attr attr, at_.names.GetAttr(caller.context, directory));
  const bool is_for_caller = caller.uid == 0 || caller.uid == attr.uid;
  nlohmann::ordered_json json;
  json["at"] = last->at.seconds;
  json["host"] = last->host;
  json["uid"] = last->uid;
  json["causes"] = nlohmann::ordered_json::array();
  uint64_t left_out = last->left_out;
  for (meta::RefusalCause& cause : last->causes) {
    if (!is_for_caller || !IsFor(caller, *last, cause)) {
      ++left_out;
      continue;
    }
    nlohmann::ordered_json told;
    told["file"] = cause.file;
    told["host"] = cause.host;
    told["cause"] = cause.why;
    json["causes"].push_back(std::move(told));
  }
  json["left_out"] = left_out;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace cairnfs::fs
