// LocalKvStore: what its layers hold, and how the active one becomes the frozen one, whole or up to a freeze point.
#include <cassert>

#include "kv/local_store.h"

namespace cairnfs::kv {
namespace {

// Memory of a map node beside the bytes of key and value, roughly.
constexpr size_t kEntryOverheadBytes = 128;

}  // namespace

size_t LocalKvStore::BytesOf(std::string_view key, const Value& value) {
  return kEntryOverheadBytes + key.size() + (value.value ? value.value->size() : 0);
}

void LocalKvStore::PutInLayer(Layer& layer, size_t& bytes, const KvWrite& write, uint64_t revision) {
  auto [entry, is_new] = layer.try_emplace(write.key);
  if (!is_new) bytes -= BytesOf(entry->first, entry->second);
  entry->second = Value{revision, write.value};
  bytes += BytesOf(entry->first, entry->second);
}

void LocalKvStore::PutInActive(const KvWrite& write) {
  if (!freeze_points_.empty()) {
    FreezePoint& last = freeze_points_.back();
    const auto before = active_.find(write.key);
    if (before != active_.end() && before->second.revision <= last.revision) {
      last.older.insert(active_.extract(before));
    }
  }
  PutInLayer(active_, active_bytes_, write, revision_);
}

bool LocalKvStore::Freeze() {
  std::unique_lock lock(mutex_);
  if (active_.empty()) return false;
  FreezeAll();
  return true;
}

void LocalKvStore::BeginFrozen() {
  std::unique_lock lock(mutex_);
  FreezeAll();
}

void LocalKvStore::FreezeAll() {
  assert(!has_frozen_);
  while (!freeze_points_.empty()) DropFreezePointLocked(0);
  frozen_.swap(active_);
  frozen_bytes_ = std::exchange(active_bytes_, 0);
  has_frozen_ = true;
}

void LocalKvStore::AddFreezePoint() {
  std::unique_lock lock(mutex_);
  freeze_points_.push_back({revision_, {}});
}

void LocalKvStore::BeginFrozenToPoint() {
  std::unique_lock lock(mutex_);
  assert(!has_frozen_ && !freeze_points_.empty());
  const uint64_t revision = freeze_points_.front().revision;
  const auto move_from = [&](Layer& layer) {
    for (auto it = layer.begin(); it != layer.end();) {
      const auto entry = it++;
      if (entry->second.revision > revision) continue;
      const size_t bytes = BytesOf(entry->first, entry->second);
      active_bytes_ -= bytes;
      frozen_bytes_ += bytes;
      frozen_.insert(layer.extract(entry));
    }
  };
  move_from(active_);
  for (FreezePoint& point : freeze_points_) move_from(point.older);
  freeze_points_.pop_front();
  has_frozen_ = true;
}

void LocalKvStore::DropFreezePoint(size_t index) {
  std::unique_lock lock(mutex_);
  DropFreezePointLocked(index);
}

// What the point before it needs of its older values goes there.
void LocalKvStore::DropFreezePointLocked(size_t index) {
  assert(index < freeze_points_.size());
  FreezePoint* before = index == 0 ? nullptr : &freeze_points_[index - 1];
  Layer& older = freeze_points_[index].older;
  while (!older.empty()) {
    auto entry = older.extract(older.begin());
    if (before != nullptr && entry.mapped().revision <= before->revision) {
      before->older.insert(std::move(entry));
    } else {
      active_bytes_ -= BytesOf(entry.key(), entry.mapped());
    }
  }
  freeze_points_.erase(freeze_points_.begin() + static_cast<ptrdiff_t>(index));
}

size_t LocalKvStore::freeze_points() const {
  std::shared_lock lock(mutex_);
  return freeze_points_.size();
}

}  // namespace cairnfs::kv
