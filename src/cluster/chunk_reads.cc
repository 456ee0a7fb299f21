#include "cluster/chunk_reads.h"

#include <utility>

#include "base/log.h"
#include "cluster/placement.h"

namespace cairnfs::cluster {

ChunkReads::ChunkReads(Parts parts, const Options& options)
    : parts_(std::move(parts)),
      waiting_(
          [this](const Digest& digest, FetchCallback done) {
            parts_.work.Post([this, digest, done = std::move(done)] { Read(digest, done); });
          },
          options.wait_max),
      shared_(options.shared_reads_last),
      healing_([this](const Digest& digest, Healing::Ended ended) { ReplaceDamaged(digest, std::move(ended)); },
               options.repair_bytes_per_second_max) {}

void ChunkReads::Get(const Digest& digest, store::ChunkCallback done) {
  Read(digest, [done = std::move(done)](Result<store::ChunkData> data, const auto&) { done(std::move(data)); });
}

void ChunkReads::GetForReader(const Digest& digest, store::ChunkCallback done) {
  Read(digest, [this, digest, began = Clock::Now(), done = std::move(done)](Result<store::ChunkData> data,
                                                                            const auto& away_since) {
    if (data.ok() || !away_since) return done(std::move(data));
    waiting_.Add({digest, began, done}, data.error(), *away_since);
  });
}

void ChunkReads::GetFromDisk(const Digest& digest, store::ChunkCallback done) {
  if (auto pending = parts_.find_pending(digest)) return done(*std::move(pending));
  const auto tell = [done = std::move(done)](Result<store::ChunkData> data, const auto&) { done(std::move(data)); };
  parts_.local.GetFromDisk(digest, OrReadElsewhere(digest, tell));
}

void ChunkReads::GetStored(const Digest& digest, store::ChunkCallback done) {
  ReadHereFirst(digest,
                [done = std::move(done)](Result<store::ChunkData> data, const auto&) { done(std::move(data)); });
}

void ChunkReads::GetForOther(const Digest& digest, store::ChunkCallback done) {
  shared_.NoteServed(digest);
  if (auto pending = parts_.find_pending(digest)) return done(*std::move(pending));
  parts_.local.GetFor(store::Reader::kOtherNode, digest, std::move(done));
}

// Hosts that read the same at once meet at the chunk's home, whose disk reads it once.
bool ChunkReads::IsReadElsewhere(const Digest& digest) const {
  return ActingHome(*parts_.reachability.view(), digest, parts_.self) != parts_.self;
}

void ChunkReads::Read(const Digest& digest, FetchCallback done) {
  if (auto pending = parts_.find_pending(digest)) return done(*std::move(pending), {});
  shared_.NoteRead(digest);
  if (!shared_.AreGoingOn() || !IsReadElsewhere(digest)) return ReadHereFirst(digest, std::move(done));
  if (auto cached = parts_.local.FindCached(digest)) return done(*std::move(cached), {});
  parts_.remote.Fetch(digest, [this, digest, done = std::move(done)](Result<store::ChunkData> data, const auto&) {
    if (data.ok()) return done(std::move(data), {});
    ReadHereFirst(digest, done);
  });
}

// Where the own store has it not, or in vain, another node has. What was damaged here is replaced.
void ChunkReads::ReadHereFirst(const Digest& digest, FetchCallback done) {
  parts_.local.Get(digest, OrReadElsewhere(digest, std::move(done)));
}

store::ChunkCallback ChunkReads::OrReadElsewhere(const Digest& digest, FetchCallback done) {
  return [this, digest, done = std::move(done)](Result<store::ChunkData> here) {
    if (here.ok()) return done(std::move(here), {});
    const bool is_damaged = here.error().code != ErrorCode::kNotFound;
    if (is_damaged) parts_.on_damaged(digest);
    parts_.remote.Fetch(digest, [this, digest, is_damaged, error = here.error(), done](Result<store::ChunkData> data,
                                                                                       const auto& away_since) {
      if (!is_damaged) return done(std::move(data), away_since);
      if (!data.ok()) return done(error, away_since);
      parts_.stores.Post([this, digest, sound = *data] { Replace(digest, sound); });
      done(std::move(data), {});
    });
  };
}

void ChunkReads::Prefetch(std::span<const Digest> digests) {
  const bool is_shared = shared_.AreGoingOn();
  const std::vector<bool> has = parts_.local.Has(digests);
  std::vector<Digest> own;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (has[i] && !(is_shared && IsReadElsewhere(digests[i]))) {
      own.push_back(digests[i]);
    } else if (!parts_.find_pending(digests[i])) {
      parts_.remote.Prefetch(digests[i]);
    }
  }
  parts_.local.Prefetch(own);
}

void ChunkReads::NoteDamaged(const Digest& digest) {
  parts_.on_damaged(digest);
  healing_.Add(digest);
}

// False: it stays damaged.
bool ChunkReads::Replace(const Digest& digest, const store::ChunkData& data) {
  auto put = parts_.commit.Put(digest, data.slices, /*holders=*/{});
  if (!put.ok()) {
    spdlog::error("chunk {} is damaged here and could not be replaced: {}", digest.ToHex(), put.error().message);
  } else if (put->is_new) {
    spdlog::warn("chunk {} was damaged on this node and is replaced by another node's copy", digest.ToHex());
    parts_.commit.Commit([](const Status&) {});
  }
  return put.ok();
}

void ChunkReads::ReplaceDamaged(const Digest& digest, Healing::Ended ended) {
  if (parts_.local.HasSound({&digest, 1})[0]) return ended(0);  // it was read, or written again
  parts_.on_damaged(digest);
  parts_.remote.Fetch(digest, [this, digest, ended = std::move(ended)](Result<store::ChunkData> data, const auto&) {
    if (!data.ok()) return ended(std::nullopt);
    parts_.stores.Post([this, digest, ended, sound = *std::move(data)] {
      ended(Replace(digest, sound) ? std::optional<size_t>(sound.size) : std::nullopt);
    });
  });
}

void ChunkReads::OnNodesChanged(const NodeChanges& changes) {
  for (const NodeId& node : changes.came) parts_.remote.NoteUp(node);
  if (changes.any_out || !changes.came.empty()) waiting_.RetryNow();
  if (!changes.came.empty()) healing_.RetryNow();
}

void ChunkReads::Tick() {
  parts_.remote.Tick();
  waiting_.Tick();
  healing_.Tick();
}

void ChunkReads::Close() {
  waiting_.Close();
  healing_.Close();
}

void ChunkReads::AwaitEnd() {
  waiting_.AwaitAttempts();
  parts_.remote.AwaitIdle();
}

}  // namespace cairnfs::cluster
