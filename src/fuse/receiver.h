// A thread that receives requests, and how it shares the buffer pool with the data that it receives.
//
// A request is read into a pool buffer so that the payload of a WRITE begins at a page boundary. A large payload is not
// copied: the filesystem takes the buffer, and the receiver goes on with another one. Small payloads are copied one
// after another into a pack buffer of the thread, so that a small write does not hold a megabyte.
//
// Why the pool cannot make the mount stand still:
//  1. Each receiver always holds a buffer of its own to read the next request into (the first comes from the pool's
//     reserve). No request but a WRITE needs another one: its reply is small, or a READ's slices, which the filesystem
//     takes from the reserve.
//  2. A receiver that has a WRITE in hand gives its data away only after it has got another buffer. With the pool empty
//     it waits for one, holding back the reply: that is the back-pressure. Buffers that the filesystem holds come back
//     by cutting, hashing and storing, which need no request of the mount. What finds no room on a full disk keeps its
//     buffers, perhaps all there are: once the filesystem knows that (FileSystem::WhyNoBufferComes), and no buffer has
//     come back meanwhile, the WRITE is refused. So the wait ends, whatever else happens.
//  3. So that a look-up does not wait behind a slow disk, the keeper, which is the last receiver that does not wait,
//     never waits longer than kKeeperPatience: it then copies the payload to ordinary memory, gives it to
//     WriteOverflow, whose thread waits in its place, and receives on. So requests that are no writes are served while
//     every other receiver waits.
//  4. The overflow is bounded (kOverflowBytesMax): a kernel queue of that many WRITEs ahead of another request, all of
//     them refused by a full pool, makes the keeper wait as in 2. The queue is in order of arrival, and each WRITE in
//     it gets a buffer or is refused, so the other request is reached: also an unlink, which alone may make room.
#pragma once

#include <fuse_lowlevel.h>
#include <linux/fuse.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "base/types.h"
#include "fuse/packer.h"
#include "io/buffer_pool.h"

namespace cairnfs::fuse {

class Session;

// Payloads from this size on keep the buffer that they came in.
inline constexpr size_t kKeptPayloadBytesMin = 128 * kKiB;
inline constexpr auto kKeeperPatience = std::chrono::milliseconds(20);
// A receiver that works on one request for longer than this is stuck.
inline constexpr auto kStuckAfter = std::chrono::seconds(60);

class Receiver {
 public:
  // Both outlive the receiver.
  Receiver(Session& session, io::BufferPool& pool) : session_(session), pool_(pool) {}
  ~Receiver() { Join(); }
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;

  void Start();
  // Makes a read of the device that is under way return. A call just before the read has no effect: repeat it until the
  // thread has ended.
  void Wake();
  void Join();
  bool Stuck(Clock::time_point now) const;

  // The receiver that runs on this thread. REQUIRES: called from an operation's handler.
  static Receiver& Current();

  // A wait of the receiver in the request in hand, which is not taken for being stuck. It may be long where another
  // receiver is left that does not wait.
  class Wait {
   public:
    explicit Wait(Receiver& receiver);
    ~Wait();
    Wait(const Wait&) = delete;
    bool is_long() const { return is_long_; }

   private:
    Receiver& receiver_;
    const bool is_long_;
  };

  // Whether the kernel named the file by the node id beside its own (fuse/node_ids.h).
  bool is_beside() const { return is_beside_; }

  // The body of the request in hand, as the kernel sent it: for what libfuse does not hand on. REQUIRES
  // (unchecked): the request has a body of type T; its payload was not taken.
  template <typename T>
  const T& Body() const {
    return *reinterpret_cast<const T*>(message_ + sizeof(fuse_in_header));
  }

  enum class Outcome {
    kTaken,      // `slice` holds the payload
    kPostponed,  // no buffer in time: hand the write to the overflow
    kRefused,    // none comes: answer with `refusal`
  };
  struct Payload {
    Outcome outcome;
    io::Slice slice;
    std::optional<Error> refusal;
  };
  // Takes the payload of the WRITE in hand; may wait for the pool.
  Payload TakePayload(ByteSpan payload);

 private:
  void Run();
  // Receives and processes one request; false when the thread shall end.
  bool ReceiveOne();
  void Process(size_t size);
  // Gets a buffer beside the one in hand, and returns a payload without its slice.
  Payload Admit(io::BufferRef& buffer);
  io::BufferRef AcquireWithPatience();
  Payload Pack(ByteSpan payload);

  Session& session_;
  io::BufferPool& pool_;
  // Of the receiving thread alone.
  io::BufferRef home_;                  // what the next request is read into
  const std::byte* message_ = nullptr;  // the request in hand
  bool is_beside_ = false;              // what it is for
  Packer packer_;

  std::atomic<int64_t> busy_since_{0};  // steady clock; 0: waits for a request or in one
  std::atomic<bool> ended_{true};
  std::thread thread_;
};

}  // namespace cairnfs::fuse
