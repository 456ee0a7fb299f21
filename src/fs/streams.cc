#include "fs/streams.h"

#include <algorithm>
#include <array>

#include "base/clock.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "fs/landed_chunks.h"
#include "fs/tail_merge.h"

namespace cairnfs::fs {
namespace {

Failpoint chunk_put("fs.chunk_put", Failpoint::Kind::kKill);
Failpoint chunk_applied("fs.chunk_applied", Failpoint::Kind::kKill);

// Less than this is not worth a look for cuts on its own.
constexpr uint64_t kScanBytesMin = 256 * kKiB;

// Scattered small writes are stored as they are once a file has this many of them in memory.
constexpr size_t kRunsMax = 4096;

bool IsWorthCutting(const Run& run) { return run.length - run.scanned >= kScanBytesMin; }

bool IsPassing(ErrorCode code) { return code == ErrorCode::kUnavailable || code == ErrorCode::kExhausted; }

}  // namespace

void Streams::SetError(const InodePtr& inode, const Error& error, bool heals) {
  if (heals) {
    inode->error.SetThatHeals(error);
  } else {
    inode->error.Set(error);
  }
  hooks_.failed(inode->id);
}

void Streams::NoteNoSpace(const InodePtr& inode, uint64_t chunk_id, const Error& error) {
  Content& content = *inode->content;
  content.no_space_through = std::max(content.no_space_through, chunk_id);
  if (hooks_.no_room()) return;
  // What finds no space is tried again and again; it is news once.
  if (!std::exchange(content.no_space_noted, true)) SetError(inode, error, true);
}

void Streams::NoteRecipeError(const InodePtr& inode, const Error& error) {
  const bool no_space = error.code == ErrorCode::kNoSpace;
  if (no_space && hooks_.no_room()) return;
  if (!std::exchange(inode->content->recipe_error_noted, true)) SetError(inode, error, no_space);
}

void Streams::ForgetRecipeError(const InodePtr& inode) {
  if (std::exchange(inode->content->recipe_error_noted, false)) ForgetHealed(inode);
}

void Streams::ForgetHealed(const InodePtr& inode) {
  Content& content = *inode->content;
  if (content.LacksSpace()) return;
  content.no_space_noted = false;
  if (!content.recipe_error_noted) inode->error.Heal();
}

// Zeros are laid where a hole ends at `end` that has no whole page: a file system whose blocks are pages has none there
// either, and in a stream without a gap the cuts are those of the file that has the zeros written.
uint64_t Streams::BeginOfSmallHole(const InodePtr& inode, uint64_t end) {
  const Content& content = *inode->content;
  if (content.overlay.StartOfRunTo(end)) return end;
  const uint64_t page = AlignDown(end, kPageBytes);
  const uint64_t least = page - std::min<uint64_t>(page, kPageBytes);
  uint64_t begin = end;
  content.overlay.Visit(
      least, end - least, [&](uint64_t, const io::Slice&) { begin = end; },
      [&](uint64_t gap, uint64_t) { begin = gap; });
  if (begin == end || !content.extents.IsLoaded(begin, end - begin)) return end;
  content.extents.ForEach(begin, end - begin, [&](const Extent& extent) { begin = extent.end(); });
  if (begin == end || HasWholePage(begin, end) || content.HasLost(begin, end)) return end;
  return begin;
}

void Streams::FillSmallHole(const InodePtr& inode, uint64_t end) {
  static constexpr std::array<std::byte, 2 * kPageBytes> kZeros{};
  Content& content = *inode->content;
  const uint64_t begin = BeginOfSmallHole(inode, end);
  if (begin == end || !local_.TryReserve(end - begin)) return;
  content.overlay.Write(begin, io::Slice{{}, kZeros.data(), end - begin});
  if (content.publish->is_shared()) content.filled_holes.Add(begin, end);
}

bool Streams::Accept(const InodePtr& inode, uint64_t offset, const io::Slice& data) {
  Content& content = *inode->content;
  Overlay& overlay = content.overlay;
  content.written_at = Clock::Now();
  content.accepted_bytes += data.size;
  FillSmallHole(inode, offset);
  if (!content.filled_holes.empty()) content.filled_holes.Remove(offset, offset + data.size);
  uint64_t before = overlay.run_bytes();
  overlay.Write(offset, data);
  if (inode->backing) inode->backing->NoteWritten(offset, data.bytes());
  // What was overwritten before it was cut needs no room any more.
  if (uint64_t overwritten = before + data.size - overlay.run_bytes()) local_.ReleaseReservation(overwritten);
  auto& runs = overlay.runs();
  const auto written = std::prev(runs.upper_bound(offset));
  const bool cuts = IsWorthCutting(written->second) && TakeCutting(inode);
  if (runs.size() > kRunsMax && !content.drop_runs && content.barriers_waiting == 0) {
    content.drop_runs = true;  // once all of them are stored
    CutAll(inode);
  }
  return cuts;
}

bool Streams::TakeCutting(const InodePtr& inode) {
  inode->mutex.AssertHeld();
  Content& content = *inode->content;
  if (content.barriers_waiting > 0) return false;
  return !std::exchange(content.cutting, true);
}

void Streams::BeginCut(const InodePtr& inode) {
  workers_.PostFirst([this, inode] { Cut(inode); });
}

void Streams::ScheduleCut(const InodePtr& inode) {
  const auto& runs = inode->content->overlay.runs();
  const bool is_worth = std::ranges::any_of(runs, [](const auto& item) { return IsWorthCutting(item.second); });
  if (is_worth && TakeCutting(inode)) BeginCut(inode);
}

// The bytes of the run at `start` that its finder has not seen, and what it finds there.
struct Streams::Scan {
  struct Cut {
    uint64_t end;
    std::vector<uint32_t> anchors;
  };
  chunking::CutFinder finder;
  uint64_t position;  // in the file: up to there it has seen them
  std::vector<io::Slice> unseen;
  std::vector<Cut> cuts;

  Scan(const Overlay& overlay, uint64_t start, const Run& run) : finder(run.finder), position(start + run.scanned) {
    overlay.Visit(
        position, run.length - run.scanned, [this](uint64_t, const io::Slice& slice) { unseen.push_back(slice); },
        [](uint64_t, uint64_t) {});
  }

  void FindCuts() {
    for (const io::Slice& slice : unseen) {
      ByteSpan rest = slice.bytes();
      while (!rest.empty()) {
        auto step = finder.Feed(rest);
        position += step.consumed;
        rest = rest.subspan(step.consumed);
        if (step.cut) cuts.push_back({position, std::move(step.anchors)});
      }
    }
  }
};

std::map<uint64_t, Run>::iterator Streams::LaunchCuts(const InodePtr& inode, uint64_t start, Scan scan, Here* here) {
  Content& content = *inode->content;
  for (Scan::Cut& cut : scan.cuts) {
    auto chunk = content.overlay.Carve(start, cut.end - start, content.next_chunk_id++);
    chunk->anchors = std::move(cut.anchors);
    Launch(inode, std::move(chunk), here);
    start = cut.end;
  }
  const auto rest = content.overlay.runs().find(start);
  if (rest == content.overlay.runs().end()) return rest;
  rest->second.scanned = scan.position - start;
  rest->second.finder = std::move(scan.finder);
  return rest;
}

void Streams::Cut(const InodePtr& inode) {
  while (CutOnce(inode)) {
  }
}

// Looks through what has come of one run, without the lock; false when nothing is left to look through.
bool Streams::CutOnce(const InodePtr& inode) {
  MutexLock lock(inode->mutex);
  if (!inode->content) return false;
  Content& content = *inode->content;
  auto& runs = content.overlay.runs();
  auto found = std::find_if(runs.begin(), runs.end(), [](const auto& item) { return IsWorthCutting(item.second); });
  if (found == runs.end() || content.barriers_waiting > 0) {
    content.cutting = false;
    return false;
  }
  uint64_t start = found->first, id = found->second.id, version = found->second.version;
  uint64_t scanned = found->second.scanned;
  Scan scan(content.overlay, start, found->second);
  lock.Unlock();
  scan.FindCuts();
  lock.Lock();
  if (!inode->content) return false;
  auto run = runs.find(start);
  if (run == runs.end() || run->second.id != id || run->second.version != version || run->second.scanned != scanned) {
    return true;  // overwritten or drained meanwhile: what is left is looked through anew
  }
  LaunchCuts(inode, start, std::move(scan));
  return true;
}

void Streams::CutAll(const InodePtr& inode) { CutRuns(inode, 0, nullptr); }

void Streams::CutClosed(const InodePtr& inode) { CutRuns(inode, params_.size_bytes_min, nullptr); }

void Streams::Drain(const InodePtr& inode, uint64_t& here_bytes_max, Turn turn) {
  Here here{here_bytes_max, {}};
  {
    MutexLock lock(inode->mutex);
    RetryFailed(inode);
    CutRuns(inode, 0, &here);
    inode->content->drain_target = inode->content->next_chunk_id - 1;
    if (turn == Turn::kFirst) {
      const auto& flying = inode->content->flying;
      for (auto last = flying.rbegin(); last != flying.rend(); ++last) {
        const bool is_here = std::ranges::find(here.chunks, last->second) != here.chunks.end();
        if (!is_here) PostHash(inode, last->second, turn);
      }
    }
  }
  for (const auto& chunk : here.chunks) Hash(inode, chunk);
  here_bytes_max = here.bytes_max;
}

void Streams::CutRuns(const InodePtr& inode, uint64_t appended_bytes_min, Here* here) {
  Content& content = *inode->content;
  auto& runs = content.overlay.runs();
  std::vector<uint64_t> starts;
  for (const auto& [start, run] : runs) starts.push_back(start);
  for (uint64_t start : starts) {
    Run& run = runs.find(start)->second;
    if (run.stored == run.length) continue;
    if (start > 0 && run.length - run.stored < appended_bytes_min) continue;
    run.version++;  // a scan that goes on elsewhere is made void
    Scan scan(content.overlay, start, run);
    scan.FindCuts();
    const auto rest = LaunchCuts(inode, start, std::move(scan), here);
    if (rest == runs.end()) continue;
    const auto& [at, tail] = *rest;
    if (tail.stored == tail.length) continue;
    // What is lost of it is stored from the start.
    const GrowingTail growing{at, at + tail.stored, at + tail.scanned};
    const uint64_t from = content.HasLost(at, growing.stored_end) ? at : TailStart(content.extents, growing);
    auto chunk = content.overlay.CarveProvisional(at, from, content.next_chunk_id++);
    for (uint32_t anchor : tail.finder.anchors()) {
      if (anchor > from - at) chunk->anchors.push_back(static_cast<uint32_t>(anchor - (from - at)));
    }
    Launch(inode, std::move(chunk), here);
  }
}

void Streams::Launch(const InodePtr& inode, std::shared_ptr<FlyingChunk> chunk, Here* here) {
  chunk->owner = inode->content->owner;
  chunk->new_bytes = [of_file = inode->content->new_bytes, of_save = inode->content->tally](uint64_t bytes) {
    of_file->fetch_add(bytes, std::memory_order_relaxed);
    if (of_save != nullptr) of_save->new_bytes->fetch_add(bytes, std::memory_order_relaxed);
  };
  chunk->writer = inode->content->writer;
  inode->content->filled_holes.ForEachPart(
      chunk->offset, chunk->offset + chunk->size, [&](uint64_t begin, uint64_t end) {
        chunk->filled_holes.Add(begin, end);  // as of now: what is written there later is in a later chunk
      });
  inode->content->flying.emplace(chunk->id, chunk);
  // What a small chunk costs beside its bytes counts too.
  const uint64_t size = std::max<uint64_t>(chunk->size, kPageBytes);
  if (here != nullptr && size <= here->bytes_max) {
    here->bytes_max -= size;
    here->chunks.push_back(std::move(chunk));
    return;
  }
  PostHash(inode, chunk);
}

// One that waits in the queue already goes there once more. The queue keeps none alive that was stored or discarded.
void Streams::PostHash(const InodePtr& inode, const std::shared_ptr<FlyingChunk>& chunk, Turn turn) {
  auto hash = [this, inode, flying = std::weak_ptr(chunk)] {
    if (const auto chunk = flying.lock()) Hash(inode, chunk);
  };
  if (chunk->is_taken) return;
  if (turn == Turn::kFirst) {
    workers_.PostFirst(std::move(hash));
  } else {
    workers_.Post(std::move(hash));
  }
}

void Streams::Hash(const InodePtr& inode, const std::shared_ptr<FlyingChunk>& chunk) {
  if (chunk->is_taken.exchange(true)) return;
  auto saved = saver_.Save(*chunk);
  chunk_put.Pass();

  MutexLock lock(inode->mutex);
  if (!inode->content) return;
  Content& content = *inode->content;
  auto flying = content.flying.find(chunk->id);
  if (flying == content.flying.end() || flying->second != chunk) return;  // discarded meanwhile
  Content::Landed landed;
  if (saved.ok()) {
    landed.saved = *std::move(saved);
  } else {
    const bool no_space = saved.error().code == ErrorCode::kNoSpace;
    const bool was_noted = content.no_space_noted;
    // Without space the bytes stay in memory and are tried again; a failed store will not take them any more.
    if (no_space) {
      landed.failure = saved.error();
      NoteNoSpace(inode, chunk->id, saved.error());
    }
    if (!no_space || (content.no_space_noted && !was_noted)) {
      spdlog::error("inode {}: bytes at {} (+{}) could not be stored: {}", inode->id.value, chunk->offset, chunk->size,
                    saved.error().message);
    }
    if (!no_space) {
      content.no_space_noted = false;
      SetError(inode, saved.error());
    }
  }
  content.landed[chunk->id] = std::move(landed);
  ApplyLanded(inode);
  inode->changed_state.NotifyAll();
}

void Streams::ApplyLanded(const InodePtr& inode) {
  Content& content = *inode->content;
  while (!content.flying.empty()) {
    auto first = content.flying.begin();
    auto landed = content.landed.find(first->first);
    if (landed == content.landed.end() || landed->second.failure) break;
    std::shared_ptr<FlyingChunk> chunk = first->second;
    Status loaded;
    if (!landed->second.saved.extents.empty()) {
      loaded = content.extents.EnsureLoaded(chunk->offset, chunk->size, chunks_);
    }
    // What lies below may be on nodes that do not answer just now, or there be no descriptor to read it. That is no
    // reason to lose what is stored.
    const bool may_pass = !loaded.ok() && (IsPassing(loaded.error().code) || content.publish->NoteUnreadablePage());
    if (may_pass) {
      if (!std::exchange(content.recipe_away_noted, true)) {
        spdlog::warn("inode {}: bytes at {} (+{}) wait for its recipe: {}", inode->id.value, chunk->offset, chunk->size,
                     loaded.error().message);
      }
      Error why = loaded.error().WithContext("the recipe");
      if (why.code == ErrorCode::kExhausted) {
        why.code = ErrorCode::kNoSpace;  // as of a segment that cannot be made for that reason
        NoteNoSpace(inode, chunk->id, why);
      }
      landed->second.failure = std::move(why);
      break;
    }
    content.recipe_away_noted = false;
    Content::Landed result = std::move(landed->second);
    content.landed.erase(landed);
    content.flying.erase(first);
    Apply(inode, *chunk, std::move(result), loaded);
    chunk_applied.Pass();
  }
  ForgetHealed(inode);
  if (content.flying.empty() && (content.drop_runs || inode->write_open_count == 0)) DropStoredRuns(inode);
}

// `loaded`: whether the extents below are.
void Streams::Apply(const InodePtr& inode, const FlyingChunk& chunk, Content::Landed landed, const Status& loaded) {
  Content& content = *inode->content;
  const bool is_saved = !landed.saved.extents.empty();
  if (is_saved && loaded.ok()) {
    uint64_t before = content.extents.allocated_bytes();
    const uint64_t laid = LayChunk(content, chunk, landed.saved.extents);
    std::move(landed.saved.pins.begin(), landed.saved.pins.end(), std::back_inserter(content.pins));
    content.ForgetLost(chunk.offset, chunk.offset + chunk.size, chunk.id);
    if (uint64_t replaced = before + laid - content.extents.allocated_bytes()) hooks_.freed(replaced);
  } else {
    if (is_saved) {
      spdlog::error("inode {}: its recipe cannot be read: {}", inode->id.value, loaded.error().message);
      SetError(inode, loaded.error());
    }
    AddLost(inode, {chunk.offset, chunk.offset + chunk.size, chunk.id});
  }
  if (!chunk.provisional) {
    content.overlay.DropViews(chunk);
    ForgetFilledHoles(content, chunk);
    local_.ReleaseReservation(chunk.size);
  }
}

void Streams::AddLost(const InodePtr& inode, const Content::LostRange& range) {
  inode->content->AddLost(range);
  if (inode->backing) inode->backing->FallBehind(MakeError(ErrorCode::kIo, "bytes of it are lost"));
  inode->content->loss_told = false;
  hooks_.lost(inode);
}

void Streams::Lose(const InodePtr& inode, uint64_t offset, uint64_t length) {
  RemoveRange(inode, offset, length);
  AddLost(inode, {offset, offset + length, inode->content->next_chunk_id - 1});
}

void Streams::RetryFailed(const InodePtr& inode) {
  Content& content = *inode->content;
  std::erase_if(content.landed, [&](const auto& landed) {
    const auto flying = content.flying.find(landed.first);
    if (!landed.second.failure || flying == content.flying.end()) return false;
    flying->second->is_taken = false;
    PostHash(inode, flying->second);
    return true;
  });
}

void Streams::RemoveRange(const InodePtr& inode, uint64_t offset, uint64_t length) {
  Overlay& overlay = inode->content->overlay;
  uint64_t before = overlay.run_bytes();
  overlay.Remove(offset, length);
  if (before > overlay.run_bytes()) local_.ReleaseReservation(before - overlay.run_bytes());
}

void Streams::DropStoredRuns(const InodePtr& inode) {
  Content& content = *inode->content;
  if (!content.flying.empty()) return;
  uint64_t before = content.overlay.run_bytes();
  content.overlay.DropStoredRuns();
  if (before > content.overlay.run_bytes()) local_.ReleaseReservation(before - content.overlay.run_bytes());
  content.drop_runs = false;
  if (content.overlay.empty()) content.filled_holes.Clear();
}

void Streams::DropStoredFronts(const InodePtr& inode) {
  Content& content = *inode->content;
  Overlay& overlay = content.overlay;
  const uint64_t before = overlay.run_bytes();
  content.filled_holes.ForEach([&](uint64_t begin, uint64_t end) { overlay.Remove(begin, end - begin); });
  // What an earlier chunk still brings is not stored yet.
  std::map<uint64_t, uint64_t> stored_by_start;
  for (const auto& [start, run] : overlay.runs()) stored_by_start[start] = run.stored;
  for (const auto& [id, chunk] : content.flying) {
    chunk->skips_stored = true;
    if (!chunk->provisional) continue;
    const uint64_t begin = chunk->offset + chunk->stored_before, end = chunk->offset + chunk->size;
    auto run = stored_by_start.upper_bound(begin);
    if (run != stored_by_start.begin()) --run;
    for (; run != stored_by_start.end() && run->first < end; ++run) {
      run->second = std::min(run->second, std::max(begin, run->first) - run->first);
    }
  }
  for (const auto& [start, stored] : stored_by_start) {
    const uint64_t length = overlay.runs().find(start)->second.length;
    if (stored == length) {
      overlay.Remove(start, length);
    } else if (stored > 0) {
      overlay.DropRunFront(start, stored);
    }
  }
  if (before > overlay.run_bytes()) local_.ReleaseReservation(before - overlay.run_bytes());
}

void Streams::DiscardUnstored(const InodePtr& inode) {
  Content& content = *inode->content;
  RemoveRange(inode, 0, kFileSizeMax);
  for (const auto& [id, chunk] : content.flying) {
    if (!chunk->provisional) local_.ReleaseReservation(chunk->size);
  }
  content.flying.clear();
  content.landed.clear();
  ForgetHealed(inode);
  inode->changed_state.NotifyAll();
}

void Streams::Discard(const InodePtr& inode) {
  DiscardUnstored(inode);
  hooks_.freed(inode->content->extents.allocated_bytes());
}

}  // namespace cairnfs::fs
