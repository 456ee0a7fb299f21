// A dump: the names and records of a filesystem as of one moment, in a file. docs/formats/dump.md has the bytes.
//
// It is written from front to end, compressed in blocks. Each block has a check of its own and says where in the file
// it stands, so it can be read by itself; the last one has the digest of all before it. A reader refuses the whole file
// for one wrong bit, and says where.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/types.h"
#include "chunking/digest.h"

namespace cairnfs::meta {

struct DumpHead {
  static constexpr uint32_t kFormatVersion = 3;  // 1: without commits, 2: without quotas
  enum class Of : uint8_t { kHostAlone = 1, kCluster = 2 };
  Of of = Of::kCluster;
  std::string filesystem;  // uuid, 16 bytes
  Timestamp taken;         // by the clock of the host that wrote it
  std::string program;     // version of it
};

struct DumpSummary {
  DumpHead head;
  uint64_t revision = 0;  // of the store that was dumped
  uint64_t entries = 0;
  uint64_t bytes = 0;  // of the file
  Digest digest;       // of the file but for its last block
};

// Whether the key is one of those that a dump has: names, records, and settings of the cluster. Sessions, locks,
// collections and whatever else the hosts agree on through a store are not.
bool IsInDump(std::string_view key);
// kCorrupt: the key is none of a dump, or the value does not decode. (Settings are not looked into.)
Status CheckDumpEntry(std::string_view key, std::string_view value);

// Of one thread.
class DumpWriter {
 public:
  // Takes the next bytes of the file; an error ends the dump.
  using Sink = std::function<Status(std::string_view bytes)>;
  explicit DumpWriter(Sink sink) : sink_(std::move(sink)) {}

  Status Begin(const DumpHead& head);
  // REQUIRES: IsInDump(key), and keys rise.
  Status Add(std::string_view key, std::string_view value);
  Status Finish(uint64_t revision);
  uint64_t entries() const { return entries_; }

 private:
  Status WriteBlock(uint8_t kind, std::string_view payload);
  Status WriteBytes(std::string_view bytes);

  const Sink sink_;
  std::string pending_;
  uint64_t offset_ = 0, entries_ = 0;
  chunking::Digester digester_;
};

// The bytes of a dump: those from `offset` on, fewer than `size` at its end alone.
using DumpSource = std::function<Result<std::string>(uint64_t offset, size_t size)>;
using DumpVisitor = std::function<Status(std::string_view key, std::string_view value)>;
// Reads a whole dump, and visits its entries in the order of their keys. Ends with the first error of `visit`.
// kCorrupt: it is cut off, damaged, or no dump; the message says where. kNotSupported: it is of a newer format, or
// holds a filesystem of a newer one. What was visited counts only once this returns without an error.
Result<DumpSummary> ReadDump(const DumpSource& source, const DumpVisitor& visit);
// What the dump is, by its first block alone.
Result<DumpHead> ReadDumpHead(const DumpSource& source);

}  // namespace cairnfs::meta
