// SharedKvStore: a KvStore that several hosts use at once, with what they need to live together: leases and watches.
//
// Implementations: HostedStore (in the process that owns the engine), NodeStore (the same, reached over gRPC) and
// EtcdStore. Every Commit is durable on return. While the store cannot be reached calls try again, at another endpoint
// if there is one, for as long as their context and the implementation's options say, then fail with kUnavailable. A
// Commit whose answer was lost never runs twice: the implementation finds out what became of it. kUnavailable means
// that it may or may not have run. kStale means the same, and that committing it again, by its operation id, will not
// tell either.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "kv/store.h"

namespace cairnfs::kv {

struct KvEvent {
  std::string key;
  std::optional<std::string> value;  // nullopt: the key was deleted, or its lease ended
  uint64_t revision = 0;
};

struct WatchCallbacks {
  // Changes of one or more whole revisions, in order. All changes up to `revision` have been told then.
  std::function<void(std::vector<KvEvent> events, uint64_t revision)> changed;
  // Changes were missed and cannot be told any more (they were compacted, or the store went back to an older state):
  // read the range anew. The watch goes on with changes after `revision`, which is not older than this call.
  std::function<void(uint64_t revision)> lost;
  // In place of `lost`, where the store went back to an older state (a backup was restored), and perhaps on from there.
  // Every revision that was read before may stand for something else then, also one below `revision`. Empty: `lost` is
  // called.
  std::function<void(uint64_t revision)> went_back = {};

  void TellWentBack(uint64_t revision) const { went_back ? went_back(revision) : lost(revision); }
};

// Destroying it ends the watch, after a callback that runs. Must not be destroyed from its own callback.
class KvWatch {
 public:
  virtual ~KvWatch() = default;
};

class SharedKvStore : public KvStore {
 public:
  // A lease ends `ttl` after it was granted or last kept alive, not before. Then the keys written with it go, each as a
  // change of its own or together. After a restart of the store every lease has its full ttl again.
  virtual Result<LeaseId> GrantLease(const Context& context, std::chrono::milliseconds ttl) = 0;
  // Returns the time that the lease has left, counted from when the request was sent. kNotFound: it has ended. Tries
  // once per endpoint, then kUnavailable, because a caller that keeps a lease alive has a schedule of its own.
  virtual Result<std::chrono::milliseconds> KeepLeaseAlive(const Context& context, LeaseId lease) = 0;
  // Ends it now. No error when it has ended already.
  virtual Status RevokeLease(const Context& context, LeaseId lease) = 0;

  // Bytes that users other than root may still take for names and attributes, where the store keeps room for removals
  // (name_room.h), as it told last: with each lease that is kept alive, where it is far away, and an etcd when it is
  // looked after. nullopt: it keeps none, or did not tell yet. Does not wait.
  virtual std::optional<uint64_t> RoomForNames() const { return std::nullopt; }

  // Tells of changes in [begin, end) after `after_revision` (0: from now on), on a thread of the store, one call at a
  // time for each watch. Callbacks may call the store. `context` is of this call: the watch goes on until it is
  // destroyed. kUnavailable: no thread can be started for it.
  virtual Result<std::unique_ptr<KvWatch>> Watch(const Context& context, std::string_view begin, std::string_view end,
                                                 uint64_t after_revision, WatchCallbacks callbacks) = 0;
};

}  // namespace cairnfs::kv
