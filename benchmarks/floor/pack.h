// The floor's way of a byte after FUSE: hash it, and write it to one large file at whatever place is next.
//
// No names, no index that survives, no cut points: each request is a chunk. What is left is what any filesystem that
// hashes its data has to do at least.
#pragma once

#include <liburing.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/types.h"

namespace cairnfs::bench {

struct FloorOptions {
  std::string mount_point;
  std::string pack_path;  // empty: nothing is written
  uint64_t pack_bytes = 0;
  size_t buffer_count = 512;
  unsigned hash_threads = std::max(2U, std::thread::hardware_concurrency());  // as CairnFS has workers
  unsigned receive_threads = 2;
  bool answer_from_all = false;
  bool hash = false;
  bool drop_known = false;  // a request whose digest was seen before is not written
  bool fresh_pack = false;  // Restart gives the pack new blocks instead of writing the old ones again
};

// Equal buffers of huge, touched pages. A request is received so that its payload lies page-aligned.
class FloorBuffers {
 public:
  static constexpr size_t kPayloadBytes = kMiB;
  static constexpr size_t kBufferBytes = kPayloadBytes + 2 * kPageBytes;  // a page of headers, payload, rounding

  explicit FloorBuffers(size_t count);  // stops the process when there is no memory
  size_t Take();                        // waits for a free one
  void GiveBack(size_t index);
  std::byte* payload(size_t index) const { return base_ + index * kBufferBytes + kPageBytes; }

 private:
  std::byte* base_;
  std::mutex mutex_;
  std::condition_variable freed_;
  std::vector<size_t> free_;  // guarded by mutex_
};

class Pack {
 public:
  // Starts the threads. Stops the process when the pack file or io_uring cannot be had.
  Pack(const FloorOptions& options, FloorBuffers& buffers);

  // Counts a request that Add will bring: before it is answered, so that a Sync which follows the answer waits for it.
  void Expect() { in_flight_++; }
  // Takes over the buffer, whose payload holds so many bytes. REQUIRES: it was expected.
  void Add(size_t buffer, size_t size);
  // Everything added before is written and synced on return; an errno value.
  int Sync();
  // Begins again at the pack's first byte. REQUIRES: nothing is in flight. An errno value.
  int Restart();

 private:
  struct Work {
    size_t buffer;
    size_t size;
  };
  void HashAndWrite();
  void ReapWrites();
  bool IsKnown(const Digest& digest);
  void StartWrite(const Work& work);
  void Done(size_t buffer);

  const FloorOptions options_;
  FloorBuffers& buffers_;
  int pack_ = -1;
  io_uring ring_{};
  std::mutex ring_mutex_;  // guards submission
  std::atomic<uint64_t> end_{0};
  std::atomic<int> error_{0};

  std::mutex queue_mutex_;
  std::condition_variable queued_;
  std::deque<Work> queue_;  // guarded by queue_mutex_

  std::mutex idle_mutex_;
  std::condition_variable idle_;
  std::atomic<uint64_t> in_flight_{0};

  std::mutex known_mutex_;
  std::unordered_set<Digest, DigestHash> known_;  // guarded by known_mutex_
};

[[noreturn]] void StopWithErrno(const std::string& what);

}  // namespace cairnfs::bench
