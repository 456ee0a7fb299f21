#include "fs/seals.h"

#include <set>
#include <utility>

#include "base/clock.h"
#include "fs/services.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::milliseconds kChangesEndMax{500};
constexpr std::chrono::milliseconds kLookPause{50};
constexpr size_t kWritersNamedMax = 5;
constexpr unsigned kPlacesMax = 8;  // of a user

}  // namespace

std::shared_ptr<void> ChangeGate::Begin(InodeId inode) {
  MutexLock lock(mutex_);
  const uint64_t number = begun_++;
  running_.emplace(number, inode);
  return {nullptr, [this, number](void*) { End(number); }};
}

void ChangeGate::End(uint64_t number) {
  MutexLock lock(mutex_);
  running_.erase(number);
  ended_.NotifyAll();
}

std::vector<InodeId> ChangeGate::AwaitBegun(const Context& context) {
  MutexLock lock(mutex_);
  const uint64_t end = begun_;
  const auto have_ended = [&]() REQUIRES_LOCK(mutex_) { return running_.empty() || running_.begin()->first >= end; };
  static_cast<void>(context.Wait(mutex_, ended_, have_ended));
  std::vector<InodeId> left;
  for (const auto& [number, inode] : running_) {
    if (number < end) left.push_back(inode);
  }
  return left;
}

Result<Seals::Change> Seals::BeginChange(const Context& context, InodeId inode, std::optional<InodeId> made_in) {
  Change change{gate_.Begin(inode), Session()};  // first: whoever seals from here on finds it
  if (session_seen_ != change.session) {
    names_.ForgetSeals();
    session_seen_ = change.session;
  }
  CAIRNFS_RETURN_IF_ERROR(names_.CheckUnsealed(context, made_in.value_or(inode)));
  return change;
}

std::vector<InodeId> Seals::WrittenHere(const Context& context, What what, For whom) {
  std::vector<InodeId> written;
  if (what == What::kWrittenForSeal) {
    names_.ForgetSeals();
    written = gate_.AwaitBegun(context.WithTimeout(kChangesEndMax));
  }
  bool is_unpublished = false;
  table_.ForEachHeld([&](const InodePtr& inode) {
    if (inode->unlinked) return;
    MutexLock lock(inode->mutex);
    const bool is_open = inode->write_open_count > 0;
    // Who seals here has a round of this host's own after it.
    const bool counts = !is_open && whom == For::kOtherHost && inode->content && inode->content->changed;
    is_unpublished = is_unpublished || counts;
    if (is_open || counts) written.push_back(inode->id);
  });
  if (is_unpublished && publish_ && !is_publishing_.exchange(true)) publish_([this] { is_publishing_ = false; });
  return written;
}

Result<std::vector<std::string>> Seals::DescribeWriters(const Context& context, InodeId directory, What what) {
  std::vector<Writer> writers;
  std::vector<InodeId> inodes = WrittenHere(context, what, For::kThisHost);
  for (const InodeId inode : inodes) writers.push_back({name_ ? name_() : "", inode});
  if (ask_others_) {
    CAIRNFS_ASSIGN_OR_RETURN(const std::vector<Writer> others, ask_others_(context, what));
    writers.insert(writers.end(), others.begin(), others.end());
  }
  inodes.clear();
  for (const Writer& writer : writers) inodes.push_back(writer.inode);
  CAIRNFS_ASSIGN_OR_RETURN(const auto found, names_.FindNamedBelow(context, directory, inodes));
  const std::set<InodeId> below(found.begin(), found.end());
  std::vector<std::string> sentences;
  for (const Writer& writer : writers) {
    if (!below.contains(writer.inode)) continue;
    if (sentences.size() == kWritersNamedMax) {
      sentences.emplace_back("and more");
      break;
    }
    const std::string where = writer.host.empty() ? "" : "host " + writer.host + ": ";
    sentences.push_back(where + "'" + path_of_(context, writer.inode) + "' is open for writing");
  }
  return sentences;
}

bool Seals::TakePlace(uint32_t uid) {
  MutexLock lock(mutex_);
  if (places_[uid] >= kPlacesMax) return false;
  places_[uid]++;
  return true;
}

void Seals::LeavePlace(uint32_t uid) {
  MutexLock lock(mutex_);
  if (--places_[uid] == 0) places_.erase(uid);
}

void AfterPause(const Services& at, const Caller& caller, std::chrono::milliseconds pause, Done<void> then) {
  auto time_is_up = [] { return MakeError(ErrorCode::kUnavailable, "it is time to go on"); };
  auto go_on = [then = std::move(then)](const Status& why) {
    const bool is_gone = why.error().code == ErrorCode::kInterrupted;
    then(is_gone ? why : Status());
  };
  static_cast<void>(at.waits.Within(caller.context.WithTimeout(pause), time_is_up, std::move(go_on)));
}

void OnceSealsAreKnown(const Services& at, InodeId id, const Caller& caller, Done<void> then) {
  if (at.parts.names.KnowsSealsOf(caller.context, id)) return then({});
  auto again = [&at, id, caller, then](const Status& paused) {
    if (!paused.ok()) return then(paused);
    at.calls.RunToWait(
        caller, [&at, id, caller, then] { OnceSealsAreKnown(at, id, caller, then); }, then);
  };
  auto look = [&at, id, caller, then, again] {
    // One look tells it of all such files: the others wait for it, and on no thread.
    if (!at.seals.BeginLook()) return AfterPause(at, caller, kLookPause, again);
    const Status unsealed = at.parts.names.CheckUnsealed(caller.context, id);
    at.seals.EndLook();
    then(unsealed);
  };
  at.calls.RunToWait(caller, std::move(look), then);
}

}  // namespace cairnfs::fs
