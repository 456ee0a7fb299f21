#include "fs/overlay.h"

#include <algorithm>
#include <cassert>

namespace cairnfs::fs {
namespace {

// Adds a slice to the end of a list of slices, growing the last one where the bytes are neighbours in one buffer.
template <typename Pieces>
void AppendSlice(Pieces& pieces, const io::Slice& slice) {
  if (slice.size == 0) return;
  if (!pieces.empty()) {
    io::Slice& last = pieces.back();
    if (last.data + last.size == slice.data && static_cast<bool>(last.owner) && static_cast<bool>(slice.owner) &&
        last.owner.payload() == slice.owner.payload()) {
      last.size += slice.size;
      return;
    }
  }
  pieces.push_back(slice);
}

// Calls visit with the slices that make up [begin, end) of the bytes that `pieces` hold.
template <typename Pieces>
void ForSlices(const Pieces& pieces, uint64_t begin, uint64_t end, const std::function<void(const io::Slice&)>& visit) {
  uint64_t position = 0;
  for (const io::Slice& piece : pieces) {
    if (position >= end) break;
    uint64_t piece_end = position + piece.size;
    if (piece_end > begin) {
      uint64_t from = std::max(begin, position), to = std::min(end, piece_end);
      visit(piece.Sub(from - position, to - from));
    }
    position = piece_end;
  }
}

void DropFront(std::deque<io::Slice>& pieces, uint64_t size) {
  while (size > 0) {
    io::Slice& front = pieces.front();
    if (front.size <= size) {
      size -= front.size;
      pieces.pop_front();
    } else {
      front = front.Sub(size, front.size - size);
      size = 0;
    }
  }
}

void DropBack(std::deque<io::Slice>& pieces, uint64_t size) {
  while (size > 0) {
    io::Slice& back = pieces.back();
    if (back.size <= size) {
      size -= back.size;
      pieces.pop_back();
    } else {
      back.size -= size;
      size = 0;
    }
  }
}

// The first of the ranges that reaches past `offset`.
template <typename Ranges>
auto FirstPast(Ranges& ranges, uint64_t offset) {
  const auto next = ranges.upper_bound(offset);
  if (next == ranges.begin()) return next;
  const auto previous = std::prev(next);
  return previous->first + previous->second.length > offset ? previous : next;
}

}  // namespace

std::optional<uint64_t> Overlay::StartOfRunTo(uint64_t offset) const {
  const auto next = runs_.lower_bound(offset);
  if (next == runs_.begin()) return std::nullopt;
  const auto& [start, run] = *std::prev(next);
  return start + run.length == offset ? std::optional(start) : std::nullopt;
}

void Overlay::Write(uint64_t offset, const io::Slice& data) {
  const uint64_t before = run_bytes_;
  Remove(offset, data.size);
  const bool is_overwritten = run_bytes_ < before;
  auto next = runs_.lower_bound(offset);
  auto run = runs_.end();
  if (next != runs_.begin()) {
    auto previous = std::prev(next);
    const bool is_stored = previous->second.stored == previous->second.length;
    // A page that is written again is stored alone: what lies before it is not new.
    if (previous->first + previous->second.length == offset && !(is_overwritten && is_stored)) run = previous;
  }
  if (run == runs_.end()) {
    run = runs_.emplace(offset, Run(params_)).first;
    run->second.id = next_run_id_++;
  }
  AppendSlice(run->second.pieces, data);
  run->second.length += data.size;
  run_bytes_ += data.size;
  JoinNext(run);
}

void Overlay::JoinNext(std::map<uint64_t, Run>::iterator run) {
  auto next = std::next(run);
  if (next == runs_.end() || run->first + run->second.length != next->first) return;
  // What is stored must not count as new again: to store it anew would cost more than the page that was written before
  // it, and other hosts may have written there since.
  if (next->second.stored > 0) return;
  for (const io::Slice& piece : next->second.pieces) AppendSlice(run->second.pieces, piece);
  run->second.length += next->second.length;
  runs_.erase(next);
}

void Overlay::Remove(uint64_t offset, uint64_t length) {
  if (length == 0) return;
  RemoveFromRuns(offset, offset + length);
  RemoveFromViews(offset, offset + length);
}

void Overlay::RemoveFromRuns(uint64_t begin, uint64_t end) {
  auto it = FirstPast(runs_, begin);
  while (it != runs_.end() && it->first < end) {
    uint64_t start = it->first, stop = start + it->second.length;
    Run& run = it->second;
    uint64_t cut_from = std::max(begin, start), cut_to = std::min(end, stop);
    run_bytes_ -= cut_to - cut_from;
    if (cut_to < stop) {
      Run right(params_);
      right.id = next_run_id_++;
      ForSlices(run.pieces, cut_to - start, stop - start, [&](const io::Slice& s) { right.pieces.push_back(s); });
      right.length = stop - cut_to;
      right.stored = run.stored > cut_to - start ? run.stored - (cut_to - start) : 0;
      runs_.emplace(cut_to, std::move(right));
    }
    if (cut_from > start) {
      DropBack(run.pieces, stop - cut_from);
      run.length = cut_from - start;
      // What was scanned and stored of the part that stays is still true.
      run.version++;
      run.stored = std::min(run.stored, run.length);
      if (run.scanned > run.length) {
        run.scanned = 0;
        run.finder.Reset();
      }
      ++it;
    } else {
      it = runs_.erase(it);
    }
  }
}

void Overlay::RemoveFromViews(uint64_t begin, uint64_t end) {
  auto it = FirstPast(views_, begin);
  while (it != views_.end() && it->first < end) {
    uint64_t start = it->first, stop = start + it->second.length;
    View& view = it->second;
    if (stop > end) {
      views_.emplace(end, View{view.chunk, view.chunk_offset + (end - start), stop - end});
    }
    if (start < begin) {
      view.length = begin - start;
      ++it;
    } else {
      it = views_.erase(it);
    }
  }
}

void Overlay::Visit(uint64_t offset, uint64_t length, const std::function<void(uint64_t, const io::Slice&)>& bytes,
                    const std::function<void(uint64_t, uint64_t)>& gap) const {
  uint64_t position = offset, end = offset + length;
  auto run = FirstPast(runs_, position);
  auto view = FirstPast(views_, position);
  auto emit = [&](uint64_t start, uint64_t size, const auto& pieces, uint64_t skip) {
    if (start > position) gap(position, start - position);
    uint64_t from = std::max(position, start), to = std::min(end, start + size);
    uint64_t at = from;
    ForSlices(pieces, skip + from - start, skip + to - start, [&](const io::Slice& slice) {
      bytes(at, slice);
      at += slice.size;
    });
    position = to;
  };
  while (position < end) {
    bool has_run = run != runs_.end() && run->first < end;
    bool has_view = view != views_.end() && view->first < end;
    if (!has_run && !has_view) break;
    if (has_run && (!has_view || run->first < view->first)) {
      emit(run->first, run->second.length, run->second.pieces, 0);
      ++run;
    } else {
      emit(view->first, view->second.length, view->second.chunk->slices, view->second.chunk_offset);
      ++view;
    }
  }
  if (position < end) gap(position, end - position);
}

std::shared_ptr<FlyingChunk> Overlay::Carve(uint64_t start, uint64_t size, uint64_t id) {
  auto found = runs_.find(start);
  assert(found != runs_.end() && found->second.length >= size);
  Run& run = found->second;
  auto chunk = std::make_shared<FlyingChunk>();
  chunk->id = id;
  chunk->offset = start;
  chunk->size = size;
  chunk->stored_before = std::min(run.stored, size);
  ForSlices(run.pieces, 0, size, [&](const io::Slice& slice) { AppendSlice(chunk->slices, slice); });
  views_.emplace(start, View{chunk, 0, size});
  run_bytes_ -= size;
  if (run.length == size) {
    runs_.erase(found);
  } else {
    MoveStart(found, size);
  }
  return chunk;
}

void Overlay::MoveStart(std::map<uint64_t, Run>::iterator run, uint64_t size) {
  const uint64_t start = run->first + size;
  Run rest = std::move(run->second);
  runs_.erase(run);
  DropFront(rest.pieces, size);
  rest.length -= size;
  rest.scanned = rest.scanned > size ? rest.scanned - size : 0;
  rest.stored = rest.stored > size ? rest.stored - size : 0;
  runs_.emplace(start, std::move(rest));
}

void Overlay::DropRunFront(uint64_t start, uint64_t size) {
  auto run = runs_.find(start);
  assert(run != runs_.end() && run->second.length > size);
  run_bytes_ -= size;
  // Where cuts were looked for from its old start on, they are looked for anew.
  run->second.version++;
  run->second.scanned = 0;
  run->second.finder.Reset();
  MoveStart(run, size);
}

std::shared_ptr<FlyingChunk> Overlay::CarveProvisional(uint64_t start, uint64_t from, uint64_t id) {
  const auto found = runs_.find(start);
  assert(found != runs_.end());
  Run& run = found->second;
  assert(from >= start && from - start < run.length && run.stored >= from - start);
  auto chunk = std::make_shared<FlyingChunk>();
  chunk->id = id;
  chunk->offset = from;
  chunk->size = start + run.length - from;
  chunk->stored_before = start + run.stored - from;
  chunk->provisional = true;
  ForSlices(run.pieces, from - start, run.length, [&](const io::Slice& slice) { chunk->slices.push_back(slice); });
  run.stored = run.length;
  return chunk;
}

void Overlay::DropViews(const FlyingChunk& chunk) {
  auto it = FirstPast(views_, chunk.offset);
  while (it != views_.end() && it->first < chunk.offset + chunk.size) {
    it = it->second.chunk.get() == &chunk ? views_.erase(it) : std::next(it);
  }
}

void Overlay::DropStoredRuns() {
  std::erase_if(runs_, [this](const auto& item) {
    const bool is_stored = item.second.stored == item.second.length;
    if (is_stored) run_bytes_ -= item.second.length;
    return is_stored;
  });
}

bool Overlay::HasUnstored() const {
  if (!views_.empty()) return true;
  return std::any_of(runs_.begin(), runs_.end(),
                     [](const auto& item) { return item.second.stored < item.second.length; });
}

void Overlay::ForEachUnstored(const std::function<void(uint64_t, uint64_t)>& visit) const {
  for (const auto& [start, view] : views_) visit(start, start + view.length);
  for (const auto& [start, run] : runs_) {
    if (run.stored < run.length) visit(start + run.stored, start + run.length);
  }
}

std::optional<uint64_t> Overlay::FindData(uint64_t offset) const {
  if (FindGap(offset) != offset) return offset;
  std::optional<uint64_t> first;
  if (auto run = runs_.lower_bound(offset); run != runs_.end()) first = run->first;
  if (auto view = views_.lower_bound(offset); view != views_.end() && (!first || view->first < *first)) {
    first = view->first;
  }
  return first;
}

uint64_t Overlay::FindGap(uint64_t offset) const {
  while (true) {
    if (auto run = FirstPast(runs_, offset); run != runs_.end() && run->first <= offset) {
      offset = run->first + run->second.length;
    } else if (auto view = FirstPast(views_, offset); view != views_.end() && view->first <= offset) {
      offset = view->first + view->second.length;
    } else {
      return offset;
    }
  }
}

}  // namespace cairnfs::fs
