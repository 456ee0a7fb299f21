// How LocalKvStore and HostedStore lay their keys and values on the engine: docs/formats/kv.md. Room-internal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kv/engine.h"
#include "kv/store.h"

namespace cairnfs::kv {

inline constexpr char kKeyPrefix = 'K';
inline constexpr std::string_view kKeysBegin = "K";
inline constexpr std::string_view kKeysEnd = "L";
inline constexpr std::string_view kRevisionKey = "R";
inline constexpr size_t kRevisionBytes = 8;

inline std::string EngineKey(std::string_view key) {
  std::string engine_key;
  engine_key.reserve(key.size() + 1);
  engine_key.push_back(kKeyPrefix);
  engine_key.append(key);
  return engine_key;
}

// The engine's end of a range that ends at `end`; empty `end`: the end of all keys of the store.
inline std::string EngineRangeEnd(std::string_view end) { return end.empty() ? std::string(kKeysEnd) : EngineKey(end); }

struct StoredValue {
  uint64_t revision;
  std::string_view value;
};

// What HostedStore adds.
inline constexpr char kSlotPrefix = 'S';               // S, name: stored as an entry is
inline constexpr std::string_view kLeasesBegin = "L";  // L, u64 big-endian id: u64 time to live in ms
inline constexpr std::string_view kLeasesEnd = "M";
inline constexpr std::string_view kAttachmentsBegin = "A";  // A, u64 big-endian id, engine key: nothing
inline constexpr std::string_view kAttachmentsEnd = "B";

inline constexpr std::string_view kOpeningsKey = "O";  // u64 id, u64 revision of each (openings.h)

std::string LeaseKey(uint64_t lease);
std::string AttachmentKey(uint64_t lease, std::string_view engine_key);

std::string EncodeStored(uint64_t revision, std::string_view value);
// The engine's revision; nullopt: it has none.
Result<std::optional<uint64_t>> ReadRevision(KvEngine& engine, const EngineSnapshot* snapshot);
// kCorrupt when there are keys. For a store without a revision.
Status CheckNoKeys(KvEngine& engine);

bool IsRange(const Compare& compare);
bool PointHolds(const Compare& compare, uint64_t revision);

// kCorrupt when `text` is too short; the message names the key.
Result<StoredValue> DecodeStored(std::string_view engine_key, std::string_view text);

}  // namespace cairnfs::kv
