// How LocalKvStore lays its keys and values on the engine: docs/formats/kv.md. Room-internal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

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

std::string EncodeStored(uint64_t revision, std::string_view value);
// kCorrupt when `text` is too short; the message names the key.
Result<StoredValue> DecodeStored(std::string_view engine_key, std::string_view text);

}  // namespace cairnfs::kv
