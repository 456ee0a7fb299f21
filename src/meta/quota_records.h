// What the store keeps of quotas of directories (docs/decisions/quotas.md). docs/formats/namespace.md has the byte
// tables.
//
//   WUq <directory be64>           a quota: its limits. The directory's inode number is its id
//   WUh <directory be64> <node>   what a host of several may add to it beyond what is published; goes with its session
//   WUu <ino be64>                 what a file counts for its quota: written by each transaction that writes its D
//   record
//
// An inode's record names the quota that it falls under, and a file's D record the one that its bytes count for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/types.h"
#include "kv/store.h"
#include "meta/records.h"

namespace cairnfs::meta {

// Bytes of a quota, as limits and as what is used of them.
struct QuotaBytes {
  uint64_t logical = 0;  // of files without their holes, before deduplication
  uint64_t unique = 0;   // that were stored nowhere when they were written
  bool operator==(const QuotaBytes&) const = default;
};

struct QuotaRecord {
  static constexpr uint64_t kNoLimit = UINT64_MAX;
  enum class State : uint8_t {
    kGiving = 0,  // what lies below the directory is still being put under it
    kOn = 1,
    kTaking = 2,  // what lies below is being taken from it; then it goes
  };
  QuotaBytes limit{kNoLimit, kNoLimit};
  State state = State::kOn;
  std::string Encode() const;
  static Result<QuotaRecord> Decode(std::string_view value);
};

// Of a host, beyond what is published.
struct QuotaShare {
  QuotaBytes bytes;
  std::string Encode() const;
  static Result<QuotaShare> Decode(std::string_view value);
};

struct UsageRecord {
  InodeId quota;
  QuotaBytes bytes;
  std::string Encode() const;
  static Result<UsageRecord> Decode(std::string_view value);
};

std::string QuotasPrefix();  // of all three
std::string QuotaKey(InodeId directory);
std::string QuotaSharePrefix(InodeId directory);
std::string QuotaShareKey(InodeId directory, std::string_view node);
std::string UsageKey(InodeId inode);
struct QuotaShareKeyParts {
  InodeId directory;
  std::string node;
};
std::optional<InodeId> InodeOfQuotaKey(std::string_view key);                 // nullopt for another key
std::optional<QuotaShareKeyParts> DecodeQuotaShareKey(std::string_view key);  // the same
std::optional<InodeId> InodeOfUsageKey(std::string_view key);                 // the same

// What is to be written beside the D record of a file, in the same transaction; nullopt: it counts for no quota.
std::optional<kv::KvWrite> UsageOf(InodeId inode, const FileRecord& record);

}  // namespace cairnfs::meta
