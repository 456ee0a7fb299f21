// StoreLog: the batches of a hosted store, in their order, for a second host that is to have them too.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "kv/engine.h"

namespace cairnfs::kv {

// A state of a hosted store. `opening` made `revision`, and each batch is one step: so two engines at one position that
// came there from one store hold the same.
struct Position {
  uint64_t opening = 0;  // 0: never opened
  uint64_t revision = 0;
  bool operator==(const Position&) const = default;
};

struct LogEntry {
  Position before, after;
  std::vector<EngineWrite> writes;
};

// All functions: any thread, but BeforeWrite and WriteFailed are called by one at a time.
class StoreLog {
 public:
  virtual ~StoreLog() = default;
  // Called before a batch is written to the engine, and so before anybody can read it. On return whoever is to have the
  // batch has it. An error: it must not be written. Waits while it is not known which of both it is to be.
  virtual Status BeforeWrite(const LogEntry& entry) = 0;
  // The write after the last BeforeWrite failed. An error: a second host has the batch, and may come to serve it.
  virtual Status WriteFailed() = 0;
  // Whether this host's store is the one, at this moment. kUnavailable: it may not be.
  virtual Status MayAnswer() const = 0;
};

}  // namespace cairnfs::kv
