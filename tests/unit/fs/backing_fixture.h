// What files behind passthrough are made of, in memory: chunks, the kernel's memory, and its registry.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "../../support/memory_backing.h"
#include "base/thread_annotations.h"
#include "chunking/digest.h"
#include "fs/backing_registry.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

// Chunks by digest, whose reads can be held up and made to fail.
class HeldChunks final : public store::ChunkStore {
 public:
  Digest Add(const std::string& text) {
    const Digest digest = chunking::ComputeDigest(AsBytes(text));
    texts_.emplace(digest, text);
    return digest;
  }
  std::function<void(int number)> on_get;  // before each
  std::map<Digest, Error> errors;
  bool holds = false;  // what is asked for comes with Deliver
  std::atomic<int> gets{0};

  void Get(const Digest& digest, store::ChunkCallback done) override {
    if (on_get) on_get(gets);
    if (!holds) {
      gets++;
      return done(Find(digest));
    }
    MutexLock lock(mutex_);
    held_.push_back([this, digest, done] { done(Find(digest)); });
    held_max_ = std::max(held_max_, held_.size());
    gets++;
  }
  void Deliver(size_t number) {  // one of those that are held
    MutexLock lock(mutex_);
    std::swap(held_[number % held_.size()], held_.back());
    const auto come = std::move(held_.back());
    held_.pop_back();
    lock.Unlock();
    come();
  }
  size_t held() {
    MutexLock lock(mutex_);
    return held_.size();
  }
  size_t held_max() {
    MutexLock lock(mutex_);
    return held_max_;
  }

  Result<store::PutResult> Put(const Digest&, std::span<const io::Slice>, const store::NewBytes&) override {
    return MakeError(ErrorCode::kFailed, "nothing is put");
  }
  Result<store::ChunkPin> Pin(const Digest&, size_t) override { return store::ChunkPin(); }
  Result<std::vector<bool>> Has(const Context&, std::span<const Digest> digests) override {
    return std::vector<bool>(digests.size(), true);
  }
  void GetFromDisk(const Digest& digest, store::ChunkCallback done) override { Get(digest, std::move(done)); }
  void Prefetch(std::span<const Digest>) override {}
  Status Sync() override { return {}; }

 private:
  void Unpin(const Digest&) override {}
  Result<store::ChunkData> Find(const Digest& digest) {
    if (const auto error = errors.find(digest); error != errors.end()) return error->second;
    const std::string& text = texts_.at(digest);
    store::ChunkData data;
    // In two slices, as it may come from segments.
    const size_t half = text.size() / 2;
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    data.slices = {{{}, bytes, half}, {{}, bytes + half, text.size() - half}};
    data.size = text.size();
    return data;
  }
  std::map<Digest, std::string> texts_;
  Mutex mutex_;
  std::vector<std::function<void()>> held_ GUARDED_BY(mutex_);
  size_t held_max_ GUARDED_BY(mutex_) = 0;
};

class CountingRegistry final : public BackingRegistry {
 public:
  Result<BackingId> Register(int) override {
    MutexLock lock(mutex_);
    if (refusal_) return *refusal_;
    registered_.insert(++last_);
    return last_;
  }
  void Unregister(BackingId id) override {
    MutexLock lock(mutex_);
    EXPECT_EQ(registered_.erase(id), 1U) << id;
  }
  void ForgetAttributes(InodeId) override { forgotten++; }
  size_t count() {
    MutexLock lock(mutex_);
    return registered_.size();
  }
  std::atomic<int> forgotten{0};
  void Refuse(Error why) {
    MutexLock lock(mutex_);
    refusal_ = std::move(why);
  }

 private:
  Mutex mutex_;
  std::set<BackingId> registered_ GUARDED_BY(mutex_);
  BackingId last_ GUARDED_BY(mutex_) = 0;
  std::optional<Error> refusal_ GUARDED_BY(mutex_);
};

}  // namespace cairnfs::fs
