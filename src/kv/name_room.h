// NameRoom: who may still make names, attributes and records longer, as the disk on which they lie gets full.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/result.h"
#include "base/thread_annotations.h"

namespace cairnfs::kv {

// What an operation does to names, attributes and the records of files.
enum class NameChange {
  kMakes,     // it makes one, or adds bytes to a file: that takes room for good
  kAlters,    // it takes little room, or some for a while
  kShortens,  // it takes an attribute away, empties a file, or gives a name that is no longer than before
  kRemoves,   // it removes a name
};

// Says in the log that names are refused: once a minute, since many may be.
class RefusedNames {
 public:
  void Tell(const Error& why);  // any thread

 private:
  Mutex mutex_;
  bool was_told_ GUARDED_BY(mutex_) = false;
  Clock::time_point told_at_ GUARDED_BY(mutex_){};
};

// All functions: any thread; they wait for nothing but a look at the disk.
class NameRoom {
 public:
  virtual ~NameRoom() = default;
  // Whether there is room for this user's change now: kNoSpace. `unwritten_bytes`: of such as were let in, and are in
  // no log yet.
  virtual Status Judge(NameChange change, uint32_t uid, uint64_t unwritten_bytes) = 0;
  // The same for a change that is refused then; the log tells.
  Status Admit(NameChange change, uint32_t uid, uint64_t unwritten_bytes);
  // That users other than root may take.
  virtual uint64_t BytesForUsers(uint64_t unwritten_bytes) const = 0;

 private:
  RefusedNames refused_;
};

// Who asks a NameRoom: the store of the names, or a host that may come to serve them.
class NameRoomUser {
 public:
  virtual ~NameRoomUser() = default;
  // From now on it is asked before each transaction that needs room is committed. null: none is any more; returns once
  // the one before is not asked any more. It may not call the store.
  virtual void SetNameRoom(NameRoom* room) = 0;
};

}  // namespace cairnfs::kv
