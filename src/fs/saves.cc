#include "fs/saves.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace cairnfs::fs {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr size_t kTalliesSweptMin = 1024;

uint64_t CountOf(Clock::duration time) {
  return static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::nanoseconds(time).count()));
}

meta::CommitPart TakeOf(SaveTally& tally) {
  meta::CommitPart part;
  if (const int64_t first = tally.first_write_ns.exchange(0)) {
    part.first_write = Timestamp{first / kNanosecondsPerSecond, static_cast<uint32_t>(first % kNanosecondsPerSecond)};
  }
  part.written_bytes = tally.written_bytes.exchange(0);
  part.new_bytes = tally.new_bytes->exchange(0);
  part.write_ns = tally.write_ns.exchange(0);
  part.wait_ns = tally.wait_ns.exchange(0);
  return part;
}

}  // namespace

void SaveTally::NoteWrite(uint64_t bytes, Clock::duration took) {
  written_bytes.fetch_add(bytes, std::memory_order_relaxed);
  write_ns.fetch_add(CountOf(took), std::memory_order_relaxed);
  if (first_write_ns.load(std::memory_order_relaxed) != 0) return;
  const Timestamp now = Clock::WallTime();
  const int64_t ended_ns = now.seconds * kNanosecondsPerSecond + now.nanoseconds;
  int64_t none = 0;
  if (first_write_ns.compare_exchange_strong(none, ended_ns - static_cast<int64_t>(CountOf(took)))) {
    saves.NoteWritten(shared_from_this());
  }
}

void SaveTally::NoteWait(Clock::duration took) { wait_ns.fetch_add(CountOf(took), std::memory_order_relaxed); }

SaveTallyPtr Saves::Of(InodeId directory, uint32_t uid) {
  if (directory.value == 0) return nullptr;
  MutexLock lock(mutex_);
  if (tallies_.size() >= std::max(kTalliesSweptMin, 2 * swept_at_)) {
    std::erase_if(tallies_, [](const auto& entry) { return entry.second.use_count() == 1; });
    swept_at_ = tallies_.size();
  }
  SaveTallyPtr& tally = tallies_[directory];
  if (tally == nullptr) tally = std::make_shared<SaveTally>(*this, directory, uid);
  return tally;
}

void Saves::NoteWritten(const SaveTallyPtr& tally) {
  MutexLock lock(mutex_);
  while (places_.size() >= kPlacesMax) ForgetOldest();
  Place& place = Make(tally->directory, tally->uid);
  if (place.written != nullptr) return;
  place.written = tally;
  std::list<InodeId>& written = users_[tally->uid].written;
  place.turn = written.insert(written.end(), tally->directory);
  Lead(tally->directory);
}

Saves::Place& Saves::Make(InodeId directory, uint32_t uid) {
  const auto [place, is_new] = places_.try_emplace(directory);
  if (is_new) {
    place->second.uid = uid;
    ++users_[uid].place_count;
  }
  return place->second;
}

// All the way up, also where it leads already: so no places lead up to themselves, whatever other hosts have moved.
void Saves::Lead(InodeId directory) {
  const uint32_t uid = places_.at(directory).uid;
  std::vector<InodeId> path{directory};
  for (bool goes_on = true; goes_on;) {
    const InodeId at = path.back(), parent = parent_of_(at);
    goes_on = parent.value != 0 && parent != kRootInode && path.size() < kLevelsMax &&
              std::find(path.begin(), path.end(), parent) == path.end();
    SetParent(at, goes_on ? parent : InodeId{}, uid);
    path.push_back(parent);
  }
}

void Saves::SetParent(InodeId directory, InodeId parent, uint32_t uid) {
  const InodeId before = std::exchange(places_.at(directory).parent, parent);
  if (before == parent) return;
  if (parent.value != 0) Make(parent, uid).children.insert(directory);
  if (before.value == 0) return;
  places_.at(before).children.erase(directory);
  Prune(before);
}

void Saves::Prune(InodeId directory) {
  for (auto place = places_.find(directory); place != places_.end();) {
    if (place->second.written != nullptr || !place->second.children.empty()) return;
    const auto user = users_.find(place->second.uid);
    assert(user != users_.end());
    if (--user->second.place_count == 0 && user->second.written.empty()) users_.erase(user);
    const InodeId child = place->first;
    const auto parent = places_.find(place->second.parent);
    places_.erase(place);
    if (parent != places_.end()) parent->second.children.erase(child);
    place = parent;
  }
}

SaveTallyPtr Saves::TakeOut(InodeId directory) {
  Place& place = places_.at(directory);
  SaveTallyPtr tally = std::move(place.written);
  const auto user = users_.find(tally->uid);
  user->second.written.erase(place.turn);
  if (user->second.place_count == 0 && user->second.written.empty()) users_.erase(user);
  Prune(directory);
  return tally;
}

void Saves::ForgetOldest() {
  const User* most = nullptr;
  for (const auto& [uid, user] : users_) {
    if (user.written.empty()) continue;  // its places lie above what others have written
    if (most == nullptr || user.place_count > most->place_count) most = &user;
  }
  assert(most != nullptr);
  static_cast<void>(TakeOf(*TakeOut(most->written.front())));
}

void Saves::NoteMoved(InodeId directory) {
  MutexLock lock(mutex_);
  if (places_.contains(directory)) Lead(directory);
}

bool Saves::IsWrittenBelow(InodeId directory) const {
  MutexLock lock(mutex_);
  return places_.contains(directory);
}

std::vector<InodeId> Saves::Written() const {
  MutexLock lock(mutex_);
  std::vector<InodeId> directories;
  for (const auto& [directory, place] : places_) {
    if (place.written != nullptr) directories.push_back(directory);
  }
  return directories;
}

Saves::Taken Saves::TakeBelow(InodeId directory) {
  MutexLock lock(mutex_);
  Taken taken;
  std::vector<InodeId> written, left{directory};
  while (!left.empty()) {
    const auto place = places_.find(left.back());
    left.pop_back();
    if (place == places_.end()) continue;
    if (place->second.written != nullptr) written.push_back(place->first);
    left.insert(left.end(), place->second.children.begin(), place->second.children.end());
  }
  for (const InodeId each : written) {
    const SaveTallyPtr& tally = taken.tallies.emplace_back(TakeOut(each));
    taken.part.Add(TakeOf(*tally));
  }
  return taken;
}

uint64_t Saves::TakeLate(const std::vector<SaveTallyPtr>& taken) {
  uint64_t new_bytes = 0;
  for (const SaveTallyPtr& tally : taken) {
    if (tally->first_write_ns.load() == 0) new_bytes += tally->new_bytes->exchange(0);
  }
  return new_bytes;
}

void Saves::GiveBack(InodeId directory, uint32_t uid, const meta::CommitPart& part) {
  const SaveTallyPtr tally = Of(directory, uid);
  if (tally == nullptr || !part.first_write) return;
  tally->written_bytes += part.written_bytes;
  *tally->new_bytes += part.new_bytes;
  tally->write_ns += part.write_ns;
  tally->wait_ns += part.wait_ns;
  tally->first_write_ns = part.first_write->seconds * kNanosecondsPerSecond + part.first_write->nanoseconds;
  NoteWritten(tally);
}

}  // namespace cairnfs::fs
