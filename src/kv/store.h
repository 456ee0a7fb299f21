// KvStore: ordered keys with etcd's semantics, the interface that the namespace is written against.
//
// The store has a revision, a counter that each transaction with a write increases by one; each key carries the
// revision of its last change. A transaction compares, then puts and deletes, atomically. Visible at once; durable as
// the implementation says (a local store: after Sync; one that is reached over a network: on return).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/result.h"

namespace cairnfs::kv {

struct KvEntry {
  std::string key;
  std::string value;
  uint64_t revision = 0;  // of the key's last change; 0 means the key does not exist
};

// An entry where it lies: valid while it is being visited.
struct KvEntryView {
  std::string_view key;
  std::string_view value;
  uint64_t revision = 0;
};

struct Compare {
  enum class Kind {
    kRevisionIs,      // the key's revision equals `revision`; 0: the key does not exist
    kExists,          // the key exists, whatever its revision
    kRangeEmpty,      // no key in [key, range_end)
    kRangeUnchanged,  // no key in [key, range_end) has a revision above `revision`. A deletion does not show:
                      // compare the keys one depends on
  };
  Kind kind;
  std::string key;
  std::string range_end;
  uint64_t revision = 0;
};

using LeaseId = uint64_t;  // 0: none

struct KvWrite {
  std::string key;
  std::optional<std::string> value;  // nullopt deletes; deleting an absent key is no error
  LeaseId lease = 0;  // the key goes when the lease ends (SharedKvStore only: elsewhere kInvalidArgument)
};

// How many transactions with an operation_id a store remembers: more than the 1024 that are promised.
constexpr size_t kOperationsRemembered = 4096;

struct Transaction {
  std::vector<Compare> compares;
  std::vector<KvWrite> writes;  // of two writes to one key the later one counts
  std::string operation_id;     // if not empty: a second commit of the same id within the store's memory (at least the
                                // last 1024 ids since open) changes nothing and returns the first one's result
  // The user (uid) for whom it makes names or attributes. A store that keeps room for removals (name_room.h) may refuse
  // it with kNoSpace; others do not look at it.
  std::optional<uint32_t> makes_names_for = {};
  // The same for one that makes no name, if what it writes is longer than what it replaces and removes.
  bool may_lengthen = false;

  Transaction& IfRevision(std::string key, uint64_t revision);
  Transaction& IfAbsent(std::string key) { return IfRevision(std::move(key), 0); }
  Transaction& IfExists(std::string key);
  Transaction& IfRangeEmpty(std::string begin, std::string end);
  Transaction& IfRangeUnchanged(std::string begin, std::string end, uint64_t revision);
  Transaction& Put(std::string key, std::string value);
  Transaction& Delete(std::string key);
};

struct KvRange {
  std::vector<KvEntry> entries;  // in key order
  bool more = false;             // the limit cut the answer off
  uint64_t revision = 0;         // the store's, at which the answer held
};

struct KvSpan {
  std::string begin, end;  // keys in [begin, end); `end` empty: the one key `begin`
  size_t limit = 0;        // 0: no limit
};

struct KvSnapshot {
  std::vector<KvRange> ranges;  // one for each span asked for, all at the same revision
  uint64_t revision = 0;
};

struct KvLimits {
  size_t operations_per_transaction_max;  // compares and writes each
  size_t transaction_bytes_max;
};

// kTooLarge, with what would be right, when the transaction is past the limits.
Status CheckLimits(const Transaction& transaction, const KvLimits& limits);

// Whether a Commit that failed with this code may have run, or may run yet.
bool MayHaveRun(ErrorCode code);
// What Commit returns when a compare does not hold.
Error CompareFailed();

class KvStore {
 public:
  virtual ~KvStore() = default;
  // All functions may be called from any thread at once. A store that is far away waits for its answer for no longer
  // than `context` allows, and then fails with kUnavailable; one in this process does not look at it.
  // Linearizable. nullopt: the key does not exist.
  virtual Result<std::optional<KvEntry>> Get(const Context& context, std::string_view key) = 0;
  // Keys in [begin, end) at one revision; `limit` 0: no limit.
  virtual Result<KvRange> Range(const Context& context, std::string_view begin, std::string_view end, size_t limit) = 0;
  // Visits the keys in [begin, end) in order until `visit` returns false, and keeps none of them in memory. Some
  // thousands of neighbours are read at one revision, those after them perhaps at a later one.
  using EntryVisitor = std::function<bool(const KvEntryView& entry)>;
  virtual Status VisitRange(const Context& context, std::string_view begin, std::string_view end,
                            const EntryVisitor& visit);
  // Visits the keys in [begin, end) in order until `visit` returns false, all as of one moment: the newest that is
  // durable when the call begins, or a later one. Returns the revision of that moment. Keeps few of them in memory
  // where the store is LocalKvStore or a SharedKvStore. kStale: the store has forgotten that moment meanwhile; to be
  // called again. After an error some keys may have been visited.
  virtual Result<uint64_t> VisitDurable(const Context& context, std::string_view begin, std::string_view end,
                                        const EntryVisitor& visit);
  // Several ranges at one revision, in one round trip where the store is far away.
  virtual Result<KvSnapshot> Read(const Context& context, std::span<const KvSpan> spans) = 0;
  // The new revision. kConflict when a compare failed, with nothing changed; kTooLarge past the limits;
  // kNotFound when a lease that it writes with has ended; kCorrupt when one of its keys cannot be read.
  virtual Result<uint64_t> Commit(const Context& context, const Transaction& transaction) = 0;
  // Every Commit that returned before is durable on return.
  virtual Status Sync(const Context& context) = 0;
  virtual KvLimits limits() const = 0;
};

// Reads the keys, `keys_per_read` in a round trip, and visits each in order with its index and its entry (null: there
// is none), before the next are read. Ends with the first error of Read or `visit`.
Status ReadKeys(const Context& context, KvStore& store, const std::vector<std::string>& keys, size_t keys_per_read,
                const std::function<Status(size_t index, const KvEntry* entry)>& visit);

// The end of the range of all keys that begin with `prefix`; empty when there is none (all 0xff).
std::string PrefixEnd(std::string_view prefix);

}  // namespace cairnfs::kv
