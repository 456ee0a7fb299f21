#include "cluster/group_commit.h"

#include <pthread.h>

#include <future>

#include "base/log.h"
#include "base/thread_priority.h"

namespace cairnfs::cluster {

GroupCommit::GroupCommit(store::LocalChunkStore& local, kv::KvEngine& engine) : local_(local), engine_(engine) {
  thread_ = std::thread([this] { Run(); });
}

GroupCommit::~GroupCommit() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    wake_.NotifyAll();
  }
  thread_.join();
}

Result<store::PutResult> GroupCommit::Put(const Digest& digest, std::span<const io::Slice> slices,
                                          const Holders& holders) {
  {
    MutexLock lock(mutex_);
    storing_.insert(digest);
  }
  auto put = local_.Put(digest, slices);
  MutexLock lock(mutex_);
  storing_.erase(storing_.find(digest));
  if (put.ok() && put->is_new) {
    stored_.insert(digest);
    if (!holders.empty()) lists_.try_emplace(digest, holders);
  }
  return put;
}

// With the lock, so that no list is told of and written between the look and the deletion.
Status GroupCommit::ForgetHolders(const std::vector<Digest>& digests) {
  std::vector<kv::EngineWrite> deletions;
  MutexLock lock(mutex_);
  const std::vector<bool> are_unknown = local_.AreUnknown(digests);
  for (size_t i = 0; i < digests.size(); ++i) {
    const Digest& digest = digests[i];
    const bool is_in_use = lists_.contains(digest) || lists_running_.contains(digest) || storing_.contains(digest) ||
                           stored_.contains(digest) || stored_running_.contains(digest);
    if (are_unknown[i] && !is_in_use) deletions.push_back({HolderKey(digest), std::nullopt});
  }
  return deletions.empty() ? Status() : engine_.Write(deletions, kv::WriteMode::kUnsynced);
}

void GroupCommit::SetHolders(const Digest& digest, Holders holders) {
  MutexLock lock(mutex_);
  lists_[digest] = std::move(holders);
}

bool GroupCommit::SetHoldersIfNone(const Digest& digest, const Holders& holders) {
  {
    // First, so that a list that is being written is seen here or there.
    MutexLock lock(mutex_);
    if (lists_.contains(digest) || lists_running_.contains(digest)) return true;
  }
  // One that cannot be read may be better than what is known here.
  const auto written = ReadHolders(engine_, digest);
  if (!written.ok() || *written) return false;
  MutexLock lock(mutex_);
  if (!lists_running_.contains(digest)) lists_.try_emplace(digest, holders);
  return true;
}

std::optional<Holders> GroupCommit::FindHolders(const Digest& digest) {
  {
    MutexLock lock(mutex_);
    for (const Lists* lists : {&lists_, &lists_running_}) {
      if (auto found = lists->find(digest); found != lists->end()) return found->second;
    }
  }
  auto holders = ReadHolders(engine_, digest);
  if (holders.ok()) return *std::move(holders);
  spdlog::error("the list of who holds a chunk cannot be read: {}", holders.error().message);
  return std::nullopt;
}

std::vector<GroupCommit::Presence> GroupCommit::Find(const std::vector<Digest>& digests) {
  // The sets are looked at last: what is stored when the store is asked, and not in them afterwards, was committed.
  const std::vector<bool> has = local_.HasSound(digests);
  std::vector<bool> is_new(digests.size());
  {
    MutexLock lock(mutex_);
    for (size_t i = 0; i < digests.size(); ++i) {
      for (const auto* chunks : {&stored_, &stored_running_}) is_new[i] = is_new[i] || chunks->contains(digests[i]);
      for (const Lists* lists : {&lists_, &lists_running_}) is_new[i] = is_new[i] || lists->contains(digests[i]);
      is_new[i] = is_new[i] || storing_.contains(digests[i]);
    }
  }
  std::vector<Presence> found(digests.size(), Presence::kAbsent);
  for (size_t i = 0; i < digests.size(); ++i) {
    if (has[i]) found[i] = is_new[i] ? Presence::kNew : Presence::kDurable;
  }
  return found;
}

void GroupCommit::Commit(Done done) {
  MutexLock lock(mutex_);
  waiting_.push_back(std::move(done));
  wake_.NotifyAll();
}

Status GroupCommit::CommitAndWait() {
  std::promise<Status> promise;
  Commit([&](Status status) { promise.set_value(std::move(status)); });
  return promise.get_future().get();
}

size_t GroupCommit::uncommitted_count() const {
  MutexLock lock(mutex_);
  return storing_.size() + stored_.size() + stored_running_.size() + lists_.size() + lists_running_.size();
}

void GroupCommit::Run() {
  pthread_setname_np(pthread_self(), "cairn-commit");
  MakeThreadBackground();
  for (;;) {
    std::vector<Done> waiting;
    bool is_last;
    {
      MutexLock lock(mutex_);
      while (waiting_.empty() && !stopping_) wake_.Wait(mutex_);
      is_last = waiting_.empty();
      if (is_last && stored_.empty() && stored_running_.empty() && lists_.empty() && lists_running_.empty()) return;
      waiting.swap(waiting_);
      stored_running_.merge(stored_);  // what a failed round left over comes along again
      stored_.clear();
    }
    const Status status = CommitOnce();
    if (status.ok()) {
      MutexLock lock(mutex_);
      lists_running_.clear();
      stored_running_.clear();
    }
    for (Done& done : waiting) done(status);
    if (!is_last) continue;
    if (!status.ok()) spdlog::warn("what was stored last is not durable: {}", status.error().message);
    return;
  }
}

GroupCommit::Lists GroupCommit::TakeLists() {
  MutexLock lock(mutex_);
  for (auto& [digest, holders] : lists_) lists_running_[digest] = std::move(holders);
  lists_.clear();
  return lists_running_;
}

// The lists are taken after the chunks: a chunk's list is set before the chunk is put, so that none is durable here
// without one.
Status GroupCommit::CommitOnce() {
  CAIRNFS_RETURN_IF_ERROR(local_.Sync());
  const Lists lists = TakeLists();
  std::vector<kv::EngineWrite> writes;
  writes.reserve(lists.size());
  for (const auto& [digest, holders] : lists) writes.push_back({HolderKey(digest), EncodeHolders(holders)});
  return engine_.Write(writes, kv::WriteMode::kSynced);
}

}  // namespace cairnfs::cluster
