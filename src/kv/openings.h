// Openings: which process made which revisions of a hosted store.
//
// Each opening of the store has a random id, and the engine keeps the ids of the last ones with the revision at which
// each began. So a client that knows a revision of some opening can be told whether this store was ever in that state.
// It was not, if the store was put back to an older state since (a backup was restored) and went another way from
// there, whatever its revision is. Immutable.
#pragma once

#include <string_view>
#include <vector>

#include "kv/engine.h"
#include "kv/store_log.h"

namespace cairnfs::kv {

class Openings {
 public:
  static constexpr size_t kKept = 64;  // docs/formats/kv.md

  Openings() = default;  // none
  // Reads those before, and adds one that begins at `revision`, durably. kCorrupt when what is there does not decode.
  // `log`, unless null, is told of it.
  static Result<Openings> Begin(KvEngine& engine, uint64_t revision, StoreLog* log = nullptr);
  // Those that the engine knows. kCorrupt as above.
  static Result<Openings> Read(KvEngine& engine, const EngineSnapshot* snapshot = nullptr);

  uint64_t current() const { return openings_.empty() ? 0 : openings_.back().id; }
  // Whether the state at `revision`, which the opening `id` told a client, is one of this store's. False too for an
  // opening that is so old that it is not known any more.
  bool Contain(uint64_t id, uint64_t revision) const;

 private:
  struct Opening {
    uint64_t id;
    uint64_t revision;  // of the store when it was opened
  };
  std::vector<Opening> openings_;  // the oldest first
};

}  // namespace cairnfs::kv
