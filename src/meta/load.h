// Writes the names and records of a filesystem into an empty store, so that they are there all at once or not at all.
//
// A store holds a filesystem for several hosts once it has the settings of one (key C), for nothing is opened without
// them. They are put last, by a transaction that compares the loader's own mark (key Z), which is put first. So what an
// interrupted load has left is seen by nobody, and the next load takes it away; and of two loads at once one fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/context.h"
#include "base/result.h"
#include "kv/store.h"

namespace cairnfs::meta {

std::string LoadMarkKey();

// Of one thread. `target` outlives it.
class NamesLoader {
 public:
  explicit NamesLoader(kv::KvStore& target) : target_(target) {}

  // kAlreadyExists, with nothing changed: the store is not empty. What an interrupted load has left does not count, and
  // is removed.
  Status Begin(const Context& context);
  // kConflict: another loader has begun, and this one is over.
  Status Put(const Context& context, std::string_view key, std::string_view value);
  // What was put is durable when this returns, and seen once Finish has.
  Status Flush(const Context& context);
  // Flush, and in one step `last`. Where there is no answer it may have run, or may run yet, until the mark changes.
  Status Finish(const Context& context, const std::vector<kv::KvWrite>& last);

 private:
  Status Commit(const Context& context, const std::vector<kv::KvWrite>& writes);
  Status RemoveLeftovers(const Context& context);

  kv::KvStore& target_;
  uint64_t mark_ = 0;  // revision of this loader's
  std::vector<kv::KvWrite> pending_;
  size_t pending_bytes_ = 0;
};

// Changes the mark of whoever loads, so that its Finish, even one that is still under way, does nothing. What was
// loaded counts as left over.
Status StopLoading(const Context& context, kv::KvStore& target);

// An entry of a dump, as it is to be in the store that it is loaded into. A mark becomes that of a session that has
// ended, because the bytes that it waits for are in no dump. The next inode number rises, so that none is given out
// that may have been since the dump was taken. REQUIRES: CheckDumpEntry.
kv::KvWrite EntryToLoad(std::string_view key, std::string_view value);

}  // namespace cairnfs::meta
