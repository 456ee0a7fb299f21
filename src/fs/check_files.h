// The part of a check that looks at content: each file's recipe can be read, and each chunk that it names is there.
#pragma once

#include "fs/findings.h"
#include "kv/store.h"
#include "store/chunk_store.h"

namespace cairnfs::fs {

class FilesCheck {
 public:
  FilesCheck(kv::KvStore& kv, store::ChunkStore& chunks, Findings& findings)
      : kv_(kv), chunks_(chunks), findings_(findings) {}

  // Reads every recipe, and asks the index for every chunk. Beside everything else: a record that changed meanwhile is
  // looked at again. Sets bytes of `report`.
  Status FindMissing(const Context& context, CheckReport& report);
  uint64_t live_chunks() const { return live_chunks_; }  // that files name, and that are there
  // Tells the findings which files name the chunks that are missing or damaged. REQUIRES (unchecked): all of those are
  // known.
  Status NoteDamagedFiles(const Context& context);

 private:
  // What one look at a record found.
  struct Look {
    std::vector<Digest> missing;
    std::vector<std::pair<Digest, std::string>> unreadable;  // pages, and why
    std::string undecodable;                                 // why; empty: the recipe decodes
    bool clean() const { return missing.empty() && unreadable.empty() && undecodable.empty(); }
  };
  struct UnreadablePage {
    InodeId inode;
    Digest page;
    std::string why;
  };
  class LiveCount;
  void CheckFile(const Context& context, kv::KvEntry entry, LiveCount& live, CheckReport& report);
  Look LookAt(const std::string& recipe, LiveCount& live);

  kv::KvStore& kv_;
  store::ChunkStore& chunks_;
  Findings& findings_;
  uint64_t live_chunks_ = 0;
  std::vector<UnreadablePage> unreadable_pages_;
};

}  // namespace cairnfs::fs
