// What is kept of a commit that was refused: a rename of a directory that kept its name, because bytes below it are
// lost or could not be made safe. docs/formats/namespace.md has the byte tables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/types.h"

namespace cairnfs::meta {

struct RefusalCause {
  std::string file = {};  // its path below the root; empty: no single one
  std::string host = {};  // on which the bytes are, or were; empty: there is one host alone
  std::string why = {};   // names no file

  std::string Sentence() const;  // "'FILE': host HOST: WHY"
  bool operator==(const RefusalCause&) const = default;
};

struct RefusedCommit {
  InodeId source = {};         // the directory; 0: it is not known
  Timestamp at = {};           // by the clock of that host
  std::string host = {};       // which refused it; empty: there is one alone
  uint32_t uid = 0;            // who renamed
  std::string directory = {};  // its path below the root; "#12/name" where only inode 12 above it is known
  std::vector<RefusalCause> causes = {};
  uint64_t left_out = 0;  // so many more causes there were

  static constexpr size_t kCausesMax = 64;
  static constexpr size_t kCausesBytesMax = 8192;     // of all their texts
  static constexpr size_t kDirectoryBytesMax = 4096;  // of a longer path the end is kept, behind "..."

  std::string JoinCauses() const;  // a few of them, in one line
  // Leaves out what is beyond the bounds.
  void Shorten();
  // The value of its key. REQUIRES: it is within the bounds.
  std::string Encode() const;
  static Result<RefusedCommit> Decode(std::string_view key, std::string_view value);
};

// `node`: id of kNodeIdBytes, of which a host alone has none but zeros. So there is one of each directory and host.
std::string RefusalKey(InodeId directory, std::string_view node);
std::string RefusalsPrefix(InodeId directory);
std::string RefusalsPrefix();

}  // namespace cairnfs::meta
