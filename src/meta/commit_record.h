// What the store keeps of a commit: of the rename that gave a directory its name, and of the save that it ended.
// docs/commits.md says what each figure means; docs/formats/namespace.md has the byte tables.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::meta {

// Written in the transaction of the rename.
struct CommitRecord {
  Timestamp at;         // by the clock of the host that renamed
  std::string node;     // its id, kNodeIdBytes; zeros: it is alone
  std::string host;     // its name, for people
  uint32_t uid = 0;     // who renamed
  std::string command;  // the name of its process, as /proc/PID/comm has it; empty: it cannot be seen

  std::string Encode() const;
  static Result<CommitRecord> Decode(std::string_view value);
};

// What one host knows of the save, written after the rename.
struct CommitPart {
  Timestamp commit_at;  // CommitRecord::at of the commit that it belongs to
  std::optional<Timestamp> first_write = {};
  uint64_t written_bytes = 0;            // by write calls and stores through mappings on this host
  uint64_t new_bytes = 0;                // of chunks that were not stored before
  uint64_t write_ns = 0;                 // spent in write calls
  uint64_t wait_ns = 0;                  // spent in fsync, close and the rename
  std::optional<Timestamp> copied = {};  // when all its chunks had their copies
  // By a host that has counted what lies below the directory.
  struct Totals {
    uint64_t files = 0, bytes = 0;  // regular files by names, and the sum of their sizes
  };
  std::optional<Totals> totals = {};
  std::optional<Timestamp> durable = {};  // by the host that renamed: when the rename was answered

  // Takes over what another host knows.
  void Add(const CommitPart& other);
  std::string Encode() const;
  static Result<CommitPart> Decode(std::string_view value);
};

std::string CommitKey(InodeId directory);
// `node`: id of kNodeIdBytes, of which a host alone has none but zeros.
std::string CommitPartKey(InodeId directory, std::string_view node);
std::optional<InodeId> InodeOfCommitKey(std::string_view key);  // nullopt for a part's key too
std::optional<InodeId> InodeOfCommitPartKey(std::string_view key, std::string_view node);  // nullopt: of no part of it
std::string CommitsPrefix();
bool IsOfCommitOrRefusal(std::string_view key);

}  // namespace cairnfs::meta
