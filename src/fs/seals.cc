#include "fs/seals.h"

#include <set>
#include <utility>

#include "base/clock.h"

namespace cairnfs::fs {
namespace {

constexpr std::chrono::seconds kChangesEndMax{3};
constexpr size_t kWritersNamedMax = 5;
constexpr unsigned kPlacesMax = 8;  // of a user

}  // namespace

std::shared_ptr<void> ChangeGate::Begin() {
  MutexLock lock(mutex_);
  const uint64_t phase = phase_;
  running_[phase % 2]++;
  return {nullptr, [this, phase](void*) { End(phase); }};
}

void ChangeGate::End(uint64_t phase) {
  MutexLock lock(mutex_);
  if (--running_[phase % 2] == 0) ended_.NotifyAll();
}

bool ChangeGate::AwaitBegun(const Context& context) {
  MutexLock lock(mutex_);
  const auto is_free = [this]() REQUIRES_LOCK(mutex_) { return !is_awaited_; };
  if (!context.Wait(mutex_, ended_, is_free)) return false;
  is_awaited_ = true;
  const auto none_of = [this](uint64_t phase) {
    return [this, phase]() REQUIRES_LOCK(mutex_) { return running_[phase % 2] == 0; };
  };
  // Those of the phase before first: the next one is counted in their place.
  bool have_ended = context.Wait(mutex_, ended_, none_of(phase_ + 1));
  if (have_ended) have_ended = context.Wait(mutex_, ended_, none_of(phase_++));
  is_awaited_ = false;
  ended_.NotifyAll();
  return have_ended;
}

Result<Seals::Change> Seals::BeginChange(const Context& context, InodeId inode) {
  Change change{gate_.Begin(), Session()};  // first: whoever seals from here on finds it
  if (session_seen_ != change.session) {
    names_.ForgetSeals();
    session_seen_ = change.session;
  }
  CAIRNFS_RETURN_IF_ERROR(names_.CheckUnsealed(context, inode));
  return change;
}

Result<std::vector<InodeId>> Seals::WrittenHere(const Context& context, What what) {
  if (what == What::kWrittenForSeal) {
    names_.ForgetSeals();
    if (!gate_.AwaitBegun(context.WithTimeout(kChangesEndMax))) {
      return MakeError(ErrorCode::kUnavailable, "a change of a file does not end");
    }
  }
  std::vector<InodeId> written;
  table_.ForEachHeld([&](const InodePtr& inode) {
    if (inode->unlinked) return;
    MutexLock lock(inode->mutex);
    if (inode->write_open_count > 0) written.push_back(inode->id);
  });
  return written;
}

Result<std::vector<std::string>> Seals::DescribeWriters(const Context& context, InodeId directory, What what) {
  std::vector<Writer> writers;
  CAIRNFS_ASSIGN_OR_RETURN(std::vector<InodeId> inodes, WrittenHere(context, what));
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
      sentences.push_back("and more");
      break;
    }
    const std::string where = writer.host.empty() ? "" : "host " + writer.host + ": ";
    sentences.push_back(where + "'" + names_.PathOfInode(context, writer.inode) + "' is open for writing");
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

}  // namespace cairnfs::fs
