// ChunkStore: chunks by digest. fs knows only this interface. LocalChunkStore implements it with segments on this
// node's disk, cluster::ClusterChunkStore with the disks of several nodes.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "base/types.h"
#include "io/buffer_pool.h"

namespace cairnfs::store {

class ChunkStore;

// While a pin lives, its chunk is not collected. Movable. Must not outlive the store.
class ChunkPin {
 public:
  ChunkPin() = default;
  ChunkPin(ChunkStore* store, const Digest& digest) : store_(store), digest_(digest) {}
  ChunkPin(ChunkPin&& other) noexcept : store_(std::exchange(other.store_, nullptr)), digest_(other.digest_) {}
  ChunkPin& operator=(ChunkPin&& other) noexcept;
  ~ChunkPin();
  explicit operator bool() const { return store_ != nullptr; }
  const Digest& digest() const { return digest_; }

 private:
  ChunkStore* store_ = nullptr;
  Digest digest_;
};

struct PutResult {
  ChunkPin pin;
  bool is_new = false;  // false: the chunk was there (or on its way to the disk); nothing was copied
};
// Called with the length of a chunk that was stored nowhere before, as that becomes known: among several nodes only
// once the chunk has its copies. With locks held: be quick. Empty: nobody counts.
using NewBytes = std::function<void(uint64_t bytes)>;

// Verified bytes of a chunk: slices in order, which together are the whole chunk. They keep their buffers alive.
struct ChunkData {
  std::vector<io::Slice> slices;
  size_t size = 0;
};
using ChunkCallback = std::function<void(Result<ChunkData>)>;

class ChunkStore {
 public:
  virtual ~ChunkStore() = default;
  // All functions may be called from any thread at once.

  // Stores the chunk unless it is known. `slices` in order are its bytes, `digest` is their digest (the caller computed
  // it; not checked here). On return the bytes have been copied or were known; they are durable after a Sync that began
  // later. kNoSpace: nothing stored. kFailed: an earlier write failed and the store refuses.
  virtual Result<PutResult> Put(const Digest& digest, std::span<const io::Slice> slices, const NewBytes& new_bytes) = 0;
  Result<PutResult> Put(const Digest& digest, std::span<const io::Slice> slices) {
    return Put(digest, slices, nullptr);
  }
  // Pins a chunk of this size that exists, for a record that is to name it; size 0: it is only to be read. kNotFound if
  // it does not exist. Where several nodes keep chunks nobody is asked yet: a Sync that begins later waits until nodes
  // vouch for it, and have its copies, as for one that was put.
  virtual Result<ChunkPin> Pin(const Digest& digest, size_t size) = 0;
  // Which of them are stored, also on other nodes that are up. kUnavailable: one of these does not answer, so what it
  // has is not known. kInterrupted: the context expired.
  virtual Result<std::vector<bool>> Has(const Context& context, std::span<const Digest> digests) = 0;

  // Reads and verifies. `done` is called once, perhaps before Get returns, else on a thread of the store, and must not
  // block. kNotFound: no such chunk. kCorrupt: the bytes fail their digest. kIo. Readers of one chunk at one time share
  // one disk read, and chunks read lately come from memory.
  virtual void Get(const Digest& digest, ChunkCallback done) = 0;
  // As Get, for a reader of a file, who would rather wait than fail. While only hosts that cannot be reached and are
  // expected back have the chunk, it waits for them for some time, without a thread or buffers. Not for a caller that
  // holds something that others need meanwhile.
  virtual void GetForReader(const Digest& digest, ChunkCallback done) { Get(digest, std::move(done)); }
  // As Get, but what this node has is read from its disk, also where its bytes are in memory.
  virtual void GetFromDisk(const Digest& digest, ChunkCallback done) = 0;
  // True: slices that were put stay in memory until other hosts have the chunk.
  virtual bool KeepsPutSlices() { return false; }
  // Reads wait no more from now on, and those that do end with their error at once.
  virtual void EndWaits() {}
  // Starts reading chunks into the cache that are not there, as long as there is room. Chunks that lie side by side
  // share a read. Never waits, reports nothing.
  virtual void Prefetch(std::span<const Digest> digests) = 0;

  // Every Put that returned before the call is durable on return. Concurrent calls share their syncs. On failure
  // (kIo, kNoSpace) the store refuses further Puts and Syncs until reopened, except after kNoSpace.
  virtual Status Sync() = 0;

 protected:
  friend class ChunkPin;
  virtual void Unpin(const Digest& digest) = 0;
};

// Blocking form of Get, for start-up, checks, the collector and tests.
Result<ChunkData> GetBlocking(ChunkStore& store, const Digest& digest);
// The bytes of a small chunk (a recipe page) in one string.
Result<std::string> GetText(ChunkStore& store, const Digest& digest);

}  // namespace cairnfs::store
