// Marking: which chunks the records of all files name.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/context.h"
#include "kv/store.h"
#include "meta/records.h"
#include "store/chunk_store.h"
#include "store/local_chunk_store.h"

namespace cairnfs::fs {

// The digests that records name: eight bytes of each, which is enough for a test that may err towards keeping.
class LiveSet {
 public:
  void Add(const Digest& digest);
  void Seal();                                                // call once after the last Add
  std::optional<size_t> PlaceOf(const Digest& digest) const;  // below size(); nullopt: not added. REQUIRES: sealed
  bool Contains(const Digest& digest) const { return PlaceOf(digest).has_value(); }
  size_t size() const { return prefixes_.size(); }

 private:
  void Compact();
  std::vector<uint64_t> prefixes_;
  size_t compact_at_ = 1 << 20;
  bool is_sealed_ = false;
};

// Of digests that were given before, those that records name. Eight bytes and a bit of each given one, however many
// there are in the cluster. Two that are alike in these count as one, which errs towards keeping.
class CandidateSet {
 public:
  void Add(const Digest& digest) { given_.Add(digest); }
  void Seal();                                // call once after the last Add
  void Mark(const Digest& digest);            // REQUIRES: sealed
  bool Contains(const Digest& digest) const;  // it was marked, or was not given. REQUIRES: sealed

 private:
  LiveSet given_;
  std::vector<bool> is_marked_;
};

using Marking = std::function<void(const Digest&)>;
// Marks every digest that the record of a file names, those of recipe pages too. kInterrupted: the context expired.
Status MarkFile(const Context& context, const meta::FileRecord& record, store::ChunkStore& chunks, const Marking& mark);
// Of all files in `kv`, orphans and those of held dumps too, which it reads piece by piece, each at a revision of its
// own. `marked` counts them. What cannot be read ends it.
Status MarkAll(const Context& context, kv::KvStore& kv, store::ChunkStore& chunks, const Marking& mark,
               std::atomic<uint64_t>& marked);
// What a collection of `chunks` would keep and free: those of which `live` says so once `mark` has succeeded, and those
// that are put meanwhile, stay. No collection may run.
Result<store::LiveTotals> CountMarked(const Context& context, store::LocalChunkStore& chunks,
                                      const std::function<Status()>& mark, const store::LiveTest& live);

}  // namespace cairnfs::fs
