#include "fs/saves.h"

#include <algorithm>

namespace cairnfs::fs {
namespace {

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

uint64_t CountOf(Clock::duration time) {
  return static_cast<uint64_t>(std::max<int64_t>(0, std::chrono::nanoseconds(time).count()));
}

}  // namespace

void SaveTally::NoteWrite(uint64_t bytes, Clock::duration took) {
  if (first_write_ns.load(std::memory_order_relaxed) == 0) {
    const Timestamp now = Clock::WallTime();
    const int64_t ended_ns = now.seconds * kNanosecondsPerSecond + now.nanoseconds;
    int64_t none = 0;
    first_write_ns.compare_exchange_strong(none, ended_ns - static_cast<int64_t>(CountOf(took)));
  }
  written_bytes.fetch_add(bytes, std::memory_order_relaxed);
  write_ns.fetch_add(CountOf(took), std::memory_order_relaxed);
}

void SaveTally::NoteWait(Clock::duration took) { wait_ns.fetch_add(CountOf(took), std::memory_order_relaxed); }

SaveTallyPtr Saves::Of(InodeId directory) {
  if (directory.value == 0) return nullptr;
  MutexLock lock(mutex_);
  if (tallies_.size() >= kDirectoriesMax && !tallies_.contains(directory)) {
    std::erase_if(tallies_, [](const auto& entry) { return entry.second.use_count() == 1; });
  }
  SaveTallyPtr& tally = tallies_[directory];
  if (tally == nullptr) tally = std::make_shared<SaveTally>();
  return tally;
}

std::vector<InodeId> Saves::Written() {
  MutexLock lock(mutex_);
  std::vector<InodeId> directories;
  for (const auto& [directory, tally] : tallies_) {
    if (tally->first_write_ns.load(std::memory_order_relaxed) != 0) directories.push_back(directory);
  }
  return directories;
}

bool Saves::Take(const std::vector<InodeId>& directories, meta::CommitPart& part) {
  MutexLock lock(mutex_);
  bool has_any = false;
  for (const InodeId directory : directories) {
    const auto found = tallies_.find(directory);
    if (found == tallies_.end()) continue;
    SaveTally& tally = *found->second;
    meta::CommitPart taken;
    if (const int64_t first = tally.first_write_ns.exchange(0)) {
      taken.first_write =
          Timestamp{first / kNanosecondsPerSecond, static_cast<uint32_t>(first % kNanosecondsPerSecond)};
    }
    taken.written_bytes = tally.written_bytes.exchange(0);
    taken.new_bytes = tally.new_bytes->exchange(0);
    taken.write_ns = tally.write_ns.exchange(0);
    taken.wait_ns = tally.wait_ns.exchange(0);
    has_any = has_any || taken.first_write || taken.new_bytes > 0 || taken.wait_ns > 0;
    part.Add(taken);
  }
  return has_any;
}

void Saves::TakeLate(const std::vector<InodeId>& directories, meta::CommitPart& part) {
  MutexLock lock(mutex_);
  for (const InodeId directory : directories) {
    const auto found = tallies_.find(directory);
    if (found == tallies_.end() || found->second->first_write_ns.load() != 0) continue;
    part.new_bytes += found->second->new_bytes->exchange(0);
  }
}

void Saves::GiveBack(InodeId directory, const meta::CommitPart& part) {
  const SaveTallyPtr tally = Of(directory);
  if (tally == nullptr) return;
  if (part.first_write) {
    tally->first_write_ns = part.first_write->seconds * kNanosecondsPerSecond + part.first_write->nanoseconds;
  }
  tally->written_bytes += part.written_bytes;
  *tally->new_bytes += part.new_bytes;
  tally->write_ns += part.write_ns;
  tally->wait_ns += part.wait_ns;
}

}  // namespace cairnfs::fs
